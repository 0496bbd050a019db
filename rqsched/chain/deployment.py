"""What can be wrong about how processes are deployed: clocks that differ, databases that are mixed up. Only reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis

from rqsched.chain.runtime import Runtime
from rqsched.clock import SystemClock
from rqsched.store import schema_version
from rqsched.transport import telemetry

SKEW = timedelta(seconds=1)
"""Clocks that differ by more are a warning."""


def clock_skews(runtime: Runtime) -> dict[str, timedelta]:
    """Return by how much the clocks of Redis and SQL are ahead of this host's; SQLite has none of its own."""
    theirs = {"Redis": _redis_time(runtime.transport.redis)}
    host = SystemClock().now()
    if runtime.database.dialect.has_server:
        theirs["SQL"] = runtime.database.now(host)
    return {name: at - host for name, at in theirs.items()}


def _redis_time(redis: Redis) -> datetime:
    answer: Any = redis.time()
    return datetime.fromtimestamp(answer[0] + answer[1] / 1_000_000, UTC)


def database_ids(runtime: Runtime) -> tuple[str | None, str | None]:
    """Return the id of the database that Redis knows and that of this one; None where there is none yet."""
    has_tables = schema_version.status(runtime.database).current is not None
    return runtime.transport.database_id(), runtime.database_id() if has_tables else None


def foreign_workers(runtime: Runtime) -> list[str]:
    """Return the workers with another database that were given jobs of this one lately, on every Redis there is."""
    redises = [runtime.transport.redis, *runtime.transport.connections.values()]
    mine, now = runtime.database_id(), runtime.now()
    return sorted({name for redis in redises for name in telemetry.foreign_workers(redis, mine, now=now)})
