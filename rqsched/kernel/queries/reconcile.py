"""The queries of reconcile: pages of rows that may need a repair. Each query uses its own index.

A function takes the cursor of the page before, or None for the first page. It returns the rows, and the next cursor or
None after the last page. Rows of the namespaces in `frozen` are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.ids import LinkId
from rqsched.kernel.decide.model import Run, RunStatus, ScheduleStatus
from rqsched.kernel.queries.pages import page_by_due_time, page_by_uid
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.rows import RUN_COLUMNS, SELECT_RUNS, to_run
from rqsched.kernel.store.tables import (
    HAS_JOB,
    HAS_OPEN_TARGETS,
    HAS_WAITING,
    IS_ACTIVE,
    IS_BACKFILLED,
    IS_LIVE,
    IS_OPEN_TARGET,
    IS_UNFINISHED,
    IS_WATCHED,
    RESUMES,
    WAITS_FOR_CODE,
    constant,
    is_late,
    is_outside,
    runs,
    schedules,
    targets,
)


def has_schedules(connection: Connection) -> bool:
    """Return whether any schedule, deleted or not, is stored. Without schedules a pass has nothing to repair."""
    return connection.execute(sa.select(schedules.c.uid).limit(1)).first() is not None


def due_links(
    connection: Connection,
    until: datetime | None,
    after: tuple[datetime, str] | None,
    limit: int,
    frozen: Collection[str] = (),
) -> tuple[list[tuple[LinkId, datetime]], tuple[datetime, str] | None]:
    """Read the links of active schedules in the order of their due times: up to `until`, or all."""
    columns = schedules.c.uid, schedules.c.n, schedules.c.due_at
    statement = sa.select(*columns).where(IS_ACTIVE, schedules.c.due_at.is_not(None), *is_outside(frozen))
    if until is not None:
        statement = statement.where(schedules.c.due_at <= until)
    rows, cursor = page_by_due_time(connection, statement, schedules, after, limit)
    return [(LinkId(row.uid, row.n), row.due_at) for row in rows], cursor


def without_next_time(connection: Connection, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read active schedules without a next time, unless they wait for a run that has not ended.

    Schedules with an upstream are left out, because they never have a next time.
    """
    awaited = sa.select(runs.c.uid).where(runs.c.uid == schedules.c.awaiting_run_uid, IS_UNFINISHED)
    is_waiting = schedules.c.awaiting_run_uid.is_not(None) & awaited.exists()
    statement = sa.select(schedules.c.uid).where(IS_ACTIVE, schedules.c.due_at.is_(None), ~is_waiting)
    statement = statement.where(schedules.c.upstream_id.is_(None))
    # Use the order of the index. With another order, PostgreSQL would read all schedules by uid if many are paused.
    return _uids(connection, statement.order_by(schedules.c.due_at), after, limit)


