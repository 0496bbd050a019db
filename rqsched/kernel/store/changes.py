"""Lock and read rows for decisions, write Changes, and purge schedules.

Only this module writes Changes to SQL. Every function works inside the caller's transaction (`Database.transact`). Lock
order: schedules by uid, then runs by uid. Transactions that keep this order never deadlock.

On PostgreSQL each statement is a round trip, so a change of one schedule takes one statement if possible (`write_one`,
`end_alone`). If such a function has written nothing, it returns False or None, and its caller uses the statements for
a batch of schedules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule, ScheduleStatus, read_instants
from rqsched.kernel.decide.policy import REPLACING, OverlapPolicy
from rqsched.kernel.store.database import without_limits
from rqsched.kernel.store.dialect import POSTGRES, Dialect, dialect_of
from rqsched.kernel.store.metadata import is_namespace_frozen
from rqsched.kernel.store.named_calendars import NAMING, with_contents
from rqsched.kernel.store.rows import (
    ROW_VERSION,
    SCHEDULE_COLUMNS,
    SELECT_RUNS,
    SELECT_RUNS_WITH_SCHEDULES,
    SELECT_SCHEDULES,
    event_columns,
    event_rows,
    insert_rows,
    run_columns,
    run_differences,
    run_values,
    schedule_columns,
    schedule_differences,
    schedule_values,
    to_run,
    to_run_and_schedule,
    to_runs_and_schedules,
    to_schedule,
    to_schedules,
    update_rows,
    with_upstreams,
)
from rqsched.kernel.store.tables import (
    COMES_AFTER,
    HAS_FAILED,
    IS_LIVE,
    IS_OCCURRENCE,
    IS_OPEN,
    IS_OPEN_LIVE,
    IS_OPEN_UNFINISHED,
    IS_OWED,
    audit_events,
    backfills,
    constant,
    counted,
    deliveries,
    hours,
    idempotency_keys,
    is_held_by,
    runs,
    schedules,
    targets,
    uncounted,
    upstream_ends,
)
from rqsched.when.moved import REACH

_Names: TypeAlias = tuple[str, ...]


def lock(connection: Connection, uids: Iterable[str], *, skip_locked: bool = False) -> list[Schedule]:
    """Lock schedule rows in uid order and read them.

    `skip_locked` leaves out rows that other transactions have locked.
    """
    wanted = sorted(set(uids))
    if not wanted:
        return []
    dialect = dialect_of(connection)
    found = connection.execute(_lock_schedules(dialect, skip_locked), {"among": dialect.listed(wanted)})
    return to_schedules(connection, found.all())


@lru_cache(maxsize=4)
def _lock_schedules(dialect: Dialect, skip_locked: bool) -> sa.Select[Any]:
    statement = SELECT_SCHEDULES.where(dialect.among(schedules.c.uid)).order_by(schedules.c.uid)
    return statement.with_for_update(key_share=True, skip_locked=skip_locked, of=schedules)


def lock_to_fire(
    connection: Connection, uids: Iterable[str], *, skip_locked: bool = False
) -> tuple[dict[str, Schedule], set[str]]:
    """Lock and read schedules as `lock` does, by uid; also return the uids of schedules whose namespace is frozen."""
    dialect = dialect_of(connection)
    given = {"among": dialect.listed(sorted(uids))}
    found = connection.execute(_lock_to_fire(dialect, skip_locked), given).all()
    locked = [to_schedule(None, row[:-1]) for row in found]
    if any([NAMING in one.definition.spec for one in locked]):  # noqa: C419 - a list takes fewer calls than a generator
        locked = with_contents(connection, locked)
    return {one.uid: one for one in locked}, {one.uid for one, row in zip(locked, found, strict=True) if row[-1]}


@lru_cache(maxsize=4)
def _lock_to_fire(dialect: Dialect, skip_locked: bool) -> sa.Select[Any]:
    return _lock_schedules(dialect, skip_locked).add_columns(is_namespace_frozen(schedules.c.namespace))


def lock_one(connection: Connection, uid: str, *, skip_locked: bool = False) -> Schedule | None:
    """Lock and read one schedule; None if no row exists or another transaction has locked it (`skip_locked`)."""
    row = connection.execute(_LOCK_FREE if skip_locked else _LOCK, {"uid": uid}).first()
    return None if row is None else to_schedule(connection, row)


# These statements are built once, because naming a hundred columns takes longer than the round trip.
_FIND = SELECT_SCHEDULES.where(schedules.c.uid == sa.bindparam("uid"))
_FIND_NAMED = SELECT_SCHEDULES.where(
    schedules.c.namespace == sa.bindparam("named_in"), schedules.c.schedule_id == sa.bindparam("named"), IS_LIVE
)
_LOCK = _FIND.with_for_update(key_share=True)
_LOCK_FREE = _FIND.with_for_update(key_share=True, skip_locked=True)


def lock_named(connection: Connection, namespace: str, schedule_ids: Sequence[str]) -> dict[str, Schedule]:
    """Lock and read the schedules with these ids that are not deleted; return them by id."""
    return _named(connection, _lock_named(dialect_of(connection)), namespace, schedule_ids)


def find_all_named(connection: Connection, namespace: str, schedule_ids: Sequence[str]) -> dict[str, Schedule]:
    """Read the schedules with these ids that are not deleted, without locking them; return them by id."""
    return _named(connection, _find_named(dialect_of(connection)), namespace, schedule_ids)


@lru_cache(maxsize=2)
def _find_named(dialect: Dialect) -> sa.Select[Any]:
    # After a wait for a row's lock PostgreSQL checks this condition again. So IS_LIVE leaves out rows that were deleted
    # during the wait.
    return SELECT_SCHEDULES.where(is_named(dialect), IS_LIVE).order_by(schedules.c.uid)


@lru_cache(maxsize=2)
def _lock_named(dialect: Dialect) -> sa.Select[Any]:
    return _find_named(dialect).with_for_update(key_share=True, of=schedules)


def _named(
    connection: Connection, statement: sa.Select[Any], namespace: str, schedule_ids: Sequence[str]
) -> dict[str, Schedule]:
    found = connection.execute(statement, given_names(connection, namespace, schedule_ids))
    return {schedule.schedule_id: schedule for schedule in to_schedules(connection, found.all())}


def is_named(dialect: Dialect) -> sa.ColumnElement[bool]:
    """Return the condition that a schedule of the namespace `named_in` is not deleted and has one of the ids `among`.

    Each id is looked up by the index. PostgreSQL expects few rows if it has no statistics, or if it made the plan
    without the ids. With one list of ids, it might then read all rows of the namespace and compare each row with every
    id.
    """
    named_in = sa.bindparam("named_in", type_=schedules.c.namespace.type)
    if not dialect.has_statistics:
        return (schedules.c.namespace == named_in) & dialect.among(schedules.c.schedule_id)
    of_id = sa.select(schedules.c.uid).where(schedules.c.namespace == named_in, IS_LIVE).correlate_except(schedules)
    return schedules.c.uid.in_(dialect.of_each(of_id, schedules.c.schedule_id))


def given_names(connection: Connection, namespace: str, schedule_ids: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `is_named`."""
    return {"named_in": namespace, "among": dialect_of(connection).listed(schedule_ids)}


