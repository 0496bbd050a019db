"""SQL for deleting rows beyond the retention.

Every function works inside the caller's transaction. The rows of a schedule are deleted under its lock. So two
processes never prune it at once, and no backfill or retry reads a run that is being deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.pruning.decide import Oldest, RunMark
from rqsched.kernel.decide.model import OPEN, TASK, RunKind, RunStatus, ScheduleStatus
from rqsched.kernel.queries.pages import page_by_uid
from rqsched.kernel.store.changes import BELONGINGS
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import (
    IS_OPEN_TARGET,
    IS_OWED,
    audit_events,
    backfills,
    deliveries,
    runs,
    schedules,
    targets,
    upstream_ends,
)


def oldest(
    connection: Connection, *, namespace: str | None, after: str | None, limit: int, unless_due_by: datetime | None
) -> tuple[list[Oldest], str | None]:
    """Read a page of schedules, including deleted ones, with their oldest rows. Also return the next cursor.

    Schedules that are due by `unless_due_by` are left out. Each subquery reads one row of an index.
    """
    run, event = runs.c.schedule_uid == schedules.c.uid, audit_events.c.schedule_uid == schedules.c.uid
    columns = [schedules.c[name] for name in ("uid", "policies", "run_number", "event_sequence")]
    statement = sa.select(
        *columns,
        _first(runs.c.number, runs.c.number, run),
        _first(runs.c.created_at, runs.c.number, run),
        _first(audit_events.c.sequence, audit_events.c.sequence, event),
        _first(audit_events.c.recorded_at, audit_events.c.sequence, event),
        _first(backfills.c.created_at, backfills.c.uid, backfills.c.schedule_uid == schedules.c.uid),
        _first(deliveries.c.created_at, deliveries.c.uid, deliveries.c.schedule_uid == schedules.c.uid),
        schedules.c.due_at,
        schedules.c.managed_by,
        schedules.c.status,
        schedules.c.updated_at,
    )
    if namespace is not None:
        statement = statement.where(schedules.c.namespace == namespace)
    rows, cursor = page_by_uid(connection, statement, schedules.c.uid, after, limit)
    idle = [row for row in rows if unless_due_by is None or row.due_at is None or row.due_at > unless_due_by]
    return [_oldest_of(row) for row in idle], cursor


def _oldest_of(row: Any) -> Oldest:
    ended_at = row.updated_at if row.status in _HAVE_ENDED else None
    return Oldest(*[*row[:8], min(filter(None, row[8:10]), default=None), row.managed_by == TASK, ended_at])


def delete_tasks(connection: Connection, uids: Sequence[str], *, is_dry: bool) -> int:
    """Delete tasks with their rows; returns how many. Tasks that have an open run, or are locked, stay."""
    one_of = dialect_of(connection).one_of
    ended = sa.select(schedules.c.uid).where(one_of(schedules.c.uid, uids), schedules.c.status.in_(_HAVE_ENDED))
    held = connection.execute(ended if is_dry else ended.with_for_update(skip_locked=True)).scalars().all()
    # Read this after the lock, so that a run that was retried just before the lock is seen as open.
    of_open = sa.select(runs.c.schedule_uid).where(one_of(runs.c.schedule_uid, held), runs.c.status.in_(_ARE_OPEN))
    gone = sorted({*held} - {*connection.execute(of_open).scalars()})
    for table in () if is_dry else BELONGINGS:
        connection.execute(sa.delete(table).where(one_of(table.c.schedule_uid, gone)))
    if not is_dry:
        connection.execute(sa.delete(schedules).where(one_of(schedules.c.uid, gone)))
    return len(gone)


_HAVE_ENDED = (ScheduleStatus.DONE.value, ScheduleStatus.DEAD.value, ScheduleStatus.DELETED.value)
_ARE_OPEN = [status.value for status in OPEN]


def _first(
    column: sa.ColumnElement[Any], order: sa.ColumnElement[Any], where: sa.ColumnElement[bool]
) -> sa.ScalarSelect[Any]:
    return sa.select(column).where(where).order_by(order).limit(1).scalar_subquery()


def count_schedules(connection: Connection, namespace: str | None) -> int:
    """Count the schedules of a namespace or of all namespaces, including deleted ones."""
    statement = sa.select(sa.func.count()).select_from(schedules)
    if namespace is not None:
        statement = statement.where(schedules.c.namespace == namespace)
    return int(connection.execute(statement).scalar_one())


def is_backfilling(connection: Connection, schedule_uid: str) -> bool:
    """Return whether a backfill of a schedule is running."""
    found = sa.exists().where(backfills.c.schedule_uid == schedule_uid, backfills.c.status == "running")
    return bool(connection.execute(sa.select(found)).scalar_one())


def created_at(connection: Connection, schedule_uid: str, number: int) -> datetime | None:
    """Return when the first run whose number is at least `number` was created; None without such a run."""
    found = sa.select(runs.c.created_at).where(runs.c.schedule_uid == schedule_uid, runs.c.number >= number)
    at: datetime | None = connection.execute(found.order_by(runs.c.number).limit(1)).scalar_one_or_none()
    return at


def oldest_runs(connection: Connection, schedule_uid: str, after: int, limit: int) -> list[RunMark]:
    """Read the first runs of a schedule whose number is above `after`."""
    mine = targets.c.run_uid == runs.c.uid
    names = ("uid", "number", "kind", "status", "occurrence_at", "created_at", "ended_at")
    has_some = sa.exists().where(mine), sa.exists().where(mine, IS_OPEN_TARGET)
    statement = sa.select(*(runs.c[name] for name in names), *has_some)
    found = statement.where(runs.c.schedule_uid == schedule_uid, runs.c.number > after)
    rows = connection.execute(found.order_by(runs.c.number).limit(limit))
    return [
        RunMark(row[0], row[1], RunKind(row[2]), RunStatus(row[3]), *row[4:7], bool(row[7]), bool(row[8]))
        for row in rows
    ]


def succeeded_after(connection: Connection, schedule_uid: str, number: int) -> bool:
    """Return whether a run with a higher number succeeded."""
    is_later = runs.c.schedule_uid == schedule_uid, runs.c.number > number
    found = sa.exists().where(*is_later, runs.c.status == RunStatus.SUCCEEDED.value)
    return bool(connection.execute(sa.select(found)).scalar_one())


def count_targets(connection: Connection, run_uids: Sequence[str]) -> int:
    """Count the targets of runs."""
    return _count(connection, targets, (dialect_of(connection).one_of(targets.c.run_uid, run_uids),))


def delete_targets(connection: Connection, run_uids: Sequence[str], limit: int) -> int:
    """Delete up to `limit` targets of runs; returns how many."""
    some = sa.select(targets.c.uid).where(dialect_of(connection).one_of(targets.c.run_uid, run_uids)).limit(limit)
    return connection.execute(sa.delete(targets).where(targets.c.uid.in_(some))).rowcount


def delete_runs(connection: Connection, schedule_uid: str, uids: Sequence[str], pruned_to: datetime | None) -> None:
    """Delete runs of a locked schedule, and store their newest occurrence in the schedule's row."""
    connection.execute(sa.delete(runs).where(dialect_of(connection).one_of(runs.c.uid, uids)))
    # A deleted run cannot end again, so its rows for downstream schedules are deleted, except rows that a downstream
    # has not followed yet.
    is_one = dialect_of(connection).one_of(upstream_ends.c.run_uid, uids)
    connection.execute(sa.delete(upstream_ends).where(is_one, ~IS_OWED))
    if pruned_to is None:  # none of these runs had an occurrence
        return
    is_behind = schedules.c.pruned_to.is_(None) | (schedules.c.pruned_to < pruned_to)
    moved = sa.update(schedules).where(schedules.c.uid == schedule_uid, is_behind)
    connection.execute(moved.values(pruned_to=pruned_to))


