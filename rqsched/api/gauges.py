"""The gauges of an installation: the present figures of SQL and of Redis. Each of the two is read at once."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import NamedTuple

from redis import Redis
from redis.exceptions import ResponseError

from rqsched.api.health import GIVEN_UP_WITHIN, late_until, waiting_by_queue
from rqsched.features.limits import store as limits
from rqsched.features.quotas.chain import usages
from rqsched.features.quotas.decide import Usage
from rqsched.kernel.chain.rollback_marks import find_told
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.results import LimitDescription
from rqsched.kernel.decide.rollback_marks import WentBack as WentBack
from rqsched.kernel.queries import system as system_queries
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport import telemetry
from rqsched.kernel.transport.telemetry import LAST_SECONDS as LAST_SECONDS
from rqsched.kernel.transport.telemetry import PASSES as PASSES
from rqsched.kernel.transport.telemetry import PRUNED as PRUNED
from rqsched.kernel.transport.telemetry import SECONDS as SECONDS
from rqsched.kernel.transport.telemetry import Memory as Memory

_MOST_LIMITS = 100
"""The maximum number of groups that are reported. Groups with more runs come first."""


class DatabaseGauges(NamedTuple):
    """The figures of one read of SQL."""

    schedules: list[tuple[str, str, int]]
    """All schedules, by namespace and status."""
    runs: list[tuple[str, str, int]]
    """Open runs, by namespace and status."""
    targets: list[tuple[str, str, int]]
    """Open targets of fan-outs, by namespace and status."""
    blocked: list[tuple[str, int]]
    """Pending runs whose code no worker had yet, by namespace."""
    long: list[tuple[str, int]]
    """Runs that take longer than their schedules expect, by namespace."""
    late: list[tuple[str, int, float]]
    """Active schedules that should have fired, by namespace, and seconds since the earliest was due."""
    without_success: list[tuple[str, int]]
    """Schedules without a success within their `expect_success_within`, by namespace."""
    frozen: list[tuple[str, int]]
    """The frozen namespaces, each with the value 1."""
    limits: list[LimitDescription]
    """The groups with the most open runs."""
    failing: list[tuple[str, int]]
    """Active schedules whose newest runs all failed, by namespace."""
    waiting: list[tuple[str, int, float]]
    """Runs and targets that wait for a worker, by queue, and the seconds that the first has waited."""
    usages: list[Usage]
    """The usage of namespaces with a quota."""
    notifications: list[tuple[str, str, int]]
    """Waiting notifications, and notifications given up within the last day, by namespace and status."""
    went_back: set[WentBack]
    """The servers that went back to an older state, if this was found within the last day."""
    refusals: int
    """How often Redis has permanently refused a write: of a job, of a link, or of the lease of a link."""
    refused: list[str]
    """The queues, and kinds of links, whose writes Redis refuses now."""


class RedisGauges(NamedTuple):
    """The figures of one read of Redis."""

    scheduled: int
    """Links in the scheduled set."""
    dispatchers: int | None
    """Live dispatchers; None while Redis takes no writes, because then no dispatcher can report that it lives."""
    memory: Memory | None
    """Its memory in use and its limit; None if Redis does not report them."""
    reconcile: dict[str, float]
    """The sums over all reconcile passes."""


def database_gauges(runtime: Runtime) -> DatabaseGauges:
    """Read the figures of SQL in one transaction."""
    runtime.freezes.look()
    # Read the times first, because the clock of SQL is not measured inside a transaction.
    now, until = runtime.now(), late_until(runtime)
    return runtime.database.read(partial(_gauges, runtime=runtime, now=now, until=until))


def _gauges(connection: Connection, *, runtime: Runtime, now: datetime, until: datetime) -> DatabaseGauges:
    frozen = runtime.freezes.frozen
    late = [] if runtime.freezes.is_all_frozen else system_queries.count_late(connection, until)
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
            for name, one in waiting_by_queue(runtime, connection, None).items()
        ],
        usages=usages(runtime, connection),
        notifications=system_queries.count_notifications_by_status(connection, now - GIVEN_UP_WITHIN),
        went_back={one.which for one in find_told(runtime, now, connection)},
        refusals=runtime.refusals.count(connection),
        refused=[one.what for one in runtime.refusals.find(connection, now)],
    )


def redis_gauges(runtime: Runtime) -> RedisGauges:
    """Read the figures of Redis; raises RedisError."""
    transport = runtime.transport
    redis, queue = transport.redis, transport.control.name
    live, passes = telemetry.live_dispatchers(redis, queue), telemetry.read_passes(redis, queue)
    return RedisGauges(transport.count_armed(), len(live), _memory_of(redis), passes)


def _memory_of(redis: Redis) -> Memory | None:
    """Return how full Redis is; None if the provider, or the rights of this user, hide it."""
    try:
        return telemetry.read_memory(redis)
    except (ResponseError, KeyError):
        return None