def find_named(connection: Connection, namespace: str, schedule_id: str) -> Schedule | None:
    """Read the schedule with this id, if it is not deleted, without locking it."""
    row = connection.execute(_FIND_NAMED, {"named_in": namespace, "named": schedule_id}).first()
    return None if row is None else to_schedule(connection, row)


def find(connection: Connection, uid: str) -> Schedule | None:
    """Read a schedule, deleted or not, without locking it."""
    row = connection.execute(_FIND, {"uid": uid}).first()
    return None if row is None else to_schedule(connection, row)


def find_all(connection: Connection, uids: Sequence[str]) -> list[Schedule]:
    """Read schedules, deleted or not, in uid order without locking them."""
    dialect = dialect_of(connection)
    statement = SELECT_SCHEDULES.where(dialect.among(schedules.c.uid)).order_by(schedules.c.uid)
    return to_schedules(connection, connection.execute(statement, {"among": dialect.listed(uids)}).all())


def open_runs(
    connection: Connection, locked: Sequence[Schedule], *, with_backfill: bool = False
) -> dict[str, list[Run]]:
    """Read the runs that a decision about these locked schedules must see.

    For each schedule these are:

    - its unfinished live runs
    - if `with_backfill` is set, its unfinished backfilled runs, on which no live decision depends
    - its first waiting (buffered) live run and its first waiting backfilled run
    - the first waiting live run whose retry a person requested, if the schedule lets no other waiting run start

    This set of runs changes only under the lock of the schedule. So the runs themselves need no lock, unless the
    decision ends some of them: see `lock_open_runs`.
    """
    found: dict[str, list[Run]] = defaultdict(list)
    if not locked:
        return found
    dialect = dialect_of(connection)
    given = {"among": dialect.listed(schedule.uid for schedule in locked)}
    for row in connection.execute(_open_runs(dialect, with_backfill), given):
        found[row.schedule_uid].append(to_run(row))
    for schedule in locked:
        if schedule.buffered_count:
            found[schedule.uid] += _first_waiting(connection, schedule)
    return found


