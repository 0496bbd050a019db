"""The metrics of this process: read from SQL and Redis at most every few seconds, filtered by principal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from time import monotonic

from prometheus_client.metrics_core import Metric
from redis.exceptions import RedisError

from rqsched.api.gauges import DatabaseGauges, RedisGauges, database_gauges, redis_gauges
from rqsched.api.outages import told
from rqsched.api.runtime import Runtime
from rqsched.errors import RqschedError
from rqsched.http.auth import Principal
from rqsched.metrics import exposition
from rqsched.metrics.counters import OTHER, Follower

_log = logging.getLogger(__name__)

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
            self._redis = self._read_redis()
            self._refreshed_at = monotonic()

    def _read_database(self) -> DatabaseGauges | None:
        try:
            self._follower.update()
            return database_gauges(self._runtime)
        except RqschedError:
            return None

    def _read_redis(self) -> RedisGauges | None:
        try:
            found = redis_gauges(self._runtime)
        except RedisError as error:
            _tell(error)
            return None
        try:
            self._runtime.transport.try_write()
        except RedisError as error:  # dispatchers show that they are alive by writes to Redis
            _tell(error)
            return found._replace(dispatchers=None)
        return found

    def families(self, principal: Principal) -> Iterator[Metric]:
        """Return the metrics that a principal may see: all, or only the metrics of its namespaces."""
        sees_all = principal.namespaces is None

        def sees(namespace: str) -> bool:
            return sees_all or (namespace != OTHER and principal.sees(namespace))

        with self._lock:
            yield from exposition.counter_families(self._follower.counts, sees)
            if self._database is not None:
                yield from exposition.database_families(self._database, self._follower.label, sees)
                if sees_all:
                    yield from exposition.queues(self._database, self._follower.queue_label)
                    yield exposition.went_back(self._database.went_back)
                    yield from exposition.refused(self._database)
            if sees_all:
                takes_writes = self._redis is not None and self._redis.dispatchers is not None
                yield exposition.up({"database": self._database is not None, "redis": takes_writes})
                yield exposition.all_frozen(self._runtime.freezes.is_all_frozen)
                yield from exposition.redis_families(self._redis) if self._redis else ()


def _tell(error: RedisError) -> None:
    _log.warning("Redis counts as away in /metrics: %s", told(error), extra={"action": "metrics_redis"})
