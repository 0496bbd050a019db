"""Claims in SQL: one process or one external worker takes a pending run, and keeps it alive by heartbeats.

A claim is one conditional update. It stores a token that the claimer has generated, and every later write of the
attempt requires this token. Every function works inside the caller's transaction. `changes` writes the ends of claimed
runs, and `features/fan_out/store.py` claims targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.visitors import replacement_traverse

from rqsched.kernel.decide.model import Run, RunStatus, Schedule
from rqsched.kernel.store.changes import RUN_AND_AHEAD, find_run, lock_running
from rqsched.kernel.store.dialect import POSTGRES, SQLITE, Dialect, dialect_of
from rqsched.kernel.store.metadata import is_frozen
from rqsched.kernel.store.rows import (
    ROW_VERSION,
    RUN_COLUMNS,
    SCHEDULE_COLUMNS,
    SELECT_RUNS_WITH_SCHEDULES,
    SELECT_SCHEDULES,
    to_run,
    to_run_and_schedule,
    to_runs_and_schedules,
    to_schedules,
)
from rqsched.kernel.store.tables import (
    HAS_JOB,
    IS_UNFINISHED,
    MAY_START,
    constant,
    is_free_for,
    is_held_by,
    is_late,
    of_schedule,
    runs,
    schedules,
)


def lock_run(connection: Connection, run_uid: str) -> None:
    """Lock a run before its claim, so that the time of its start can be read after the wait for the lock."""
    connection.execute(_LOCK_RUN, {"b_uid": run_uid})


_LOCK_RUN = sa.select(runs.c.uid).where(runs.c.uid == sa.bindparam("b_uid")).with_for_update(key_share=True)


class StartedRun(NamedTuple):
    """A run as it was claimed."""

    run: Run
    """The run, with the status running."""
    schedule: Schedule
    """The run's schedule, read in the same transaction."""
    version: str | None = None
    """The version of the schedule's row, which `end_alone` compares; None on SQLite."""


def start_run(
    connection: Connection,
    run_uid: str,
    attempt: int,
    delivery: int,
    start: Mapping[str, Any],
    *,
    alone: Conditions | None = None,
) -> StartedRun | None:
    """Claim a pending attempt for one process; returns the started run, or None if it cannot be claimed.

    The claim is one conditional update that does not lock the schedule. After a lost answer it may be repeated with the
    same `start["token"]`, and then returns the same run.

    `started_at` identifies the attempt, so it is always later than the start of the previous attempt, even if a clock
    is wrong. It is also never before `granted_at`, the time at which the run got a place in its group (option `limit`),
    because the rate of the group depends on this order. The clock of the process that granted the place may be ahead.

    `alone` (PostgreSQL) are conditions for a claim without BEGIN and COMMIT. This claim waits for no lock. It skips a
    run that another transaction has locked or that does not meet the conditions.
    """
    given = {"b_uid": run_uid, "b_attempt": attempt, "b_delivery": delivery}
    given |= {f"b_{name}": start.get(name) for name in _START_GIVES}
    if dialect_of(connection).joins_writes:
        row = connection.execute(_START_RETURNING if alone is None else _start_alone(alone), given).first()
    elif connection.execute(_START, given).rowcount:
        row = connection.execute(_STARTED, {"b_uid": run_uid}).first()
    else:
        row = None
    if row is None:
        return None
    return StartedRun(*to_run_and_schedule(connection, row), *row[len(RUN_COLUMNS) + len(SCHEDULE_COLUMNS) :])


Condition: TypeAlias = sa.ColumnElement[bool]
"""A condition of a statement."""
Conditions: TypeAlias = tuple[Condition, ...]
"""Conditions that features add. A process always passes the same objects, so `_start_alone` can cache by them."""
_START_GIVES = ("token", "started_at", "worker")
_TOKEN: sa.BindParameter[str] = sa.bindparam("b_token")


