"""What metrics read: counts by namespace and status, and audit events in the order they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.dialect import dialect_of
from rqsched.store.tables import (
    HAS_FAILED_DELIVERY,
    IS_ACTIVE,
    IS_OPEN,
    IS_OPEN_DELIVERY,
    IS_OPEN_TARGET,
    WAITS_FOR_CODE,
    audit_events,
    deliveries,
    runs,
    schedules,
    targets,
)

Position = tuple[datetime, str, int]
"""Where a page of events starts: (recorded_at, schedule_uid, sequence) of the event before it."""
_POSITION = audit_events.c.recorded_at, audit_events.c.schedule_uid, audit_events.c.sequence


class RecordedEvent(NamedTuple):
    """One audit event, with what metrics need of its schedule and its run."""

    recorded_at: datetime
    """When it was recorded."""
    schedule_uid: str
    """The incarnation of the schedule it is about."""
    sequence: int
    """Its number in the schedule's history."""
    event_type: str
    """What happened."""
    payload: str
    """JSON."""
    workflow_run_id: str | None
    """The uid of the run it is about; None when it is about none."""
    namespace: str
    """The schedule's namespace."""
    kind: str | None
    """The kind of that run; None without a run."""
    due_at: datetime | None
    """When that run was due; None without a run."""

    @property
    def position(self) -> Position:
        """Where the page after this event starts."""
        return self.recorded_at, self.schedule_uid, self.sequence


def schedules_by_status(connection: Connection) -> list[tuple[str, str, int]]:
    """Count all schedules; returns (namespace, status, count)."""
    by = schedules.c.namespace, schedules.c.status
    return [tuple(row) for row in connection.execute(sa.select(*by, sa.func.count()).group_by(*by))]


def open_runs_by_status(connection: Connection) -> list[tuple[str, str, int]]:
    """Count the open runs; returns (namespace, status, count)."""
    by = schedules.c.namespace, runs.c.status
    statement = sa.select(*by, sa.func.count()).select_from(_runs_of_schedules()).where(IS_OPEN).group_by(*by)
    return [tuple(row) for row in connection.execute(statement)]


def open_targets_by_status(connection: Connection) -> list[tuple[str, str, int]]:
    """Count the targets of schedules' runs that have not ended; returns (namespace, status, count)."""
    by = schedules.c.namespace, targets.c.status
    joined = targets.join(schedules, schedules.c.uid == targets.c.schedule_uid)
    statement = sa.select(*by, sa.func.count()).select_from(joined).where(IS_OPEN_TARGET).group_by(*by)
    return [tuple(row) for row in connection.execute(statement)]


def blocked_runs(connection: Connection) -> list[tuple[str, int]]:
    """Count the pending runs whose code no worker had yet; returns (namespace, count)."""
    statement = (
        sa.select(schedules.c.namespace, sa.func.count()).select_from(_runs_of_schedules()).where(WAITS_FOR_CODE)
    )
    return [tuple(row) for row in connection.execute(statement.group_by(schedules.c.namespace))]


def overdue(connection: Connection, since: datetime) -> list[tuple[str, int, datetime]]:
    """Count active schedules due up to `since`; returns (namespace, count, the earliest time one was due)."""
    earliest = sa.func.min(schedules.c.due_at, type_=schedules.c.due_at.type)
    statement = (
        sa.select(schedules.c.namespace, sa.func.count(), earliest)
        .where(IS_ACTIVE, schedules.c.due_at <= since)
        .group_by(schedules.c.namespace)
    )
    return [tuple(row) for row in connection.execute(statement)]


def without_success(connection: Connection) -> list[tuple[str, int]]:
    """Count schedules that have been without a success for as long as they allow; returns (namespace, count)."""
    by = schedules.c.namespace
    statement = sa.select(by, sa.func.count()).where(schedules.c.overdue_since.is_not(None)).group_by(by)
    return [(row[0], row[1]) for row in connection.execute(statement)]


def notifications_by_status(connection: Connection, failed_since: datetime) -> list[tuple[str, str, int]]:
    """Count notifications that wait or were given up since an instant; returns (namespace, status, count)."""
    by = schedules.c.namespace, deliveries.c.status
    joined = deliveries.join(schedules, schedules.c.uid == deliveries.c.schedule_uid)
    found = sa.select(*by, sa.func.count()).select_from(joined).group_by(*by)
    is_failed = HAS_FAILED_DELIVERY & (deliveries.c.ended_at >= failed_since)
    return [tuple(row) for where in (IS_OPEN_DELIVERY, is_failed) for row in connection.execute(found.where(where))]


def events_after(connection: Connection, position: Position, limit: int) -> list[RecordedEvent]:
    """Read a page of audit events in the order they were recorded."""
    bound = [sa.literal(value, column.type) for value, column in zip(position, _POSITION, strict=True)]
    columns = audit_events.c
    joined = audit_events.join(schedules, schedules.c.uid == columns.schedule_uid).outerjoin(
        runs, runs.c.uid == columns.workflow_run_id
    )
    statement = (
        sa.select(*_POSITION, columns.event_type, columns.payload, columns.workflow_run_id)
        .add_columns(schedules.c.namespace, runs.c.kind, runs.c.due_at)
        .select_from(joined)
        .where(sa.tuple_(*_POSITION) > sa.tuple_(*bound))
        .order_by(*_POSITION)
        .limit(limit)
    )
    return [RecordedEvent(*row) for row in connection.execute(statement)]


def open_runs(connection: Connection, limit: int) -> dict[str, str]:
    """Read the namespaces of open runs, by uid."""
    statement = sa.select(runs.c.uid, schedules.c.namespace).select_from(_runs_of_schedules())
    return {row.uid: row.namespace for row in connection.execute(statement.where(IS_OPEN).limit(limit))}


def run_statuses(connection: Connection, uids: Sequence[str]) -> dict[str, str]:
    """Read the statuses of runs, by uid; purged ones are left out."""
    statement = sa.select(runs.c.uid, runs.c.status).where(dialect_of(connection).one_of(runs.c.uid, uids))
    return {row.uid: row.status for row in connection.execute(statement)}


def _runs_of_schedules() -> sa.Join:
    return runs.join(schedules, schedules.c.uid == runs.c.schedule_uid)