@lru_cache(maxsize=4)
def _open_runs(dialect: Dialect, with_backfill: bool) -> sa.Select[Any]:
    statement = SELECT_RUNS.where(IS_OPEN_UNFINISHED if with_backfill else IS_OPEN_LIVE)
    found = dialect.of_each(statement, runs.c.schedule_uid)
    return found.order_by(found.selected_columns.uid)


def _first_waiting(connection: Connection, schedule: Schedule) -> list[Run]:
    waiting = SELECT_RUNS.where(
        runs.c.schedule_uid == schedule.uid, IS_OPEN, runs.c.status == constant(RunStatus.BUFFERED)
    )

    def first(kinds: Iterable[RunKind], *conditions: sa.ColumnElement[bool]) -> list[Run]:
        # Each kind is asked for by its name: a plan for all kinds but one may walk the schedule's whole history.
        asked = (waiting.where(runs.c.kind == constant(kind), *conditions) for kind in kinds)
        rows = [row for one in asked for row in connection.execute(one.order_by(runs.c.number).limit(1))]
        return [min(map(to_run, rows), key=attrgetter("number"))] if rows else []

    found = first(_LIVE_KINDS) if schedule.buffer_depth else []
    if schedule.backfill_waiting:
        found += first([RunKind.BACKFILL])
    if schedule.buffer_depth and not schedule.lets_waiting_start:
        found += first(_LIVE_KINDS, runs.c.asked_attempt == runs.c.attempt)
    # The event of a start names the upstream run.
    return with_upstreams(connection, [*{run.uid: run for run in found}.values()])


_LIVE_KINDS = (RunKind.SCHEDULED, RunKind.MANUAL)
"""The kinds of live runs as they are stored: a run of kind `after` is stored as `manual`."""


def open_runs_for_start(
    connection: Connection,
    locked: Sequence[Schedule],
    *,
    overlap: OverlapPolicy | None = None,
    with_backfill: bool = False,
    skip_locked: bool = False,
) -> dict[str, list[Run]]:
    """Read the runs of `open_runs`, by schedule uid, and lock the runs that a start may end.

    `overlap` replaces the schedules' own policies. Only a start with the policy cancel_other or terminate_other may end
    runs. With every other policy no run is locked, so no claim or heartbeat has to wait. With `skip_locked` a schedule
    is left out if another transaction has locked a run that a start may end.
    """
    read = open_runs(connection, locked, with_backfill=with_backfill)
    found = {schedule.uid: read[schedule.uid] for schedule in locked}
    ending = {one.uid: found.pop(one.uid) for one in locked if (overlap or one.policies.overlap) in REPLACING}
    return found | lock_open_runs(connection, ending, skip_locked=skip_locked) if ending else found


def lock_open_runs(
    connection: Connection, found: Mapping[str, Sequence[Run]], *, skip_locked: bool = False
) -> dict[str, list[Run]]:
    """Lock the unfinished runs that `open_runs` found, and read them again, because a decision will end some.

    With `skip_locked` a schedule is left out if another transaction has locked one of its runs. The whole schedule is
    left out, and not only the run, because a decision without the run would take the schedule for idle.
    """
    unfinished = {uid: [run.uid for run in listed if run.is_unfinished] for uid, listed in found.items()}
    wanted = sorted(run for uids in unfinished.values() for run in uids)
    locked = {run.uid: run for run in _lock_runs(connection, wanted, skip_locked=skip_locked)}
    return {
        uid: [locked.get(run.uid, run) for run in listed]
        for uid, listed in found.items()
        if all(run in locked for run in unfinished[uid])
    }


def _lock_runs(connection: Connection, uids: Sequence[str], *, skip_locked: bool = False) -> list[Run]:
    if not uids:
        return []
    dialect = dialect_of(connection)
    found = connection.execute(_lock_runs_of(dialect, skip_locked), {"among": dialect.listed(uids)})
    return [to_run(row) for row in found.all()]


@lru_cache(maxsize=4)
def _lock_runs_of(dialect: Dialect, skip_locked: bool) -> sa.Select[Any]:
    statement = SELECT_RUNS.where(dialect.among(runs.c.uid)).order_by(runs.c.uid)
    return statement.with_for_update(key_share=True, skip_locked=skip_locked, of=runs)


