"""What the dashboard reads beyond single schedules and runs. Every query is bounded, whatever is stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.audit import MISSED, SKIPPED, AuditRecord
from rqsched.core.ids import first_uid_at
from rqsched.core.model import Run, RunStatus, Schedule, ScheduleStatus
from rqsched.store.dialect import dialect_of
from rqsched.store.listing import count_schedules, to_record
from rqsched.store.rows import RUN_COLUMNS, SELECT_SCHEDULES, to_run, to_schedule
from rqsched.store.schedule_filters import Filters, has_status
from rqsched.store.schedule_search import MOST_LOOKED_AT, search_schedules
from rqsched.store.tables import (
    HAS_FAILED,
    IS_ACTIVE,
    IS_FAILING,
    IS_LATE,
    IS_LIVE,
    IS_OCCURRENCE,
    IS_UNFINISHED,
    RESTING,
    WAITS_FOR_CODE,
    audit_events,
    constant,
    runs,
    schedules,
)


class Order(StrEnum):
    """In which order schedules are listed; each has an index."""

    ID = "id"
    """By id."""
    NEXT = "next"
    """By when they fire next; only those that do."""
    NEWEST = "newest"
    """The newest first."""

    @property
    def sort(self) -> str:
        """Its name among SORTS."""
        return "-created" if self is Order.NEWEST else self.value

    def read(self, text: str) -> str | datetime:
        """Read a position; raises ValueError."""
        return text if self is Order.ID else datetime.fromisoformat(text)


class RunOutline(NamedTuple):
    """One run, as much of it as a chart needs."""

    uid: str
    """Its uid."""
    schedule_uid: str
    """Its schedule's incarnation."""
    number: int
    """Its number within the schedule."""
    status: str
    """Where it is in its life."""
    kind: str
    """What asked for it."""
    occurrence_at: datetime
    """The nominal time."""
    due_at: datetime | None
    """When it was to start."""
    started_at: datetime | None
    """When the newest attempt began."""
    ended_at: datetime | None
    """When it ended."""
    attempt: int
    """The newest attempt."""


_OUTLINE = [runs.c[name] for name in RunOutline._fields]


def newest_runs(connection: Connection, uids: Sequence[str], count: int) -> dict[str, list[RunOutline]]:
    """Read the newest runs of each schedule, oldest first, by the schedule's uid."""
    if not uids:
        return {}
    each = [
        sa.select(
            sa.select(*_OUTLINE)
            .where(runs.c.schedule_uid == uid)
            .order_by(runs.c.number.desc())
            .limit(count)
            .subquery()
        )
        for uid in uids
    ]
    found: dict[str, list[RunOutline]] = {uid: [] for uid in uids}
    for row in connection.execute(sa.union_all(*each)):
        found[row.schedule_uid].append(RunOutline(*row))
    return {uid: sorted(outlines, key=lambda run: run.number) for uid, outlines in found.items()}


def runs_within(
    connection: Connection, uids: Sequence[str], start: datetime, until: datetime | None, count: int
) -> dict[str, list[RunOutline]]:
    """Read the runs of each schedule that lie in [start, until), of the `count` newest up to then; oldest first.

    `until` None is now. Runs are numbered in the order they were made, so the number of the last occurrence before
    `until` is where to begin: a look far back costs what one at now does.
    """
    found: dict[str, list[RunOutline]] = {uid: [] for uid in uids}
    if not uids:
        return found
    each = [sa.select(_newest_up_to(uid, until, count)) for uid in uids]
    for row in connection.execute(sa.union_all(*each)):
        run = RunOutline(*row)
        is_before = run.ended_at is not None and run.ended_at < start
        if not is_before and (until is None or _begin(run) < until):
            found[run.schedule_uid].append(run)
    return {uid: sorted(outlines, key=_begin) for uid, outlines in found.items()}


def _begin(run: RunOutline) -> datetime:
    return run.started_at or run.due_at or run.occurrence_at


