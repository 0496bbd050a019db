"""Deleting for good: a schedule with everything that belongs to it, and history that is old enough."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.changes import lock_one
from rqsched.store.tables import audit_events, backfills, idempotency_keys, runs, schedules, targets

_BELONGINGS = (runs, targets, backfills, audit_events, idempotency_keys)


def purge_schedule(connection: Connection, uid: str) -> None:
    """Delete a schedule's row with its runs, targets, backfills, audit events and idempotency keys."""
    lock_one(connection, uid)
    for table in _BELONGINGS:
        connection.execute(sa.delete(table).where(table.c.schedule_uid == uid))
    connection.execute(sa.delete(schedules).where(schedules.c.uid == uid))


def prune_history(connection: Connection, before: datetime, namespace: str | None) -> int:
    """Delete audit events recorded before an instant, and targets that ended before it; returns how many events.

    `namespace` None prunes every namespace.
    """
    events = sa.delete(audit_events).where(audit_events.c.recorded_at < before)
    ended = sa.delete(targets).where(targets.c.ended_at < before)
    if namespace is not None:
        mine = sa.select(schedules.c.uid).where(schedules.c.namespace == namespace)
        events = events.where(audit_events.c.schedule_uid.in_(mine))
        ended = ended.where(targets.c.schedule_uid.in_(mine))
    connection.execute(ended)
    return connection.execute(events).rowcount