def lock_with_schedule(
    connection: Connection, run_uid: str, *, skip_locked: bool = False
) -> tuple[Schedule, Run] | None:
    """Lock a run after its schedule, in the order that never deadlocks.

    Returns None if there is no such run, or if another transaction has locked one of the rows (`skip_locked`).
    """
    known = find_run(connection, run_uid)
    schedule = None if known is None else lock_one(connection, known.schedule_uid, skip_locked=skip_locked)
    found = [] if schedule is None else _lock_runs(connection, [run_uid], skip_locked=skip_locked)
    return (schedule, found[0]) if schedule is not None and found else None


def lock_running(connection: Connection, schedule_uid: str, run_uid: str) -> tuple[Schedule, Run, list[Run]] | None:
    """Lock the schedule of a running run; returns the schedule, the run and the other runs of `runs_at_end`.

    Returns None if the run is not running (any more). The run needs no lock: while it runs, its status changes only
    under the schedule's lock.
    """
    schedule = lock_one(connection, schedule_uid)
    if schedule is None:
        return None
    found = runs_at_end(connection, schedule, run_uid)
    mine = next((run for run in found if run.uid == run_uid and run.status is RunStatus.RUNNING), None)
    return None if mine is None else (schedule, mine, [run for run in found if run is not mine])


def runs_at_end(connection: Connection, schedule: Schedule, run_uid: str) -> list[Run]:
    """Read a run of a locked schedule, and the runs that the decision about the end of its attempt must see.

    Only the start of a waiting run depends on other runs. So these are the first waiting runs, as in `open_runs`, and
    one unfinished run that they wait for. If no run waits, there are none.
    """
    if not schedule.buffered_count:
        return [to_run(row) for row in connection.execute(_FIND_RUN, {"uid": run_uid})]
    named = {"schedule_uid": schedule.uid, "run_uid": run_uid}
    return [to_run(row) for row in connection.execute(RUN_AND_AHEAD, named)] + _first_waiting(connection, schedule)


RUN_AND_AHEAD = (
    SELECT_RUNS.where(
        runs.c.schedule_uid == sa.bindparam("schedule_uid"),
        IS_OPEN_UNFINISHED,
        (runs.c.kind != constant(RunKind.BACKFILL)) | (runs.c.uid == sa.bindparam("run_uid")),
    )
    .order_by(runs.c.uid != sa.bindparam("run_uid"), runs.c.dispatched_at.is_not(None))
    .limit(2)
)
"""Reads the run `run_uid`, if it is unfinished, and another unfinished run. A backfilled run is read only as `run_uid`,
because it blocks no live run. A run that only waits for its targets may block none either, so it comes last."""


def find_run(connection: Connection, uid: str) -> Run | None:
    """Read a run without locking it."""
    row = connection.execute(_FIND_RUN, {"uid": uid}).first()
    return None if row is None else to_run(row)


def with_upstream(connection: Connection, run: Run) -> Run:
    """Return a run with the id of its upstream schedule, if the run or the one that it copies came after one."""
    return with_upstreams(connection, [run])[0]


def find_written(connection: Connection, changes: Iterable[Change]) -> dict[str, tuple[Schedule, Run | None]]:
    """Read, by uid, the schedules of Changes, each with the run that its Change started.

    Each Change must pass `is_one_of_each`. A schedule whose run does not exist is left out.
    """
    dialect, found = dialect_of(connection), dict[str, tuple[Schedule, Run | None]]()
    started = [run.uid for change in changes for run in change.new_runs]
    others = [change.after.uid for change in changes if not change.new_runs]
    if started:
        rows = connection.execute(_find_started(dialect), {"among": dialect.listed(started)}).all()
        found |= {schedule.uid: (schedule, run) for run, schedule in to_runs_and_schedules(connection, rows)}
    if others:
        rows = connection.execute(_find_each(dialect), {"among": dialect.listed(others)}).all()
        found |= {schedule.uid: (schedule, None) for schedule in to_schedules(connection, rows)}
    return found


@lru_cache(maxsize=2)
def _find_started(dialect: Dialect) -> sa.Select[Any]:
    return SELECT_RUNS_WITH_SCHEDULES.where(dialect.among(runs.c.uid))


@lru_cache(maxsize=2)
def _find_each(dialect: Dialect) -> sa.Select[Any]:
    return SELECT_SCHEDULES.where(dialect.among(schedules.c.uid))


def find_with_schedule(connection: Connection, run_uid: str) -> tuple[Schedule, Run] | None:
    """Read a run and its schedule without locking them."""
    row = connection.execute(_FIND_WITH_SCHEDULE, {"uid": run_uid}).first()
    if row is None:
        return None
    run, schedule = to_run_and_schedule(connection, row)
    return schedule, run