def _newest_up_to(uid: str, until: datetime | None, count: int) -> sa.Subquery:
    statement = sa.select(*_OUTLINE).where(runs.c.schedule_uid == uid)
    if until is not None:
        last = (
            sa.select(runs.c.number)
            .where(runs.c.schedule_uid == uid, IS_OCCURRENCE, runs.c.occurrence_at < until)
            .order_by(runs.c.occurrence_at.desc())
            .limit(1)
        )
        statement = statement.where(runs.c.number <= sa.func.coalesce(last.scalar_subquery(), 0) + count // 2)
    return statement.order_by(runs.c.number.desc()).limit(count).subquery()


class Timing(NamedTuple):
    """When a run was due and started, whether it has ended, and where."""

    queue: str | None
    """The queue it names; None for the default."""
    status: str
    """Where it is in its life."""
    kind: str
    """What asked for it."""
    attempt: int
    """The newest attempt."""
    due_at: datetime | None
    """When it was to start."""
    started_at: datetime | None
    """When the newest attempt began."""
    has_ended: bool
    """Whether it has ended."""


_TIMING = [*(runs.c[name] for name in Timing._fields[:-1]), runs.c.ended_at.is_not(None)]


def newest_timings(connection: Connection, namespace: str, start: datetime, most: int) -> tuple[list[Timing], datetime]:
    """Read the runs of a namespace among the `most` newest of all since `start`; also return since when these are."""
    # Uids begin with the time: the primary key is in order of creation.
    newest = sa.select(runs.c.uid, runs.c.created_at).where(runs.c.uid >= first_uid_at(start))
    newest = newest.order_by(runs.c.uid.desc())
    first = connection.execute(newest.offset(most - 1).limit(1)).first()
    statement = (
        sa.select(*_TIMING)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(runs.c.uid.in_(sa.select(newest.limit(most).subquery().c.uid)), schedules.c.namespace == namespace)
        .order_by(runs.c.uid.desc())
    )
    return [
        Timing(*row) for row in connection.execute(statement).all()
    ], first.created_at if first is not None else start


def waiting_by_queue(connection: Connection, namespace: str, most: int) -> dict[str | None, int]:
    """Count the pending runs of a namespace by the queue they name, among the `most` oldest of all."""
    oldest = (
        sa.select(runs.c.uid, runs.c.queue, runs.c.schedule_uid)
        .where(IS_UNFINISHED, runs.c.status == constant(RunStatus.PENDING), runs.c.connection.is_(None))
        .order_by(runs.c.uid)
        .limit(most)
        .subquery()
    )
    statement = (
        sa.select(oldest.c.queue, sa.func.count())
        .join(schedules, schedules.c.uid == oldest.c.schedule_uid)
        .where(schedules.c.namespace == namespace)
        .group_by(oldest.c.queue)
    )
    return {row[0]: row[1] for row in connection.execute(statement)}


def blocked_runs(connection: Connection, namespace: str, limit: int) -> list[tuple[Schedule, str | None]]:
    """Read why runs of a namespace are blocked, each with its schedule, longest first."""
    owner = dialect_of(connection).unindexed(schedules.c.namespace)
    statement = (
        SELECT_SCHEDULES.add_columns(runs.c.blocked_reason)
        .join(runs, runs.c.schedule_uid == schedules.c.uid)
        .where(owner == namespace, WAITS_FOR_CODE)
        .order_by(runs.c.blocked_at, runs.c.uid)
        .limit(limit)
    )
    return [(to_schedule(row[:-1]), row[-1]) for row in connection.execute(statement)]


def failed_since(connection: Connection, namespace: str, since: datetime, limit: int) -> list[tuple[str, Run]]:
    """Read the runs of a namespace that failed or were lost since, newest first, each with its schedule's id."""
    owner = dialect_of(connection).unindexed(schedules.c.namespace)
    statement = (
        sa.select(*RUN_COLUMNS, schedules.c.schedule_id)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(HAS_FAILED, runs.c.ended_at >= since, owner == namespace)
        .order_by(runs.c.ended_at.desc(), runs.c.uid.desc())
        .limit(limit)
    )
    return [(row[-1], to_run(row[:-1])) for row in connection.execute(statement)]


def failing(connection: Connection, namespace: str, limit: int) -> list[Schedule]:
    """Read the active schedules of a namespace whose newest runs failed one after the other (`REPEATEDLY`)."""
    statement = (
        SELECT_SCHEDULES.where(schedules.c.namespace == namespace, IS_FAILING, IS_ACTIVE)
        .order_by(schedules.c.consecutive_failures.desc(), schedules.c.uid)
        .limit(limit)
    )
    return [to_schedule(row) for row in connection.execute(statement)]


def unsuccessful(connection: Connection, namespace: str, limit: int) -> list[Schedule]:
    """Read the schedules of a namespace that have had no success for as long as they allow, longest first."""
    statement = (
        SELECT_SCHEDULES.where(schedules.c.namespace == namespace, IS_LATE, IS_LIVE)
        .order_by(schedules.c.overdue_since, schedules.c.uid)
        .limit(limit)
    )
    return [to_schedule(row) for row in connection.execute(statement)]


def outcomes(connection: Connection, schedule_uid: str, limit: int) -> list[tuple[datetime, str]]:
    """Read when the newest runs of a schedule were decided, and their status."""
    statement = (
        sa.select(runs.c.created_at, runs.c.status)
        .where(runs.c.schedule_uid == schedule_uid)
        .order_by(runs.c.number.desc())
        .limit(limit)
    )
    return [(row.created_at, row.status) for row in connection.execute(statement)]


def skips_since(connection: Connection, uids: Sequence[str], start: datetime, count: int) -> list[AuditRecord]:
    """Read the skips and misses recorded since `start`, of the `count` newest events of each schedule."""
    each = [_skips_among(_newest_of(uid).limit(count).subquery(), start) for uid in uids]
    return [to_record(row) for row in connection.execute(sa.union_all(*each))] if each else []


def newest_skips(connection: Connection, schedule_uid: str, count: int, limit: int) -> list[AuditRecord]:
    """Read the newest skips and misses of a schedule, of its `count` newest events; the newest first."""
    among = _newest_of(schedule_uid).limit(count).subquery()
    statement = _skips_among(among).order_by(among.c.sequence.desc()).limit(limit)
    return [to_record(row) for row in connection.execute(statement)]


def _newest_of(uid: str) -> sa.Select[Any]:
    columns = audit_events.c
    return sa.select(audit_events).where(columns.schedule_uid == uid).order_by(columns.sequence.desc())


def _skips_among(events: sa.Subquery, start: datetime | None = None) -> sa.Select[Any]:
    found = sa.select(events).where(events.c.event_type.in_([SKIPPED, MISSED]))
    return found if start is None else found.where(events.c.recorded_at >= start)


def find_run_in(connection: Connection, namespace: str, uid: str) -> tuple[Schedule, Run] | None:
    """Read a run with its schedule; None outside the namespace."""
    row = connection.execute(
        sa.select(*RUN_COLUMNS)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(runs.c.uid == uid, schedules.c.namespace == namespace)
    ).first()
    if row is None:
        return None
    run = to_run(row)
    owner = connection.execute(SELECT_SCHEDULES.where(schedules.c.uid == run.schedule_uid)).one()
    return to_schedule(owner), run


def schedules_of_runs(connection: Connection, namespace: str, uids: Sequence[str]) -> dict[str, str]:
    """Return the id of the schedule of each run that is one of the namespace, by the run's uid."""
    statement = (
        sa.select(runs.c.uid, schedules.c.schedule_id)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(runs.c.uid.in_(uids), schedules.c.namespace == namespace)
    )
    return {row.uid: row.schedule_id for row in connection.execute(statement)} if uids else {}


def overdue_schedules(connection: Connection, namespace: str, since: datetime, limit: int) -> list[Schedule]:
    """Read the active schedules of a namespace that were due before `since`, the earliest first."""
    owner = dialect_of(connection).unindexed(schedules.c.namespace)
    statement = (
        SELECT_SCHEDULES.where(IS_ACTIVE, schedules.c.due_at <= since, owner == namespace)
        .order_by(schedules.c.due_at, schedules.c.uid)
        .limit(limit)
    )
    return [to_schedule(row) for row in connection.execute(statement)]


def count_by_status(connection: Connection, namespace: str, most: int) -> dict[str, int]:
    """Count the schedules of a namespace in each status, each up to `most`."""
    is_named, owner = not dialect_of(connection).has_statistics, schedules.c.namespace == namespace
    exceptions = [
        _count_up_to(connection, most, owner, has_status((status,), is_named=is_named))
        for status in (*RESTING, ScheduleStatus.DELETED)
    ]
    active = _count_active_among_some(connection, namespace, most)
    if active < most and max(exceptions) >= most:  # what is active may be far behind them: no row of theirs is read
        others = count_schedules(connection, Filters(namespace=namespace, statuses=_NOT_ACTIVE))
        active = max(0, _count_up_to(connection, others + most, owner) - others)
    return {"active": active} | {status.value: count for status, count in zip(RESTING, exceptions, strict=False)}


_LOOKED_AT = 5
"""Times as many schedules as are counted are looked at: all of them where no other status has as many."""


def _count_active_among_some(connection: Connection, namespace: str, most: int) -> int:
    some = sa.select(schedules.c.status).where(schedules.c.namespace == namespace).limit(_LOOKED_AT * most).subquery()
    return _count_up_to(connection, most, some.c.status == constant(ScheduleStatus.ACTIVE))


_NOT_ACTIVE = tuple(status for status in ScheduleStatus if status is not ScheduleStatus.ACTIVE)


def _count_up_to(connection: Connection, most: int, *conditions: sa.ColumnElement[bool]) -> int:
    """Count the rows of what the conditions are about."""
    some: sa.Select[tuple[int]] = sa.select(sa.literal_column("1")).where(*conditions)
    counted = sa.select(sa.func.count()).select_from(some.limit(most).subquery())
    return connection.execute(counted).scalar_one()


def newest_events(connection: Connection, schedule_uid: str, before: int | None, limit: int) -> list[AuditRecord]:
    """Read audit events of a schedule newest first, those before a sequence when one is given."""
    statement = _newest_of(schedule_uid)
    if before is not None:
        statement = statement.where(audit_events.c.sequence < before)
    return [to_record(row) for row in connection.execute(statement.limit(limit))]


def neighbours(connection: Connection, schedule_uid: str, number: int) -> tuple[RunOutline | None, RunOutline | None]:
    """Read the runs of a schedule before and after the one of a number; None where there is none (any more)."""
    of_schedule, column = sa.select(*_OUTLINE).where(runs.c.schedule_uid == schedule_uid), runs.c.number
    before = of_schedule.where(column < number).order_by(column.desc())
    after = of_schedule.where(column > number).order_by(column.asc())
    earlier, later = (
        [RunOutline(*row) for row in connection.execute(statement.limit(1))] for statement in (before, after)
    )
    return next(iter(earlier), None), next(iter(later), None)


def events_of_run(connection: Connection, schedule_uid: str, run_uid: str, limit: int) -> list[AuditRecord]:
    """Read the audit events of a schedule that are about one run, in order."""
    columns = audit_events.c
    statement = (
        sa.select(audit_events)
        .where(columns.schedule_uid == schedule_uid, columns.workflow_run_id == run_uid)
        .order_by(columns.sequence)
        .limit(limit)
    )
    return [to_record(row) for row in connection.execute(statement)]


def namespaces(connection: Connection, most: int) -> list[str]:
    """Return the namespaces that hold schedules, in order; each costs one step in an index, however many it holds."""
    found: list[str] = []
    while len(found) < most:
        least = sa.select(sa.func.min(schedules.c.namespace))
        following = connection.execute(least.where(schedules.c.namespace > found[-1]) if found else least).scalar()
        if following is None:
            break
        found.append(following)
    return found


class SchedulePage(NamedTuple):
    """A page of schedules in an order."""

    items: list[Schedule]
    """The schedules."""
    following: tuple[str, str] | None
    """Where the next page begins; None after the last one."""
    is_cut: bool
    """Whether it has looked at as many schedules as it may and more may match: the page may be short, or empty."""


def sorted_schedules(
    connection: Connection,
    filters: Filters,
    *,
    order: Order,
    after: tuple[str, str] | None,
    limit: int,
    most: int = MOST_LOOKED_AT,
) -> SchedulePage:
    """Read a page of schedules in an order, after a position; looks at `most` where no index holds the filter."""
    place = None if after is None else (order.read(after[0]), after[1])
    found = search_schedules(connection, filters, sort=order.sort, after=place, limit=limit, most_looked_at=most)
    return SchedulePage(found.items, None if found.following is None else _position(*found.following), found.is_cut)


def _position(value: str | datetime, uid: str) -> tuple[str, str]:
    return (value if isinstance(value, str) else value.isoformat()), uid
