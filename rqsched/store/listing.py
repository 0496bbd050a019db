"""Pages of schedules, runs and audit events for surfaces. Keyset cursors: a page costs the same at any depth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.audit import AuditRecord
from rqsched.core.ids import is_uid
from rqsched.core.model import BLOCKED, Run, Schedule, ScheduleStatus
from rqsched.core.page import MAX_PAGE, Page
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.store.database import Database
from rqsched.store.dialect import dialect_of
from rqsched.store.pages import cut_to_size, page_of, read_cursor, write_cursor
from rqsched.store.rows import (
    RUN_COLUMNS,
    SELECT_RUNS,
    SELECT_SCHEDULES,
    SELECT_SLIM_RUNS,
    to_run,
    to_schedule,
)
from rqsched.store.schedule_filters import Filters, conditions_of, has_status
from rqsched.store.schedule_search import MOST_LOOKED_AT, SORTS, place_of, search_schedules
from rqsched.store.tables import (
    HAS_FAILED,
    IS_ACTIVE,
    IS_DELETED,
    IS_LIVE,
    WAITS_FOR_CODE,
    audit_events,
    runs,
    schedules,
)


def require_limit(limit: int, most: int = MAX_PAGE) -> int:
    """Check a page size; raises InvalidLimitError."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidLimitError("limit", f"must be a whole number from 1 to {most}")
    return limit


def require_sort(sort: str) -> str:
    """Check the order of a list; raises InvalidInputError."""
    if sort not in SORTS:
        raise InvalidInputError("sort", f"{sort!r} is not one of {', '.join(SORTS)}")
    return sort


def require_sequence(after_sequence: int) -> int:
    """Check where a page of audit events starts; raises InvalidLimitError."""
    if isinstance(after_sequence, bool) or not isinstance(after_sequence, int) or not 0 <= after_sequence < 2**63:
        raise InvalidLimitError("after_sequence", "must be a whole number from 0, such as the last sequence you have")
    return after_sequence


def list_schedules(
    connection: Connection,
    filters: Filters,
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
    sort: str = "created",
    offset: int = 0,
    most: int | None = None,
    most_looked_at: int | None = None,
    is_slim: bool = False,
) -> Page[Schedule]:
    """Read a page of schedules; see `search_schedules`. With `most_looked_at` it may be short, or empty."""
    named = "-created" if newest_first else sort
    after = read_cursor(cursor, is_text=SORTS[named][0] is schedules.c.schedule_id) if cursor is not None else None
    found = search_schedules(
        connection, filters, sort=named, after=after, limit=limit, offset=offset, most=most,
        most_looked_at=most_looked_at, is_slim=is_slim,
    )  # fmt: skip
    return Page(found.items, None if found.following is None else write_cursor(*found.following))


def fill_page(
    database: Database,
    filters: Filters,
    *,
    limit: int,
    cursor: str | None,
    sort: str = "created",
    most: int | None = None,
    is_short_enough: bool = False,
) -> Page[Schedule]:
    """Read a page of schedules in as many bounded transactions as it takes: only the last page is short.

    With `is_short_enough` one schedule makes a page, as where `most` bounds its characters.
    """
    found: list[Schedule] = []
    looked_at = MOST_LOOKED_AT
    while True:
        page = database.read(
            partial(
                list_schedules, filters=filters, limit=limit + 1 - len(found), cursor=cursor, sort=sort, most=most,
                most_looked_at=looked_at,
            )
        )  # fmt: skip
        found, cursor = found + page.items, page.next_cursor
        if len(found) > limit:
            return Page(found[:limit], write_cursor(*place_of(found[limit - 1], sort)))
        if cursor is None or (found and is_short_enough):
            return Page(found, cursor)
        looked_at = min(2 * looked_at, _MOST_AT_ONCE)


_MOST_AT_ONCE = 16_000
"""How many schedules one transaction of several looks at."""


