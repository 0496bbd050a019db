"""Counts for metrics, by namespace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.model import RunStatus
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import (
    HAS_FAILED_DELIVERY,
    IS_ACTIVE,
    IS_FAILING,
    IS_LIVE,
    IS_OPEN,
    IS_OPEN_DELIVERY,
    IS_OPEN_TARGET,
    IS_OVERDUE,
    IS_UNFINISHED,
    WAITS_FOR_CODE,
    constant,
    deliveries,
    runs,
    schedules,
    targets,
)


def count_schedules_by_status(connection: Connection) -> list[tuple[str, str, int]]:
    """Count all schedules; returns (namespace, status, count)."""
    return _counted(connection, schedules, [schedules.c.status])


def count_open_runs_by_status(connection: Connection) -> list[tuple[str, str, int]]:
    """Count the open runs; returns (namespace, status, count)."""
    return _counted(connection, _with_schedules(runs), [runs.c.status], IS_OPEN)


def count_open_targets_by_status(connection: Connection) -> list[tuple[str, str, int]]:
    """Count the open targets, but not of fan-outs that were started by hand; returns (namespace, status, count)."""
    return _counted(connection, _with_schedules(targets), [targets.c.status], IS_OPEN_TARGET)


def count_blocked_runs(connection: Connection) -> list[tuple[str, int]]:
    """Count the blocked runs, which wait for a worker that has their workflow; returns (namespace, count)."""
    return _counted(connection, _with_schedules(runs), [], WAITS_FOR_CODE)


def count_long_runs(connection: Connection) -> list[tuple[str, int]]:
    """Count the running runs that were reported to take longer than expected; returns (namespace, count)."""
    is_running = IS_UNFINISHED & (runs.c.status == constant(RunStatus.RUNNING))
    return _counted(connection, _with_schedules(runs), [], is_running, runs.c.long_at.is_not(None))


def count_late(connection: Connection, until: datetime) -> list[tuple[str, int, datetime]]:
    """Count active schedules that are due by `until`; returns (namespace, count, the earliest due time)."""
    earliest = sa.func.min(schedules.c.due_at, type_=schedules.c.due_at.type)
    statement = sa.select(schedules.c.namespace, sa.func.count(), earliest).where(
        IS_ACTIVE, schedules.c.due_at <= until
    )
    return [tuple(row) for row in connection.execute(statement.group_by(schedules.c.namespace))]


def count_without_success(connection: Connection) -> list[tuple[str, int]]:
    """Count schedules that have been without a success for as long as they allow; returns (namespace, count)."""
    return _counted(connection, schedules, [], IS_OVERDUE, IS_LIVE)


def count_failing(connection: Connection) -> list[tuple[str, int]]:
    """Count active schedules whose newest runs all failed (`REPEATEDLY`); returns (namespace, count)."""
    return _counted(connection, schedules, [], IS_FAILING, IS_ACTIVE)


def count_notifications_by_status(connection: Connection, failed_since: datetime) -> list[tuple[str, str, int]]:
    """Count notifications that wait or that were given up since an instant; returns (namespace, status, count)."""
    source, by = _with_schedules(deliveries), [deliveries.c.status]
    has_failed = HAS_FAILED_DELIVERY, deliveries.c.ended_at >= failed_since
    return _counted(connection, source, by, IS_OPEN_DELIVERY) + _counted(connection, source, by, *has_failed)


def _counted(
    connection: Connection, source: sa.FromClause, by: Sequence[sa.Column[Any]], *where: sa.ColumnElement[bool]
) -> list[Any]:
    """Count rows by the namespace of their schedule and by the columns in `by`."""
    keys = schedules.c.namespace, *by
    statement = sa.select(*keys, sa.func.count()).select_from(source).where(*where).group_by(*keys)
    return [tuple(row) for row in connection.execute(statement)]


def _with_schedules(table: sa.Table) -> sa.Join:
    return table.join(schedules, schedules.c.uid == table.c.schedule_uid)


def namespaces_of_open_runs(connection: Connection, limit: int) -> dict[str, str]:
    """Read the namespaces of open runs, by the run's uid."""
    statement = sa.select(runs.c.uid, schedules.c.namespace).select_from(_with_schedules(runs))
    return {row.uid: row.namespace for row in connection.execute(statement.where(IS_OPEN).limit(limit))}


def statuses_of_runs(connection: Connection, uids: Sequence[str]) -> dict[str, str]:
    """Read the statuses of runs, by uid; purged runs are left out."""
    statement = sa.select(runs.c.uid, runs.c.status).where(dialect_of(connection).one_of(runs.c.uid, uids))
    return {row.uid: row.status for row in connection.execute(statement)}


class EndedRun(NamedTuple):
    """The figures of a run that has ended."""

    uid: str
    """Its uid."""
    status: str
    """How it ended."""
    kind: str
    """The origin of the run."""
    queue: str | None
    """The run's own queue; None for the default queue."""
    workflow: str
    """The workflow that it executed."""
    attempt: int
    """The number of its last attempt."""
    due_at: datetime | None
    """When the run was due to start."""
    queued_at: datetime | None
    """When its last attempt was put on its queue."""
    started_at: datetime | None
    """When its last attempt began; None if none began."""
    ended_at: datetime | None
    """When the run ended; None if the run has begun again since."""


def ended_runs(connection: Connection, uids: Sequence[str]) -> list[EndedRun]:
    """Read runs that have ended, by their uids."""
    statement = sa.select(*(runs.c[name] for name in EndedRun._fields))
    found = statement.where(dialect_of(connection).one_of(runs.c.uid, uids))
    return [EndedRun(*row) for row in connection.execute(found)]