_FIND_RUN = SELECT_RUNS.where(runs.c.uid == sa.bindparam("uid"))
_FIND_RUN_BY_NUMBER = SELECT_RUNS.where(
    runs.c.schedule_uid == sa.bindparam("of_schedule"), runs.c.number == sa.bindparam("number")
)
_FIND_WITH_SCHEDULE = SELECT_RUNS_WITH_SCHEDULES.where(runs.c.uid == sa.bindparam("uid"))


def find_run_by_number(connection: Connection, schedule_uid: str, number: int) -> Run | None:
    """Read the run `number` of a locked schedule. The lock lets others change only pending and running runs."""
    row = connection.execute(_FIND_RUN_BY_NUMBER, {"of_schedule": schedule_uid, "number": number}).first()
    return None if row is None else to_run(row)


def find_run_by_key(connection: Connection, schedule_uid: str, idempotency_key: str) -> Run | None:
    """Read the run that an earlier trigger with this key started."""
    statement = SELECT_RUNS.where(runs.c.schedule_uid == schedule_uid, runs.c.idempotency_key == idempotency_key)
    row = connection.execute(statement).first()
    return None if row is None else to_run(row)


def occurrences_run(
    connection: Connection, since: Mapping[str, datetime], until: datetime | None = None
) -> dict[str, frozenset[datetime]]:
    """Return, by schedule uid, which occurrences from `since` on have a run already (live or backfilled).

    Only schedules whose `since` is in the same hour are read together. So if one schedule looks back a week, the others
    do not have to.
    """
    by_hour: dict[datetime, dict[str, datetime]] = defaultdict(dict)
    for uid, at in since.items():
        by_hour[at.replace(minute=0, second=0, microsecond=0)][uid] = at
    found: dict[str, set[datetime]] = defaultdict(set)
    dialect = dialect_of(connection)
    statement = _occurrences_of(dialect, until is not None)
    for asked in by_hour.values():
        given = {"among": dialect.listed(asked), "since": min(asked.values())}
        for uid, occurrence_at in connection.execute(statement, given if until is None else given | {"until": until}):
            found[uid].add(occurrence_at)
    return {uid: frozenset(instants) for uid, instants in found.items()}


@lru_cache(maxsize=4)
def _occurrences_of(dialect: Dialect, has_end: bool) -> sa.Select[Any]:
    statement = sa.select(runs.c.schedule_uid, runs.c.occurrence_at)
    statement = statement.where(IS_OCCURRENCE, runs.c.occurrence_at >= sa.bindparam("since"))
    if has_end:
        statement = statement.where(runs.c.occurrence_at < sa.bindparam("until"))
    return dialect.of_each(statement, runs.c.schedule_uid)


def read_pruned_to(connection: Connection, schedule_uid: str) -> datetime | None:
    """Read the occurrence up to which a schedule's runs were pruned; None if no run was pruned."""
    found = sa.select(schedules.c.pruned_to).where(schedules.c.uid == schedule_uid)
    at: datetime | None = connection.execute(found).scalar_one_or_none()
    return at


def nominals_run(connection: Connection, schedule: Schedule, since: datetime, until: datetime) -> frozenset[datetime]:
    """Return a schedule's nominal instants in [since, until) that have a run, even if the run was on another day."""
    statement = sa.select(runs.c.occurrence_at, runs.c.nominals).where(
        runs.c.schedule_uid == schedule.uid,
        IS_OCCURRENCE,
        runs.c.occurrence_at >= since - REACH,
        runs.c.occurrence_at < until + REACH,
    )
    found = set[datetime]()
    for occurrence_at, nominals in connection.execute(statement):
        found |= {*read_instants(nominals)} or {occurrence_at}
    return frozenset(at for at in found if since <= at < until)


def failed_occurrences(connection: Connection, schedule_uid: str, since: datetime, until: datetime) -> list[Run]:
    """Read a locked schedule's failed and lost runs of occurrences in [since, until). The lock keeps them failed."""
    statement = SELECT_RUNS.where(
        runs.c.schedule_uid == schedule_uid,
        IS_OCCURRENCE,
        runs.c.occurrence_at >= since,
        runs.c.occurrence_at < until,
        HAS_FAILED,
    )
    return [to_run(row) for row in connection.execute(statement.order_by(runs.c.uid))]