def ids(connection: Connection, namespace: str, prefix: str, limit: int) -> list[str]:
    """Return the ids of a namespace that begin with the prefix, in order."""
    statement = (
        sa.select(schedules.c.schedule_id)
        .where(
            schedules.c.namespace == namespace,
            schedules.c.status != "deleted",
            schedules.c.schedule_id.startswith(prefix, autoescape=True),
        )
        .order_by(schedules.c.schedule_id)
        .limit(limit)
    )
    return list(connection.execute(statement).scalars())


def count_schedules(connection: Connection, filters: Filters) -> int:
    """Count the schedules that all pages of a list show together; by status alone in indexes, without their rows."""
    dialect = dialect_of(connection)
    is_named = not dialect.has_statistics
    if replace(filters, namespace=None, statuses=()) != Filters():
        return _count(connection, *conditions_of(dialect, filters))
    wanted = {status for status in ScheduleStatus if status in (filters.statuses or _SHOWN)}
    # One index holds all of a namespace, those of exceptions what is not active.
    has_active = ScheduleStatus.ACTIVE in wanted
    counted = _EXCEPTIONS - wanted if has_active else wanted
    owner = [] if filters.namespace is None else [schedules.c.namespace == filters.namespace]
    found = sum(_count(connection, *owner, has_status((status,), is_named=is_named)) for status in counted)
    return _count(connection, *owner) - found if has_active else found


_EXCEPTIONS = {*ScheduleStatus} - {ScheduleStatus.ACTIVE}
_SHOWN = {*ScheduleStatus} - {ScheduleStatus.DELETED}


def _count(connection: Connection, *conditions: sa.ColumnElement[bool]) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(schedules).where(*conditions)).scalar_one()


def find_newest(connection: Connection, namespace: str, schedule_id: str) -> Schedule | None:
    """Read the newest incarnation of an id, deleted ones too: its history stays readable."""
    newest = schedules.c.created_at.desc(), schedules.c.uid.desc()
    named = SELECT_SCHEDULES.where(schedules.c.namespace == namespace, schedules.c.schedule_id == schedule_id)
    for is_indexed in (IS_LIVE, IS_DELETED):
        row = connection.execute(named.where(is_indexed).order_by(*newest).limit(1)).first()
        if row is not None:
            return to_schedule(row)
    return None


def history(connection: Connection, schedule_uid: str, *, limit: int, after_sequence: int) -> list[AuditRecord]:
    """Read audit events in order, after a sequence."""
    return [to_record(row) for row in connection.execute(_events(schedule_uid, after_sequence).limit(limit))]


def history_page(
    connection: Connection, schedule_uid: str, *, limit: int, after_sequence: int, most: int
) -> Page[AuditRecord]:
    """Read a page of audit events in order, after a sequence, of at most so many characters (`cut_to_size`)."""
    statement, cut = cut_to_size(connection, _events(schedule_uid, after_sequence).limit(limit + 1), most)
    found = [to_record(row) for row in connection.execute(statement)]
    return page_of(found, limit, lambda event: str(event.sequence), cut)


def _events(schedule_uid: str, after_sequence: int) -> sa.Select[Any]:
    is_after = audit_events.c.schedule_uid == schedule_uid, audit_events.c.sequence > after_sequence
    return sa.select(audit_events).where(*is_after).order_by(audit_events.c.sequence)


def to_record(row: sa.Row[Any]) -> AuditRecord:
    """Read an audit event from a row of its table."""
    return AuditRecord(
        row.schedule_uid,
        row.sequence,
        row.event_type,
        json.loads(row.payload),
        row.workflow_instance_id,
        row.workflow_run_id,
        row.recorded_at,
    )


