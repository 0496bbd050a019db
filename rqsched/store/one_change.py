"""One Change in one statement, where PostgreSQL is asked about a single schedule: each statement is a wait.

What is rare is left to the statements of a batch: every function here says whether it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import DEFINITION, Change, RunStatus, Schedule
from rqsched.store.dialect import POSTGRES
from rqsched.store.rows import (
    ROW_VERSION,
    SCHEDULE_COLUMNS,
    event_rows,
    run_differences,
    run_values,
    schedule_differences,
    schedule_values,
    to_schedule,
)
from rqsched.store.tables import IS_OPEN_LIVE, Microseconds, audit_events, constant, runs, schedules

Names = tuple[str, ...]


def write_alone(connection: Connection, change: Change, *, version: str | None) -> bool:
    """Write a Change of a schedule that is not locked: a new one, or one whose row is still that `version`."""
    if change.before is None:
        return create_alone(connection, change)
    return version is not None and write(connection, change, version=version)


def create_alone(connection: Connection, change: Change) -> bool:
    """Write a new schedule with its events, and the run it was created with, if any.

    Returns whether it was written: not when its id or its uid is taken, nor when it is more than that.
    """
    if change.before is not None or not _is_one_of_each(change):
        return False
    values = _without_defaults(schedule_values(change.after))
    of_run, given = _rest_of(change)
    statement = _create_alone(tuple(values), of_run, len(change.events))
    return connection.execute(statement, _given("s", values) | given).first() is not None


def read_idle(connection: Connection, uid: str) -> tuple[Schedule, str] | None:
    """Read a schedule, without locking it, of which no run is unfinished (backfilled ones apart) or waits.

    Returns it and its row's version; while the row is that, there is none: whatever adds or reopens a run writes it.
    """
    row = connection.execute(_READ_IDLE, {"uid": uid}).first()
    if row is None:
        return None
    *columns, version = row
    schedule = to_schedule(columns)
    return None if schedule.buffer_depth or schedule.backfill_waiting else (schedule, version)


def write(connection: Connection, change: Change, *, version: str | None = None) -> bool:
    """Write what a Change of one schedule moves, starts and records; returns False for what is not that plain.

    Its schedule is locked; or a `version` of its row is given, and nothing is written, and False returned, when the
    row is another by now, or another transaction holds it.
    """
    before = change.before
    if before is None or not _is_one_of_each(change):
        return False
    names = tuple(sorted(schedule_differences(before, change.after)))
    if not names:
        return False
    of_run, given = _rest_of(change)
    given |= _given("s", schedule_values(change.after, names)) | {"s_uid": change.after.uid}
    if version is not None:
        given["b_version"] = version
    statement = _write(names, of_run, len(change.events), is_as_read=version is not None)
    return connection.execute(statement, given).first() is not None


_READ_IDLE = sa.select(*SCHEDULE_COLUMNS, ROW_VERSION).where(
    schedules.c.uid == sa.bindparam("uid"),
    ~sa.exists().where(runs.c.schedule_uid == schedules.c.uid, IS_OPEN_LIVE),
)
_MOST_EVENTS = 3
"""How many audit events one statement takes: few numbers, so that few statements are prepared."""


def _is_one_of_each(change: Change) -> bool:
    """Whether a Change has few events, at most one new run, and touches no run that there is."""
    more = change.changed_runs or change.drops_buffer or change.drops_retries or change.dead_letters
    return 1 <= len(change.events) <= _MOST_EVENTS and len(change.new_runs) <= 1 and not more


def _rest_of(change: Change) -> tuple[Names, dict[str, Any]]:
    """Return the columns of the new run, none without one, and what is bound for it and the events."""
    given: dict[str, Any] = {}
    for place, row in enumerate(event_rows(change)):
        given |= _given(f"e{place}", row)
    started = [{name: value for name, value in run_values(run).items() if value is not None} for run in change.new_runs]
    for row in started:
        given |= _given("r", row)
    return tuple(started[0]) if started else (), given


def _given(prefix: str, row: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in row.items()}


def _bound(prefix: str, table: sa.Table, names: Sequence[str]) -> dict[str, sa.BindParameter[Any]]:
    return {name: sa.bindparam(f"{prefix}_{name}", type_=table.c[name].type) for name in names}


def _default_of(column: sa.Column[Any]) -> object:
    if column.nullable:
        return None
    if isinstance(column.type, Microseconds):
        return timedelta(0)
    text = str(getattr(column.server_default, "arg", ""))
    return text if isinstance(column.type, sa.String) else int(text)


_OF_NEW = {"due_at", "event_sequence", "n", "next_run_at", "note", "operation", "remaining", "tzdata", "version"}
_LATER = {
    column.name: _default_of(column)
    for column in SCHEDULE_COLUMNS
    if (column.nullable or column.server_default is not None) and column.name not in {*DEFINITION, *_OF_NEW}
}
"""The columns in which a new schedule has the database's default."""


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a new schedule has by default; psycopg reads a longer statement anew each time."""
    if any(values[name] != default for name, default in _LATER.items()):
        return values
    return {name: value for name, value in values.items() if name not in _LATER}


@lru_cache(maxsize=64)
def _create_alone(of_schedule: Names, of_run: Names, events: int) -> sa.Insert:
    made = (
        POSTGRES.insert(schedules)
        .values(_bound("s", schedules, of_schedule))
        .on_conflict_do_nothing()
        .returning(schedules.c.uid)
        .cte("made")
    )
    return _recorded(made, of_run, events)


@lru_cache(maxsize=1024)
def _write(of_schedule: Names, of_run: Names, events: int, *, is_as_read: bool) -> sa.Insert:
    is_this = schedules.c.uid == sa.bindparam("s_uid")
    if is_as_read:
        is_version = sa.bindparam("b_version") == ROW_VERSION
        free = sa.select(schedules.c.uid).where(is_this, is_version)
        locked = free.with_for_update(key_share=True, skip_locked=True).cte("locked")
        is_this = schedules.c.uid == locked.c.uid
    move = sa.update(schedules).where(is_this)
    moved = move.values(_bound("s", schedules, of_schedule)).returning(schedules.c.uid).cte("moved")
    return _recorded(moved, of_run, events)


def _recorded(written: sa.CTE, of_run: Names, events: int) -> sa.Insert:
    """Write the events and the new run of a schedule if its row was written; returns a row then."""
    events_of = [_bound(f"e{place}", audit_events, audit_events.c.keys()) for place in range(events)]
    *others, recorded = (_if_written(sa.insert(audit_events), values, written) for values in events_of)
    # Not several VALUES, which SQLAlchemy compiles anew each time.
    recorded = recorded.add_cte(*(one.cte(f"event_{at}") for at, one in enumerate(others)))
    if of_run:
        # A duplicate key must never stop a chain; a decision about the row as it is meets none.
        start = POSTGRES.insert(runs).on_conflict_do_nothing()
        recorded = recorded.add_cte(_if_written(start, _bound("r", runs, of_run), written).cte("started"))
    return recorded.returning(audit_events.c.sequence)


def _if_written(insert: sa.Insert, values: dict[str, sa.BindParameter[Any]], schedule: sa.CTE) -> sa.Insert:
    """Let an INSERT write its row if that of the schedule was written."""
    selected = values | {"schedule_uid": schedule.c.uid}
    return insert.from_select(list(selected), sa.select(*selected.values()))


def end_alone(connection: Connection, change: Change, *, token: str, version: str) -> bool:
    """Write a Change of one schedule and one running run, if the schedule's row is still that `version` of it.

    And if `token` still holds the run; else nothing is written, and False returned. One statement, which locks the
    schedule before the run as every decision does. PostgreSQL only.
    """
    ((before, after),) = change.changed_runs
    of_schedule = tuple(sorted(schedule_differences(change.before or change.after, change.after) | _OF_SCHEDULE))
    of_run = tuple(sorted(run_differences(before, after) | _OF_RUN))
    given = _given("s", schedule_values(change.after, of_schedule)) | _given("r", run_values(after, of_run))
    given |= {"b_schedule": change.after.uid, "b_version": version, "b_run": after.uid, "b_token": token}
    return connection.execute(_end_alone(of_schedule, of_run), given).first() is not None


_OF_SCHEDULE = {"consecutive_failures", "last_outcome", "operation", "success_count", "updated_at"}
_OF_RUN = {"attempts", "ended_at", "result", "status"}
"""Always written, also where they do not change: so nearly every success is the same statement."""


@lru_cache(maxsize=64)
def _end_alone(of_schedule: Sequence[str], of_run: Sequence[str]) -> sa.Update:
    is_as_read = sa.bindparam("b_version") == ROW_VERSION
    locked = (
        sa.select(schedules.c.uid)
        .where(schedules.c.uid == sa.bindparam("b_schedule"), is_as_read)
        .with_for_update(key_share=True)
        .cte("locked")
    )
    ended = (
        sa.update(runs)
        .where(
            runs.c.schedule_uid == locked.c.uid,
            runs.c.uid == sa.bindparam("b_run"),
            runs.c.token == sa.bindparam("b_token"),
            runs.c.status == constant(RunStatus.RUNNING),
        )
        .values({name: sa.bindparam(f"r_{name}", type_=runs.c[name].type) for name in of_run})
        .returning(runs.c.schedule_uid)
        .cte("ended")
    )
    return (
        sa.update(schedules)
        .where(schedules.c.uid == ended.c.schedule_uid)
        .values({name: sa.bindparam(f"s_{name}", type_=schedules.c[name].type) for name in of_schedule})
        .returning(schedules.c.uid)
    )
