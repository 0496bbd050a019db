"""The look metrics take at SQL and Redis, at most every few seconds, and what a principal may see of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

from prometheus_client.metrics_core import Metric

from rqsched.chain.runtime import Runtime
from rqsched.errors import RqschedError
from rqsched.http.auth import Principal
from rqsched.http.metrics import exposition as families
from rqsched.http.metrics.counters import OTHER, Follower
from rqsched.http.metrics.gauges import Standing, Transported, look_at_redis, look_at_sql

_FRESH = 5.0
"""Seconds for which a look serves everyone who asks."""


class Meter:
    """Takes looks at SQL and Redis; keeps the counters of this process. Safe to share between threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._follower = Follower(runtime)
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._standing: Standing | None = None
        self._transported: Transported | None = None

    def look(self, *, now: bool = False) -> None:
        """Look again unless the last look is fresh; `now` looks in any case."""
        with self._lock:
            if not now and monotonic() - self._looked_at < _FRESH:
                return
            self._standing = self._look_at_sql()
            self._transported = look_at_redis(self._runtime)
            self._looked_at = monotonic()

    def _look_at_sql(self) -> Standing | None:
        try:
            self._follower.look()
            return look_at_sql(self._runtime)
        except RqschedError:
            return None

    def families(self, principal: Principal) -> Iterator[Metric]:
        """Give what a principal may see: a tenant its namespaces, and nothing of what all share."""
        sees_all = principal.namespaces is None

        def sees(namespace: str) -> bool:
            return sees_all or (namespace != OTHER and principal.sees(namespace))

        with self._lock:
            yield from families.counted(self._follower.counts, sees)
            if self._standing is not None:
                yield from families.standing(self._standing, self._follower.label, sees)
            if sees_all:
                yield families.up({"database": self._standing is not None, "redis": self._transported is not None})
                yield from families.transported(self._transported) if self._transported else ()