def resuming(connection: Connection, until: datetime, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read paused schedules whose pause should have ended by itself by `until`."""
    is_paused = schedules.c.status == constant(ScheduleStatus.PAUSED)
    statement = sa.select(schedules.c.uid).where(RESUMES, schedules.c.resume_at <= until, is_paused)
    return _uids(connection, statement, after, limit)


def overdue(
    connection: Connection, until: datetime, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[str], str | None]:
    """Read schedules that should have had a success by `until` but had none, if this is not reported yet."""
    is_meant = IS_WATCHED, schedules.c.overdue_at <= until, *is_outside(frozen)
    return _uids(connection, sa.select(schedules.c.uid).where(*is_meant), after, limit)


def with_old_tzdata(connection: Connection, tzdata: str, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read active schedules whose next time was computed with another timezone database."""
    return _uids(connection, sa.select(schedules.c.uid).where(IS_ACTIVE, schedules.c.tzdata != tzdata), after, limit)


def waiting(
    connection: Connection, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[str], str | None]:
    """Read schedules with waiting runs that may start: active ones, deleted ones, and any with a waiting backfill.

    A deleted schedule has waiting runs only if its runs were kept.
    """
    can_start = IS_ACTIVE | ~IS_LIVE | (schedules.c.backfill_waiting > 0)
    is_meant = HAS_WAITING, can_start, *is_outside(frozen)
    return _uids(connection, sa.select(schedules.c.uid).where(*is_meant), after, limit)


def _uids(
    connection: Connection, statement: sa.Select[Any], after: str | None, limit: int
) -> tuple[list[str], str | None]:
    rows, cursor = page_by_uid(connection, statement, schedules.c.uid, after, limit)
    return [row.uid for row in rows], cursor


def _has(status: RunStatus) -> sa.ColumnElement[bool]:
    return IS_UNFINISHED & (runs.c.status == constant(status))


def pending(
    connection: Connection, before: datetime, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[Run], str | None]:
    """Read pending runs that should have been on their queue by `before`."""
    found = _has(RunStatus.PENDING), runs.c.executor == "rq", runs.c.queued_at <= before, HAS_JOB
    return _runs(connection, (*found, *is_outside(frozen, runs.c.schedule_uid)), after, limit)


def names_of(connection: Connection, uids: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the namespaces and ids of schedules by their uids."""
    statement = sa.select(schedules.c.uid, schedules.c.namespace, schedules.c.schedule_id)
    found = statement.where(dialect_of(connection).one_of(schedules.c.uid, sorted(set(uids))))
    return {row.uid: (row.namespace, row.schedule_id) for row in connection.execute(found)}


def blocked(
    connection: Connection, before: datetime, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[Run], str | None]:
    """Read pending runs that were blocked by `before` and are not in line. No worker can take a run in line."""
    found = WAITS_FOR_CODE, HAS_JOB, runs.c.blocked_at <= before, *is_outside(frozen, runs.c.schedule_uid)
    return _runs(connection, found, after, limit)


def late_to_start(connection: Connection, now: datetime, after: str | None, limit: int) -> tuple[list[Run], str | None]:
    """Read pending runs that are too late to start."""
    return _runs(connection, (is_late(now),), after, limit)


def retrying(
    connection: Connection, until: datetime | None, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[Run], str | None]:
    """Read runs whose next attempt is due up to `until`, or all."""
    found = [_has(RunStatus.RETRYING), *is_outside(frozen, runs.c.schedule_uid)]
    if until is not None:
        found.append(runs.c.retry_at <= until)
    return _runs(connection, found, after, limit)


def _runs(
    connection: Connection, found: Sequence[sa.ColumnElement[bool]], after: str | None, limit: int
) -> tuple[list[Run], str | None]:
    rows, cursor = page_by_uid(connection, SELECT_RUNS.where(*found), runs.c.uid, after, limit)
    return [to_run(row) for row in rows], cursor


def expected_to_end(
    connection: Connection, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[tuple[str, datetime, str]], str | None]:
    """Read running live runs whose schedule has `expect_duration`, unless they are reported to take longer already.

    Returns the uid of each run, when its attempt began, and the notifications of its schedule.
    """
    columns = runs.c.uid, runs.c.started_at, schedules.c.notifications
    is_expected = schedules.c.notifications.contains('"expect_duration":', autoescape=True)
    statement = sa.select(*columns).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    is_meant = _has(RunStatus.RUNNING), ~IS_BACKFILLED, runs.c.long_at.is_(None), is_expected, *is_outside(frozen)
    statement = statement.where(*is_meant)
    rows, cursor = page_by_uid(connection, statement.where(runs.c.started_at.is_not(None)), runs.c.uid, after, limit)
    return [(row.uid, row.started_at, row.notifications) for row in rows], cursor


def compare_heartbeats(
    connection: Connection, now: datetime, before: datetime, after: str | None, limit: int
) -> tuple[list[str], str | None]:
    """Compare the heartbeats of a page of running runs with the heartbeats seen last; returns the uids of the runs.

    Runs that were seen after `before` are skipped. Runs that another transaction has locked are left to the next pass.
    The column `sightings` counts how often in a row a run was seen without a new heartbeat.
    """
    is_ours = _has(RunStatus.RUNNING), runs.c.executor == "rq", runs.c.dispatched_at.is_(None)
    statement = sa.select(runs.c.uid).where(*is_ours)
    statement = statement.where(runs.c.seen_at.is_(None) | (runs.c.seen_at <= before) | (runs.c.seen_at > now))
    if after is not None:
        statement = statement.where(runs.c.uid > after)
    ordered = statement.order_by(runs.c.uid).limit(limit).with_for_update(key_share=True, skip_locked=True)
    uids = list(connection.execute(ordered).scalars())
    if not uids:
        return [], None
    compared = sa.update(runs).where(dialect_of(connection).one_of(runs.c.uid, uids))
    connection.execute(
        compared.values(
            seen_at=now,
            seen_beat=runs.c.beat,
            sightings=sa.case((runs.c.beat == runs.c.seen_beat, runs.c.sightings + 1), else_=0),
        )
    )
    return uids, uids[-1] if len(uids) == limit else None


def without_heartbeat(
    connection: Connection, sightings: int, after: str | None, limit: int
) -> tuple[list[tuple[Run, int]], str | None]:
    """Read running runs that were seen `sightings` times without a new heartbeat, each with its heartbeat number."""
    is_ours = _has(RunStatus.RUNNING), runs.c.executor == "rq", runs.c.dispatched_at.is_(None)
    found = (*is_ours, runs.c.sightings >= sightings)
    return _running(connection, found, after, limit)


def dispatched(connection: Connection, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read runs that wait for their targets although no target is open."""
    is_open = sa.exists().where(targets.c.run_uid == runs.c.uid, IS_OPEN_TARGET)
    statement = sa.select(runs.c.uid).where(HAS_OPEN_TARGETS, ~is_open)
    rows, cursor = page_by_uid(connection, statement, runs.c.uid, after, limit)
    return [row.uid for row in rows], cursor


def silent(
    connection: Connection, now: datetime, usual: timedelta, after: str | None, limit: int
) -> tuple[list[tuple[Run, int]], str | None]:
    """Read external runs whose worker's time is over, each with its heartbeat number.

    A worker holds its run until `held_until`. If that column is not written, the worker holds the run for the `usual`
    time after the last heartbeat. A release that does not know the column may have claimed the attempt, so a value
    older than the heartbeat belongs to another attempt and does not count.
    """
    heard_at = sa.func.coalesce(runs.c.heartbeat_at, runs.c.started_at)
    is_known = sa.and_(runs.c.held_until.is_not(None), runs.c.held_until >= heard_at)
    is_over = sa.case((is_known, runs.c.held_until <= now), else_=heard_at <= now - usual)
    return _running(connection, (_has(RunStatus.RUNNING), runs.c.executor == "external", is_over), after, limit)


def _running(
    connection: Connection, found: Sequence[sa.ColumnElement[bool]], after: str | None, limit: int
) -> tuple[list[tuple[Run, int]], str | None]:
    statement = sa.select(*RUN_COLUMNS, runs.c.beat).where(*found)
    rows, cursor = page_by_uid(connection, statement, runs.c.uid, after, limit)
    return [(to_run(row[:-1]), row.beat) for row in rows], cursor


def count_to_compare(connection: Connection) -> int:
    """Count approximately what a deep pass compares: active schedules, and runs that wait for a worker or a retry."""
    active = sa.select(sa.func.count()).select_from(schedules).where(IS_ACTIVE)
    is_waiting = _has(RunStatus.PENDING) | _has(RunStatus.RETRYING)
    waiting = sa.select(sa.func.count()).select_from(runs).where(is_waiting)
    return connection.execute(active).scalar_one() + connection.execute(waiting).scalar_one()