def oldest_events(connection: Connection, schedule_uid: str, after: int, limit: int) -> list[tuple[int, datetime]]:
    """Read the sequence and time of a schedule's first audit events whose sequence is above `after`."""
    columns = audit_events.c.sequence, audit_events.c.recorded_at
    mine = audit_events.c.schedule_uid == schedule_uid, audit_events.c.sequence > after
    rows = connection.execute(sa.select(*columns).where(*mine).order_by(audit_events.c.sequence).limit(limit))
    return [(row.sequence, row.recorded_at) for row in rows]


def delete_events(connection: Connection, schedule_uid: str, below: int) -> int:
    """Delete the audit events of a locked schedule below a sequence; returns how many."""
    mine = audit_events.c.schedule_uid == schedule_uid, audit_events.c.sequence < below
    return connection.execute(sa.delete(audit_events).where(*mine)).rowcount


def delete_backfills(connection: Connection, schedule_uid: str, before: datetime, limit: int) -> int:
    """Delete backfills of a locked schedule that ended before an instant; returns how many."""
    return _delete_some(connection, backfills, _ended_backfills(schedule_uid, before), limit)


def delete_deliveries(connection: Connection, schedule_uid: str, before: datetime, limit: int) -> int:
    """Delete deliveries of a locked schedule that ended before an instant; returns how many."""
    return _delete_some(connection, deliveries, _ended_deliveries(schedule_uid, before), limit)


def delete_loose_targets(connection: Connection, before: datetime, limit: int) -> int:
    """Delete the targets of fan-outs without a schedule, if they ended before an instant. Locked rows are skipped."""
    return _delete_some(connection, targets, _loose_targets(before), limit)


def count_others(connection: Connection, schedule_uid: str, before: datetime) -> dict[str, int]:
    """Count the backfills and deliveries of a schedule that ended before an instant."""
    return {
        "backfills": _count(connection, backfills, _ended_backfills(schedule_uid, before)),
        "deliveries": _count(connection, deliveries, _ended_deliveries(schedule_uid, before)),
    }


def count_loose_targets(connection: Connection, before: datetime) -> int:
    """Count the targets of fan-outs without a schedule that ended before an instant."""
    return _count(connection, targets, _loose_targets(before))


_Where = tuple[sa.ColumnElement[bool], ...]


def _ended_backfills(schedule_uid: str, before: datetime) -> _Where:
    ended = backfills.c.status != "running", backfills.c.updated_at < before
    return (backfills.c.schedule_uid == schedule_uid, *ended)


def _ended_deliveries(schedule_uid: str, before: datetime) -> _Where:
    return deliveries.c.schedule_uid == schedule_uid, deliveries.c.ended_at < before


def _loose_targets(before: datetime) -> _Where:
    return targets.c.schedule_uid.is_(None), targets.c.ended_at < before


def _count(connection: Connection, table: sa.Table, where: _Where) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table).where(*where)).scalar_one())


def _delete_some(connection: Connection, table: sa.Table, where: _Where, limit: int) -> int:
    some = sa.select(table.c.uid).where(*where).limit(limit).with_for_update(skip_locked=True)
    return connection.execute(sa.delete(table).where(table.c.uid.in_(some))).rowcount