def existing(connection: Connection, uids: Sequence[str]) -> set[str]:
    """Read which of these schedules exist, without locking them."""
    if not uids:
        return set()
    is_one = dialect_of(connection).one_of(schedules.c.uid, uids)
    return set(connection.execute(sa.select(schedules.c.uid).where(is_one)).scalars())


def pending_runs(connection: Connection, schedule_uid: str) -> list[Run]:
    """Read pending runs of a schedule, at most 100."""
    statement = SELECT_RUNS.where(
        runs.c.schedule_uid == schedule_uid, IS_OPEN, runs.c.status == constant(RunStatus.PENDING)
    )
    return [to_run(row) for row in connection.execute(statement.limit(_MOST_PENDING))]


_MOST_PENDING = 100


def write(connection: Connection, changes: Sequence[Change]) -> None:
    """Write Changes about locked (or new) schedules: rows, runs and audit events, in few statements.

    Only the columns that some Change modifies are sent. A fire modifies a dozen of a hundred columns. A single Change
    is one statement if possible (PostgreSQL).
    """
    if len(changes) == 1 and dialect_of(connection).joins_writes and write_one(connection, changes[0]):
        return
    new = [change.after for change in changes if change.before is None]
    if new:
        insert_rows(connection, schedules, schedule_columns(new))
        dialect = dialect_of(connection)
        connection.execute(note_followed(dialect), {"among": dialect.listed(one.uid for one in new)})
    _write_schedules(connection, [change for change in changes if change.before is not None])
    _write_runs(connection, changes)
    for change in changes:
        if change.drops_buffer or change.drops_retries:
            _write_drops(connection, change)
        if change.dead_letters:
            kept = sa.update(runs).where(runs.c.uid.in_(change.dead_letters))
            connection.execute(kept.values(dead_letter_at=change.after.updated_at))
    insert_rows(connection, audit_events, event_columns(changes))


def _write_schedules(connection: Connection, changes: Sequence[Change]) -> None:
    touched = [schedule_differences(change.before, change.after) for change in changes if change.before is not None]
    names = sorted(set().union(*touched))
    moved = [change.after for change, found in zip(changes, touched, strict=True) if found]
    update_rows(connection, schedules, schedule_columns(moved, ["uid", *names]))


def _write_runs(connection: Connection, changes: Sequence[Change]) -> None:
    new = [run for change in changes for run in change.new_runs]
    if new:
        # Skip a duplicate key, because the error would fail every later fire of the schedule, too. While the schedule
        # is locked, no other process adds such a key.
        columns = {name: values for name, values in run_columns(new).items() if values.count(None) < len(values)}
        insert_rows(connection, runs, columns, or_ignore=True)
    pairs = [pair for change in changes for pair in change.changed_runs]
    touched = [run_differences(before, after) for before, after in pairs]
    # Write in the order of uids, in which the rows are locked. Two Changes of one run keep their order.
    moved = sorted((after for (_, after), found in zip(pairs, touched, strict=True) if found), key=attrgetter("uid"))
    update_rows(connection, runs, run_columns(moved, ["uid", *sorted(set().union(*touched))]))


def _write_drops(connection: Connection, change: Change) -> None:
    drops = (RunStatus.BUFFERED, change.drops_buffer), (RunStatus.RETRYING, change.drops_retries)
    is_dropped = runs.c.status.in_([status.value for status, is_dropped in drops if is_dropped])
    values = {"status": "cancelled", "ended_at": change.after.updated_at, "retry_at": None, "error": _DROPPED}
    connection.execute(sa.update(runs).where(runs.c.schedule_uid == change.after.uid, is_dropped).values(**values))


_DROPPED = "dropped: the schedule ended before it could start"


BELONGINGS = (
    counted, uncounted, hours, runs, targets, backfills, deliveries, audit_events, idempotency_keys, upstream_ends,
)  # fmt: skip
"""The tables with rows of a schedule. `counted` comes first, because no process counts the schedule's runs without this
row."""
_LONGEST = timedelta(minutes=10)
"""How long one DELETE of a purge may take, because a schedule may have any number of rows."""


def purge_schedule(connection: Connection, uid: str) -> None:
    """Delete a locked schedule's row with its runs, targets, backfills, deliveries, audit events, idempotency keys."""
    with without_limits(connection, for_at_most=_LONGEST):
        for table in BELONGINGS:
            connection.execute(sa.delete(table).where(table.c.schedule_uid == uid))
        connection.execute(sa.delete(upstream_ends).where(upstream_ends.c.upstream_uid == uid, ~IS_OWED))
        connection.execute(sa.delete(schedules).where(schedules.c.uid == uid))


