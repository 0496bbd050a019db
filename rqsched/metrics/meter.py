"""The metrics of this process: read from SQL and Redis at most every few seconds, filtered by principal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from time import monotonic

from prometheus_client.metrics_core import Metric
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from rqsched.api.health import GIVEN_UP_WITHIN, late_until, waiting_by_queue
from rqsched.errors import RqschedError
from rqsched.features.limits import store as limits
from rqsched.features.quotas.chain import usages
from rqsched.http.auth import Principal
from rqsched.kernel.chain.marks import find_told
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.queries import system as system_queries
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport import refusal, telemetry
from rqsched.kernel.transport.telemetry import Memory
from rqsched.metrics import exposition
from rqsched.metrics.counters import OTHER, Follower
from rqsched.metrics.exposition import DatabaseGauges, RedisGauges

_log = logging.getLogger(__name__)

_MOST_LIMITS = 100
"""The most groups that are reported: those with the most runs."""
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
            self._runtime.hold.look()
            self._follower.update()
            # The times first: inside a transaction the clock is never measured anew.
            now, until = self._runtime.now(), late_until(self._runtime)
            return self._runtime.database.read(partial(self._gauges, now=now, until=until))
        except RqschedError:
            return None

    def _gauges(self, connection: Connection, *, now: datetime, until: datetime) -> DatabaseGauges:
        frozen = self._runtime.hold.frozen
        late = [] if self._runtime.hold.is_on else system_queries.count_late(connection, until)  # on hold none is late
        overdue = system_queries.count_without_success(connection)
        return DatabaseGauges(
            schedules=system_queries.count_schedules_by_status(connection),
            runs=system_queries.count_open_runs_by_status(connection),
            targets=system_queries.count_open_targets_by_status(connection),
            blocked=system_queries.count_blocked_runs(connection),
            long=system_queries.count_long_runs(connection),
            late=[
                (namespace, count, (now - earliest).total_seconds())
                for namespace, count, earliest in late
                if namespace not in frozen
            ],
            without_success=[one for one in overdue if one[0] not in frozen],
            frozen=[(namespace, 1) for namespace in frozen],
            limits=limits.busiest(connection, _MOST_LIMITS, now),
            failing=system_queries.count_failing(connection),
            waiting=[
                (name, one.number, 0.0 if one.since is None else (now - one.since).total_seconds())
                for name, one in waiting_by_queue(self._runtime, connection, None).items()
            ],
            usages=usages(self._runtime, connection),
            notifications=system_queries.count_notifications_by_status(connection, now - GIVEN_UP_WITHIN),
            went_back={one.which for one in find_told(self._runtime, now, connection)},
            refusals=self._runtime.refusals.count(connection),
            refused=[one.what for one in self._runtime.refusals.find(connection, now)],
        )

    def _read_redis(self) -> RedisGauges | None:
        transport = self._runtime.transport
        redis, queue = transport.redis, transport.control.name
        try:
            live = telemetry.live_dispatchers(redis, queue)
            passes = telemetry.read_passes(redis, queue)
            found = RedisGauges(transport.count_armed(), len(live), _memory_of(redis), passes)
        except RedisError as error:
            _tell(error)
            return None
        try:
            transport.try_write()
        except RedisError as error:  # no dispatcher can show that it is alive
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
                yield exposition.held(self._runtime.hold.is_on)
                yield from exposition.redis_families(self._redis) if self._redis else ()


def _tell(error: RedisError) -> None:
    _log.warning("Redis counts as away in /metrics: %s", refusal.told(error), extra={"action": "metrics_redis"})


def _memory_of(redis: Redis) -> Memory | None:
    """Return how full Redis is; None where a provider, or the rights of this user, hide it."""
    try:
        return telemetry.read_memory(redis)
    except (ResponseError, KeyError):
        return None
