"""The metrics of this process: read from SQL and Redis at most every few seconds, filtered by principal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

from prometheus_client.metrics_core import Metric

from rqsched.chain.runtime import Runtime
from rqsched.errors import RqschedError
from rqsched.http.auth import Principal
from rqsched.http.metrics import exposition
from rqsched.http.metrics.counters import OTHER, Follower
from rqsched.http.metrics.gauges import DatabaseGauges, RedisGauges, read_database, read_redis

_MAX_AGE = 5.0
"""Seconds for which the gauges are reused."""


class Meter:
    """Reads SQL and Redis, and keeps the counters of this process. Safe to share between threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._follower = Follower(runtime)
        self._lock = threading.Lock()
        self._refreshed_at = float("-inf")
        self._database: DatabaseGauges | None = None
        self._redis: RedisGauges | None = None

    def refresh(self, *, force: bool = False) -> None:
        """Read SQL and Redis unless the last read is recent; `force` reads in any case."""
        with self._lock:
            if not force and monotonic() - self._refreshed_at < _MAX_AGE:
                return
            self._database = self._read_database()
            self._redis = read_redis(self._runtime)
            self._refreshed_at = monotonic()

    def _read_database(self) -> DatabaseGauges | None:
        try:
            self._follower.update()
            return read_database(self._runtime)
        except RqschedError:
            return None

    def families(self, principal: Principal) -> Iterator[Metric]:
        """Return what a principal may see: all, or the metrics of its namespaces without the shared ones."""
        sees_all = principal.namespaces is None

        def sees(namespace: str) -> bool:
            return sees_all or (namespace != OTHER and principal.sees(namespace))

        with self._lock:
            yield from exposition.counter_families(self._follower.counts, sees)
            if self._database is not None:
                yield from exposition.database_families(self._database, self._follower.label, sees)
            if sees_all:
                yield exposition.up({"database": self._database is not None, "redis": self._redis is not None})
                yield from exposition.redis_families(self._redis) if self._redis else ()
