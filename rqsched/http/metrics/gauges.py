"""What stands now, for metrics: schedules and open runs by status, what is overdue, and what Redis holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.engine import Connection

from rqsched.chain.runtime import Runtime
from rqsched.store.tables import IS_ACTIVE, IS_OPEN, runs, schedules
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
    """The tally of reconcile passes."""


def look_at_sql(runtime: Runtime) -> Standing:
    """Count what stands, on one snapshot."""
    now = runtime.now()
    return runtime.database.read(lambda connection: _standing(connection, now, now - runtime.settings.grace))


def _standing(connection: Connection, now: datetime, overdue_since: datetime) -> Standing:
    count = sa.func.count()
    by_status = sa.select(schedules.c.namespace, schedules.c.status, count).group_by(
        schedules.c.namespace, schedules.c.status
    )
    joined = runs.join(schedules, schedules.c.uid == runs.c.schedule_uid)
    by_run = sa.select(schedules.c.namespace, runs.c.status, count).select_from(joined).where(IS_OPEN)
    late = (
        sa.select(schedules.c.namespace, count, sa.func.min(schedules.c.due_at, type_=schedules.c.due_at.type))
        .where(IS_ACTIVE, schedules.c.due_at <= overdue_since)
        .group_by(schedules.c.namespace)
    )
    found = Standing()
    for namespace, status, number in connection.execute(by_status):
        found.schedules[namespace, status] = number
    for namespace, status, number in connection.execute(by_run.group_by(schedules.c.namespace, runs.c.status)):
        found.runs[namespace, status] = number
    for namespace, number, earliest in connection.execute(late):
        found.overdue[namespace] = number
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