def list_runs(
    connection: Connection,
    schedule_uid: str,
    *,
    limit: int,
    cursor: str | None = None,
    statuses: Sequence[str] = (),
    backfill_uid: str | None = None,
    most: int | None = None,
    is_slim: bool = False,
) -> Page[Run]:
    """Read runs of a schedule, newest first; `blocked` among the statuses takes those of the pending ones.

    `most` and `is_slim` as in `list_schedules`; slim runs have no lineage, attempts and result either.
    """
    statement = (SELECT_SLIM_RUNS if is_slim else SELECT_RUNS).where(runs.c.schedule_uid == schedule_uid)
    if statuses:
        statement = statement.where(_is_in(statuses))
    if backfill_uid is not None:
        statement = statement.where(runs.c.backfill_uid == backfill_uid)
    if cursor is not None:
        statement = statement.where(runs.c.number < _read_number(cursor))
    statement, cut = cut_to_size(connection, statement.order_by(runs.c.number.desc()).limit(limit + 1), most)
    found = [to_run(row) for row in connection.execute(statement)]
    return page_of(found, limit, lambda run: str(run.number), cut)


def _is_in(statuses: Sequence[str]) -> sa.ColumnElement[bool]:
    is_one = runs.c.status.in_([name for name in statuses if name != BLOCKED])
    return is_one | WAITS_FOR_CODE if BLOCKED in statuses else is_one


class FailedRuns(NamedTuple):
    """Which failed and lost runs are meant: those that match everything that is given."""

    since: datetime
    """Ended at or after this instant."""
    namespace: str
    """The namespace of their schedules."""
    until: datetime | None = None
    """Ended before this instant; None for no limit."""
    schedule_id: str | None = None
    """The id of their schedule; None for all."""
    workflow: str | None = None
    """The workflow they executed; None for any."""


def failed_runs(connection: Connection, wanted: FailedRuns, limit: int) -> list[tuple[str, Run]]:
    """Read failed and lost runs of schedules that are not deleted, oldest end first, with the ids of the schedules."""
    statement = (
        sa.select(*RUN_COLUMNS, schedules.c.schedule_id)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(HAS_FAILED, runs.c.ended_at >= wanted.since)
        .where(IS_LIVE, schedules.c.namespace == wanted.namespace)
    )
    if wanted.until is not None:
        statement = statement.where(runs.c.ended_at < wanted.until)
    if wanted.schedule_id is not None:
        statement = statement.where(schedules.c.schedule_id == wanted.schedule_id)
    if wanted.workflow is not None:
        statement = statement.where(runs.c.workflow == wanted.workflow)
    rows = connection.execute(statement.order_by(runs.c.ended_at, runs.c.uid).limit(limit))
    return [(row[-1], to_run(row[:-1])) for row in rows]


def recent_runs(connection: Connection, namespace: str, limit: int) -> list[tuple[str, Run]]:
    """Read the runs a namespace created last, newest first, each with the id of its schedule.

    Those of a busy namespace are among the newest of all; only for a quiet one are its schedules looked at.
    """
    newest = runs.c.uid.desc()  # uids begin with the time: the primary key is in order of creation
    statement = (
        sa.select(*RUN_COLUMNS, schedules.c.schedule_id)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(schedules.c.namespace == namespace)
        .order_by(newest)
        .limit(limit)
    )
    of_all = sa.select(runs.c.uid).order_by(newest).limit(_LOOKED_AT)
    found = connection.execute(statement.where(runs.c.uid.in_(of_all))).all()
    rows = found if len(found) == limit else connection.execute(statement)
    return [(row[-1], to_run(row[:-1])) for row in rows]


_LOOKED_AT = 200
"""How many of the newest runs of all namespaces are looked at for those of one."""


class RunFilters(NamedTuple):
    """Which runs of a namespace a list shows: those that match every filter that is given."""

    namespace: str
    """The namespace of their schedules."""
    statuses: Sequence[str] = ()
    """One of these statuses, `blocked` for those of the pending ones; empty is any."""
    schedule_id: str | None = None
    """Of the schedules with this id, deleted ones too; None is any."""
    workflow: str | None = None
    """The workflow they execute; None is any."""
    since: datetime | None = None
    """Created then or later; None is any time."""
    until: datetime | None = None
    """Created before; None is any time."""