def next_deliveries(connection: Connection, dead: Sequence[Run]) -> list[Run]:
    """Give the next delivery number to pending runs whose job is dead; returns the runs that are still pending.

    A run that another transaction has locked is left out, because a worker is claiming it or the process with the lock
    stalls.
    """
    deliveries = {run.uid: (run.attempt, run.delivery) for run in dead}
    locked = _lock_runs(connection, sorted(deliveries), skip_locked=True)
    again = [
        replace(run, delivery=run.delivery + 1)
        for run in locked
        if run.status is RunStatus.PENDING and (run.attempt, run.delivery) == deliveries[run.uid]
    ]
    update_rows(connection, runs, run_columns(again, ["uid", "delivery"]))
    return again


def read_idle(connection: Connection, uid: str) -> tuple[Schedule, str] | None:
    """Read a schedule without locking it, if it has no waiting run and no unfinished live run.

    Returns the schedule and the version of its row. While the row has this version, the schedule has no such run,
    because each write that adds or reopens a run also writes this row.
    """
    row = connection.execute(_READ_IDLE, {"uid": uid}).first()
    if row is None:
        return None
    *columns, version = row
    schedule = to_schedule(connection, columns)
    return None if schedule.buffer_depth or schedule.backfill_waiting else (schedule, version)


def write_one(connection: Connection, change: Change, *, version: str | None = None) -> bool:
    """Write a Change that only updates a schedule, starts a run and records events; returns False for any other Change.

    The caller has locked the schedule, or gives the `version` of its row that it has read. If the row has another
    version now, or if another transaction has locked it, nothing is written and False is returned.
    """
    before = change.before
    if before is None or not is_one_of_each(change):
        return False
    names = tuple(sorted(schedule_differences(before, change.after)))
    if not names:
        return False
    of_run, given = _rest_of(change)
    given |= _given("s", schedule_values(change.after, names)) | {"s_uid": change.after.uid}
    if version is not None:
        given["b_version"] = version
    statement = _write_one(names, of_run, len(change.events), is_as_read=version is not None)
    return connection.execute(statement, given).first() is not None


_READ_IDLE = sa.select(*SCHEDULE_COLUMNS, ROW_VERSION).where(
    schedules.c.uid == sa.bindparam("uid"),
    ~sa.exists().where(runs.c.schedule_uid == schedules.c.uid, IS_OPEN_LIVE),
)
_MOST_EVENTS = 3
"""The maximum number of audit events that one statement takes. The limit is low, so that few different statements are
prepared."""


def is_one_of_each(change: Change) -> bool:
    """Return whether a Change has few events, at most one new run, and touches no existing run."""
    more = change.changed_runs or change.drops_buffer or change.drops_retries or change.dead_letters
    return 1 <= len(change.events) <= _MOST_EVENTS and len(change.new_runs) <= 1 and not more


def _rest_of(change: Change) -> tuple[_Names, dict[str, Any]]:
    """Return the columns of the new run (none if there is no run), and the parameters for the run and the events."""
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


@lru_cache(maxsize=2)
def note_followed(dialect: Dialect) -> sa.Update:
    """Set `followed_at` of the new schedules (bound as `among`) that already have a downstream schedule.

    Takes one index lookup for each new schedule, or a single lookup if no schedule has an upstream.
    """
    # Ask for the minimum, because it is the first entry of the index. For EXISTS, a planner without statistics would
    # read the whole table.
    first = sa.select(sa.func.min(schedules.c.namespace)).where(COMES_AFTER).correlate(None).scalar_subquery()
    new = sa.select(schedules.c.uid).where(schedules.c.followed_at.is_(None), is_followed())
    found = dialect.of_each(new.correlate_except(schedules), schedules.c.uid)
    move = sa.update(schedules).where(first.is_not(None), schedules.c.uid.in_(found))
    return move.values(followed_at=schedules.c.created_at)


def is_followed(
    namespace: sa.ColumnElement[str] = schedules.c.namespace,
    schedule_id: sa.ColumnElement[str] = schedules.c.schedule_id,
) -> sa.ColumnElement[bool]:
    """Return the condition that a schedule has this id as its upstream, whether or not the upstream exists now."""
    other = schedules.alias()
    is_after = other.c.upstream_id == schedule_id, other.c.upstream_id.is_not(None)
    is_live = other.c.status != constant(ScheduleStatus.DELETED)
    return sa.exists().where(other.c.namespace == namespace, *is_after, is_live)