def _start(dialect: Dialect) -> sa.Update:
    given: dict[str, sa.ColumnElement[Any]] = {
        name: sa.bindparam(f"b_{name}", type_=runs.c[name].type) for name in _START_GIVES
    }
    began = dialect.after(runs.c.started_at, given["started_at"], runs.c.granted_at)
    given["started_at"] = sa.case((is_held_by(runs, _TOKEN), runs.c.started_at), else_=began)
    seen = {"sightings": 0, "seen_beat": None, "seen_at": None}
    is_asked = (
        runs.c.uid == sa.bindparam("b_uid"),
        runs.c.attempt == sa.bindparam("b_attempt"),
        runs.c.delivery == sa.bindparam("b_delivery"),
    )
    # The claim itself checks, in its one statement, whether everything or the namespace is frozen.
    namespace = schedules.c.namespace if dialect.joins_writes else of_schedule(schedules.c.namespace, runs)
    now = sa.bindparam("b_started_at", type_=runs.c.started_at.type)
    may_start = (~is_frozen(namespace), ~is_late(now), MAY_START)
    start = sa.update(runs).where(*is_asked, is_free_for(runs, _TOKEN, *may_start))
    return start.values(status=RunStatus.RUNNING.value, **seen, **given)


_MINE = runs.alias("m")
_IS_UNLOCKED = runs.c.uid == (
    sa.select(_MINE.c.uid)
    .where(_MINE.c.uid == sa.bindparam("b_uid"))
    .with_for_update(key_share=True, skip_locked=True)
    .scalar_subquery()
)
"""The run is not locked by another transaction. A statement without BEGIN and COMMIT must not wait for a lock, because
its times would be from before the wait."""
_SHORT = {runs: runs.alias("r"), schedules: schedules.alias("s")}


def _shortened(statement: sa.Update) -> sa.Update:
    """Name each table by a letter, so that psycopg caches the text of the statement.

    With full names a hundred columns make the text too long, and psycopg would parse it again for each claim.
    """

    def short(element: Any, **_: object) -> Any:
        if element is ROW_VERSION:
            return sa.literal_column("s.xmin::text", sa.Text)
        if isinstance(element, sa.Table):
            return _SHORT.get(element)
        of_table = _SHORT.get(element.table) if isinstance(element, sa.Column) else None
        return None if of_table is None else of_table.c[element.key]

    return cast("sa.Update", replacement_traverse(statement, {}, short))


_START = _start(SQLITE)
_RETURNING = (
    _start(POSTGRES)
    .where(schedules.c.uid == runs.c.schedule_uid)
    .returning(*RUN_COLUMNS, *SCHEDULE_COLUMNS, ROW_VERSION)
)
_START_RETURNING = _shortened(_RETURNING)


@lru_cache(maxsize=2)
def _start_alone(conditions: Conditions) -> sa.Update:
    return _shortened(_RETURNING.where(_IS_UNLOCKED, *conditions))


_STARTED = SELECT_RUNS_WITH_SCHEDULES.where(runs.c.uid == sa.bindparam("b_uid"))
"""Reads the claimed run and its schedule. On SQLite an UPDATE returns no columns of another table."""


def unblock_run(connection: Connection, run_uid: str, token: str | None) -> None:
    """Clear the record that a running run was blocked, if the run has this `token`."""
    held = sa.update(runs).where(runs.c.uid == run_uid, is_held_by(runs, token))
    connection.execute(held.values(blocked_at=None, blocked_reason=None))


def record_heartbeat(connection: Connection, run_uid: str, token: str) -> str | None:
    """Record a heartbeat of a running run; returns None if the run has this `token`, else the run's status."""
    beaten = connection.execute(_BEAT, {"b_uid": run_uid, "b_token": token})
    if beaten.rowcount == 1:
        return None
    status = connection.execute(sa.select(runs.c.status).where(runs.c.uid == run_uid)).scalar_one_or_none()
    return str(status or "deleted")


_BEAT = (
    sa.update(runs).where(runs.c.uid == sa.bindparam("b_uid"), is_held_by(runs, _TOKEN)).values(beat=runs.c.beat + 1)
)


def read_heartbeat(connection: Connection, run_uid: str) -> int | None:
    """Return the number of a run's heartbeats; None when there is no such run."""
    return connection.execute(sa.select(runs.c.beat).where(runs.c.uid == run_uid)).scalar_one_or_none()


def rehearse(connection: Connection, uid: str, start: Mapping[str, Any], alone: Conditions | None) -> None:
    """Execute the reads and locks of a claim, a heartbeat and an end, so that the statements are compiled.

    No run may have the `uid`. The statements that write an end are not executed here.
    """
    lock_run(connection, uid)
    start_run(connection, uid, 1, 1, start)
    if dialect_of(connection).joins_writes:
        start_run(connection, uid, 1, 1, start, alone=alone)
    else:
        connection.execute(_STARTED, {"b_uid": uid})
    record_heartbeat(connection, uid, uid)
    lock_running(connection, uid, uid)
    find_run(connection, uid)
    connection.execute(RUN_AND_AHEAD, {"schedule_uid": uid, "run_uid": uid})