def find_runs(
    connection: Connection,
    filters: RunFilters,
    *,
    limit: int,
    cursor: str | None,
    oldest_first: bool = False,
    most: int | None = None,
    is_slim: bool = False,
) -> Page[tuple[str, Run]]:
    """Read a page of a namespace's runs, each with the id of its schedule; see `list_runs`."""
    statement = (
        (SELECT_SLIM_RUNS if is_slim else SELECT_RUNS)
        .add_columns(schedules.c.schedule_id)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(schedules.c.namespace == filters.namespace)
    )
    if filters.statuses:
        statement = statement.where(_is_in(filters.statuses))
    if filters.schedule_id is not None:
        statement = statement.where(schedules.c.schedule_id == filters.schedule_id)
    if filters.workflow is not None:
        statement = statement.where(runs.c.workflow == filters.workflow)
    if filters.since is not None:
        statement = statement.where(runs.c.created_at >= filters.since)
    if filters.until is not None:
        statement = statement.where(runs.c.created_at < filters.until)
    if cursor is not None:
        if not is_uid(cursor):
            raise InvalidLimitError("cursor", "is malformed; pass the next_cursor of the page before")
        statement = statement.where(runs.c.uid > cursor if oldest_first else runs.c.uid < cursor)
    order = runs.c.uid.asc() if oldest_first else runs.c.uid.desc()
    statement, cut = cut_to_size(connection, statement.order_by(order).limit(limit + 1), most)
    found = [(row[-1], to_run(row[:-1])) for row in connection.execute(statement)]
    return page_of(found, limit, lambda one: one[1].uid, cut)


def _read_number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:
        raise InvalidLimitError("cursor", "is malformed; pass the next_cursor of the page before")
    return int(cursor)


def soonest(connection: Connection, namespace: str, limit: int) -> list[Schedule]:
    """Read the active schedules of a namespace that fire next, the earliest first."""
    owner = dialect_of(connection).unindexed(schedules.c.namespace)
    statement = (
        SELECT_SCHEDULES.where(IS_ACTIVE, schedules.c.due_at.is_not(None), owner == namespace)
        .order_by(schedules.c.due_at, schedules.c.uid)
        .limit(limit)
    )
    return [to_schedule(row) for row in connection.execute(statement)]


def due_uids(connection: Connection, now: datetime, limit: int) -> list[tuple[str, int]]:
    """Read (uid, n) of active schedules that are due, the earliest first."""
    statement = (
        sa.select(schedules.c.uid, schedules.c.n)
        .where(schedules.c.status == "active", schedules.c.due_at <= now)
        .order_by(schedules.c.due_at, schedules.c.uid)
        .limit(limit)
    )
    return [(row.uid, row.n) for row in connection.execute(statement)]


def find_run_in(connection: Connection, namespace: str, uid: str) -> Run | None:
    """Read a run of any schedule of a namespace by its uid."""
    is_parent = schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
    is_there = sa.select(schedules.c.uid).where(*is_parent).exists()
    row = connection.execute(SELECT_RUNS.where(runs.c.uid == uid.upper(), is_there)).first()
    return None if row is None else to_run(row)


def find_run_of(connection: Connection, schedule_uid: str, run: str) -> Run | None:
    """Read one run of a schedule by uid, number or instance id."""
    by_name: sa.ColumnElement[bool] = (runs.c.uid == run.upper()) | (runs.c.instance_id == run)
    if run.isascii() and run.isdigit() and len(run) <= 18:
        by_name = runs.c.number == int(run)
    row = connection.execute(SELECT_RUNS.where(runs.c.schedule_uid == schedule_uid, by_name)).first()
    return None if row is None else to_run(row)
