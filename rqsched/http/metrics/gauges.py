"""Current values, for metrics: schedules, open runs and targets by status, overdue schedules, what Redis contains."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from redis import Redis
from redis.exceptions import RedisError

from rqsched.chain.health import GIVEN_UP_WITHIN, overdue_until
from rqsched.chain.quotas import usages
from rqsched.chain.runtime import Runtime
from rqsched.core.quota import Usage
from rqsched.store import system_queries
from rqsched.store.database import Connection
from rqsched.transport import telemetry


@dataclass
class DatabaseGauges:
    """What one read of SQL found."""

    schedules: Counter[tuple[str, str]] = field(default_factory=Counter)
    """All schedules, by namespace and status."""
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Open runs, by namespace and status."""
    targets: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Open targets of fan-outs, by namespace and status."""
    blocked: Counter[str] = field(default_factory=Counter)
    """Pending runs whose code no worker had yet, by namespace."""
    overdue: Counter[str] = field(default_factory=Counter)
    """Active schedules that should have fired, by namespace."""
    most_overdue: dict[str, float] = field(default_factory=dict)
    """Seconds since the earliest of them was due, by namespace."""
    without_success: Counter[str] = field(default_factory=Counter)
    """Schedules without a success for as long as they allow, by namespace."""
    usages: list[Usage] = field(default_factory=list)
    """What namespaces with a quota hold."""
    notifications: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Notifications that wait, and those given up within a day, by namespace and status."""


@dataclass(frozen=True)
class RedisGauges:
    """What one read of Redis found."""

    scheduled: int
    """Links in the scheduled set."""
    dispatchers: int
    """Live dispatchers."""
    reconcile: dict[str, float]
    """The sums over all reconcile passes."""


def read_database(runtime: Runtime) -> DatabaseGauges:
    """Count schedules, open runs and open targets, in one transaction."""
    now = runtime.now()
    return runtime.database.read(lambda connection: _database_gauges(runtime, connection, now))


def _database_gauges(runtime: Runtime, connection: Connection, now: datetime) -> DatabaseGauges:
    found = DatabaseGauges()
    for namespace, status, count in system_queries.count_schedules_by_status(connection):
        found.schedules[namespace, status] = count
    for namespace, status, count in system_queries.count_open_runs_by_status(connection):
        found.runs[namespace, status] = count
    for namespace, status, count in system_queries.count_open_targets_by_status(connection):
        found.targets[namespace, status] = count
    for namespace, count in system_queries.count_blocked_runs(connection):
        found.blocked[namespace] = count
    for namespace, count, earliest in system_queries.count_overdue(connection, overdue_until(runtime)):
        found.overdue[namespace] = count
        found.most_overdue[namespace] = (now - earliest).total_seconds()
    found.without_success.update(dict(system_queries.count_without_success(connection)))
    found.usages = usages(runtime, connection)
    for namespace, status, count in system_queries.count_notifications_by_status(connection, now - GIVEN_UP_WITHIN):
        found.notifications[namespace, status] = count
    return found


def read_redis(runtime: Runtime) -> RedisGauges | None:
    """Count links and dispatchers; None while Redis does not respond."""
    redis: Redis = runtime.transport.redis
    queue = runtime.transport.control
    try:
        scheduled = runtime.transport.count_armed()
        live = len(telemetry.live_dispatchers(redis, queue.name))
        return RedisGauges(scheduled, live, telemetry.read_passes(redis, queue.name))
    except RedisError:
        return None