_IS_WAITING = IS_UNFINISHED & (runs.c.status == constant(RunStatus.PENDING)) & (runs.c.executor == "external")
_IS_ACTIVE = IS_UNFINISHED & (runs.c.status == constant(RunStatus.RUNNING)) & (runs.c.executor == "external")


def lock_waiting_external(
    connection: Connection, queues: Sequence[str], *, namespace: str, default_queue: str, now: datetime, limit: int
) -> list[tuple[str, str | None]]:
    """Lock waiting runs of these queues, skipping runs that other transactions have locked.

    Returns the uid of each run, with the group that must grant the run a place first, or None if it needs no place.

    The queues are tried in the given order. On each queue the run with the highest priority comes first, then the
    oldest. A run without a queue waits on `default_queue`. A run that is too late to start is left to reconcile.
    """
    queue = sa.func.coalesce(runs.c.queue, default_queue)
    order = sa.case({name: place for place, name in enumerate(dict.fromkeys(queues))}, value=queue)
    asks = sa.case((MAY_START, None), else_=runs.c.limit_group)
    statement = (
        sa.select(runs.c.uid, asks)
        .where(HAS_JOB, _IS_WAITING, queue.in_(list(queues)), _is_in(namespace))
        .where(~is_frozen(sa.literal(namespace)), ~is_late(now))
        .order_by(order, runs.c.priority.desc(), runs.c.queued_at, runs.c.uid)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True, of=runs)
    )
    return [(uid, group) for uid, group in connection.execute(statement)]


def start_external(
    connection: Connection, uids: Sequence[str], values: Mapping[str, Any]
) -> list[tuple[Run, Schedule]]:
    """Write the start of locked runs; returns them in the order of the uids, each with its schedule.

    The start of each run is always later than the start of its previous attempt, even if a clock is wrong.
    """
    if not uids:
        return []
    dialect, given = dialect_of(connection), sa.literal(values["started_at"], runs.c.started_at.type)
    started_at = dialect.after(runs.c.started_at, given, runs.c.granted_at)
    update = sa.update(runs).where(dialect.one_of(runs.c.uid, uids)).values(**{**values, "started_at": started_at})
    update = update.returning(*RUN_COLUMNS)
    started = {run.uid: run for run in (to_run(row) for row in connection.execute(update))}
    of_these = dialect.one_of(schedules.c.uid, sorted({run.schedule_uid for run in started.values()}))
    found = to_schedules(connection, connection.execute(SELECT_SCHEDULES.where(of_these)).all())
    known = {schedule.uid: schedule for schedule in found}
    return [(started[uid], known[started[uid].schedule_uid]) for uid in uids]


def external_held_by(connection: Connection, token: str) -> list[tuple[Run, Schedule]]:
    """Return the active runs that a claim with this token started, each with its schedule."""
    statement = SELECT_RUNS_WITH_SCHEDULES.where(_IS_ACTIVE, runs.c.token == token).order_by(runs.c.uid)
    return to_runs_and_schedules(connection, connection.execute(statement).all())


def lock_external(connection: Connection, uids: Sequence[str], *, worker_id: str, namespace: str) -> list[str]:
    """Lock the given runs that a worker still holds. Read the time of the heartbeat after this call, which may wait.

    A run that was claimed without the name of a worker belongs to the first worker that names it.
    """
    is_named = dialect_of(connection).one_of(runs.c.uid, uids)
    is_mine = (runs.c.worker == worker_id) | runs.c.worker.is_(None)
    mine = sa.select(runs.c.uid).where(is_named, _IS_ACTIVE, is_mine, _is_in(namespace))
    # All code locks runs in this order. So two heartbeats never deadlock, and a heartbeat and a fire that cancels runs
    # never do.
    locked = mine.order_by(runs.c.uid).with_for_update(key_share=True, of=runs)
    return list(connection.execute(locked).scalars())


def record_external_heartbeats(
    connection: Connection, locked: Sequence[str], *, now: datetime, held_until: datetime
) -> None:
    """Record a heartbeat for locked runs, so that their worker holds them until `held_until`."""
    values = {"heartbeat_at": now, "held_until": held_until}
    connection.execute(sa.update(runs).where(dialect_of(connection).one_of(runs.c.uid, locked)).values(**values))


def _is_in(namespace: str) -> sa.ColumnElement[bool]:
    is_parent = schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
    return sa.select(schedules.c.uid).where(*is_parent).exists()
