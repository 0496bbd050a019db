"""What stands now, for metrics: schedules and open runs by status, what is overdue, and what Redis holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from redis import Redis
from redis.exceptions import RedisError

from rqsched.chain.runtime import Runtime
from rqsched.store import metrics
from rqsched.store.database import Connection
from rqsched.transport import telemetry


@dataclass
class Standing:
    """One look at SQL."""

    schedules: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By namespace and status."""
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Open ones, by namespace and status."""
    overdue: Counter[str] = field(default_factory=Counter)
    """Active schedules due longer than the grace, by namespace."""
    most_overdue: dict[str, float] = field(default_factory=dict)
    """Seconds since the earliest of them was due, by namespace."""


@dataclass(frozen=True)
class Transported:
    """One look at Redis."""

    scheduled: int
    """Links in the scheduled set."""
    dispatchers: int
    """Dispatchers that show that they live."""
    reconcile: dict[str, float]
    """The sums over all reconcile passes."""


def look_at_sql(runtime: Runtime) -> Standing:
    """Count what stands, on one snapshot."""
    now = runtime.now()
    return runtime.database.read(lambda connection: _standing(connection, now, now - runtime.settings.grace))


def _standing(connection: Connection, now: datetime, overdue_since: datetime) -> Standing:
    found = Standing()
    for namespace, status, count in metrics.schedules_by_status(connection):
        found.schedules[namespace, status] = count
    for namespace, status, count in metrics.open_runs_by_status(connection):
        found.runs[namespace, status] = count
    for namespace, count, earliest in metrics.overdue(connection, overdue_since):
        found.overdue[namespace] = count
        found.most_overdue[namespace] = (now - earliest).total_seconds()
    return found


def look_at_redis(runtime: Runtime) -> Transported | None:
    """Count what Redis holds; None while it does not answer."""
    redis: Redis = runtime.transport.redis
    queue = runtime.transport.control
    try:
        scheduled = int(redis.zcard(runtime.transport.scheduled_key))
        living = len(telemetry.live_dispatchers(redis, queue.name))
        return Transported(scheduled, living, telemetry.read_passes(redis, queue.name))
    except RedisError:
        return None