@lru_cache(maxsize=1024)
def _write_one(of_schedule: _Names, of_run: _Names, events: int, *, is_as_read: bool) -> sa.Insert:
    is_this = schedules.c.uid == sa.bindparam("s_uid")
    if is_as_read:
        is_version = sa.bindparam("b_version") == ROW_VERSION
        free = sa.select(schedules.c.uid).where(is_this, is_version)
        locked = free.with_for_update(key_share=True, skip_locked=True).cte("locked")
        is_this = schedules.c.uid == locked.c.uid
    move = sa.update(schedules).where(is_this)
    moved = move.values(_bound("s", schedules, of_schedule)).returning(schedules.c.uid).cte("moved")
    return _recorded(moved, of_run, events)


def _recorded(written: sa.CTE, of_run: _Names, events: int) -> sa.Insert:
    """Return a statement that inserts events and a run if `written` has a row. It then returns a row."""
    events_of = [_bound(f"e{place}", audit_events, audit_events.c.keys()) for place in range(events)]
    *others, recorded = (_if_written(sa.insert(audit_events), values, written) for values in events_of)
    # Do not use one INSERT with several VALUES: SQLAlchemy would compile it again each time.
    recorded = recorded.add_cte(*(one.cte(f"event_{at}") for at, one in enumerate(others)))
    if of_run:
        # Skip a duplicate key, as `_write_runs` does. If the row still has its version, there is no such key.
        start = POSTGRES.insert(runs).on_conflict_do_nothing()
        recorded = recorded.add_cte(_if_written(start, _bound("r", runs, of_run), written).cte("started"))
    return recorded.returning(audit_events.c.sequence)


def _if_written(insert: sa.Insert, values: dict[str, sa.BindParameter[Any]], schedule: sa.CTE) -> sa.Insert:
    """Make an INSERT write its row only if the schedule's row was written."""
    selected = values | {"schedule_uid": schedule.c.uid}
    return insert.from_select(list(selected), sa.select(*selected.values()))


class Sees(NamedTuple):
    """Further columns that `end_alone` returns, with the values that they had before the end."""

    columns: tuple[sa.Label[Any], ...] = ()
    """The columns, with distinct names. They are built once, when the process starts."""
    given: Mapping[str, Any] = {}
    """The values of the columns' parameters."""


NOTHING = Sees()
Seen: TypeAlias = Mapping[str, Any]
"""The values of the columns of `Sees`, by name."""


def end_alone(connection: Connection, sees: Sees = NOTHING, *, change: Change, token: str, version: str) -> Seen | None:
    """Write a Change of one schedule and one running run, if the schedule's row still has this `version`.

    The run must also still have this `token`. Returns the values of the columns that it `sees`, or None if nothing was
    written. This is one statement, which locks the schedule before the run, as every decision does. PostgreSQL only.
    """
    ((before, after),) = change.changed_runs
    of_schedule = tuple(sorted(schedule_differences(change.before or change.after, change.after) | _OF_SCHEDULE))
    of_run = tuple(sorted(run_differences(before, after) | _OF_RUN))
    given = _given("s", schedule_values(change.after, of_schedule)) | _given("r", run_values(after, of_run))
    given |= {"b_schedule": change.after.uid, "b_version": version, "b_run": after.uid, "b_token": token}
    given |= sees.given
    ended = connection.execute(_end_alone(of_schedule, of_run, sees.columns), given).first()
    if ended is None:
        return None
    return {column.name: value for column, value in zip(sees.columns, ended[1:], strict=True)}


_OF_SCHEDULE = {"consecutive_failures", "last_outcome", "operation", "success_count", "updated_at"}
_OF_RUN = {"attempts", "ended_at", "result", "status"}
"""Columns that are always written, even if unchanged, so that nearly every success is the same statement."""


@lru_cache(maxsize=64)
def _end_alone(of_schedule: _Names, of_run: _Names, seen: tuple[sa.Label[Any], ...]) -> sa.Update:
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
            # Repeat the uid as a parameter. With only the join, a plan may search the open runs of all schedules.
            runs.c.schedule_uid == sa.bindparam("b_schedule"),
            runs.c.uid == sa.bindparam("b_run"),
            is_held_by(runs, sa.bindparam("b_token")),
        )
        .values({name: sa.bindparam(f"r_{name}", type_=runs.c[name].type) for name in of_run})
        .returning(runs.c.schedule_uid)
        .cte("ended")
    )
    return (
        sa.update(schedules)
        .where(schedules.c.uid == ended.c.schedule_uid)
        .values({name: sa.bindparam(f"s_{name}", type_=schedules.c[name].type) for name in of_schedule})
        .returning(schedules.c.uid, *seen)
    )
