"""Queries that list, count and find runs.

Every query is bounded, whatever is stored. A *live* run is a run that no backfill started. A *slim* run or schedule is
read without its large columns, such as the arguments. A *dead letter* is a failed run that is kept in a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import BLOCKED, EXPIRED, Run, RunStatus, Schedule, TargetStatus, changed
from rqsched.kernel.decide.results import Page
from rqsched.kernel.queries.pages import (
    bind_cursor,
    cut_to_size,
    malformed_cursor,
    newest_since,
    page_of,
    read_cursor,
    unbind_cursor,
    write_cursor,
)
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.rows import (
    RUN_COLUMNS,
    SELECT_RUNS,
    SELECT_RUNS_WITH_SCHEDULES,
    SELECT_SLIM_RUNS,
    SELECT_SLIM_SCHEDULES,
    to_run,
    to_run_and_schedule,
    to_runs_and_schedules,
    to_schedules_with_last,
    with_upstreams,
)
from rqsched.kernel.store.tables import (
    HAS_FAILED,
    HAS_JOB,
    IS_BACKFILLED,
    IS_DEAD_LETTER,
    IS_EXPIRED,
    IS_IN_LINE,
    IS_LIVE,
    IS_OCCURRENCE,
    IS_OPEN,
    IS_OPEN_TARGET,
    IS_TARGET_IN_LINE,
    IS_UNFINISHED,
    SHOWN_STATUS,
    WAITS_FOR_CODE,
    constant,
    is_outside,
    line_order,
    of_schedule,
    runs,
    schedules,
    targets,
)
from rqsched.when.moved import REACH

MOST_AHEAD = 1_000
"""How many of the runs ahead of a run in line are counted at most."""


def list_runs(
    connection: Connection,
    schedule_uid: str,
    *,
    limit: int,
    cursor: str | None = None,
    statuses: Sequence[str] = (),
    backfill_uid: str | None = None,
    is_live: bool = False,
    most: int | None = None,
    is_slim: bool = False,
) -> Page[Run]:
    """Read runs of a schedule, newest first. The status `blocked` selects the pending runs that are blocked.

    `is_live` leaves out the runs of backfills, and `backfill_uid` selects the runs of one backfill.
    `most` and `is_slim` are as in `list_schedules`. Slim runs also have no attempts and no result.
    """
    statement = (SELECT_SLIM_RUNS if is_slim else SELECT_RUNS).where(runs.c.schedule_uid == schedule_uid)
    if statuses:
        statement = statement.where(is_one_of(statuses))
    if backfill_uid is not None:
        statement = statement.where(runs.c.backfill_uid == backfill_uid)
    if is_live:
        statement = statement.where(~IS_BACKFILLED)
    if cursor is not None:
        if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:
            raise malformed_cursor()
        statement = statement.where(runs.c.number < int(cursor))
    statement, cut = cut_to_size(connection, statement.order_by(runs.c.number.desc()).limit(limit + 1), most)
    found = to_show(connection, [to_run(row) for row in connection.execute(statement)])
    return page_of(found, limit, lambda run: str(run.number), cut)


def to_show(connection: Connection, found: list[Run]) -> list[Run]:
    """Return runs with all shown values, also those of other rows. A query is made only if a run needs such values."""
    return with_upstreams(connection, with_places(connection, found))


def with_places(connection: Connection, found: list[Run]) -> list[Run]:
    """Return runs with their places in line. If no run is in line, nothing is read.

    The place is `MOST_AHEAD` + 1 if at least `MOST_AHEAD` runs are ahead.
    """
    groups = sorted({run.limit_group for run in found if run.limit_group is not None and run.is_in_line})
    places = dict[str, int]()
    for group in groups:
        line = connection.execute(_LINE, {"group": group}).scalars()
        places |= {uid: place for place, uid in enumerate(line, 1)}
    beyond = MOST_AHEAD + 1
    return [changed(run, place_in_line=places.get(run.uid, beyond)) if run.is_in_line else run for run in found]


def _first_in_line(table: sa.Table, is_in_line: sa.ColumnElement[bool]) -> sa.Select[Any]:
    order = line_order(table)
    group = table.c.limit_group == sa.bindparam("group", type_=table.c.limit_group.type)
    first = sa.select(table.c.uid, *order[:2]).where(is_in_line, group).order_by(*order).limit(MOST_AHEAD)
    return sa.select(first.subquery())


_BOTH = sa.union_all(_first_in_line(runs, IS_IN_LINE), _first_in_line(targets, IS_TARGET_IN_LINE)).subquery()
_LINE = sa.select(_BOTH.c.uid).order_by(*line_order(_BOTH)).limit(MOST_AHEAD)


def is_one_of(statuses: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a run has one of these statuses.

    `blocked` means pending runs that are blocked, and `expired` means cancelled runs that have expired.
    """
    is_one = runs.c.status.in_([name for name in statuses if name not in {BLOCKED, EXPIRED}])
    more = [(BLOCKED, WAITS_FOR_CODE), (EXPIRED, IS_EXPIRED)]
    return sa.or_(is_one, *(condition for name, condition in more if name in statuses))


def find_run_in(connection: Connection, namespace: str, uid: str) -> Run | None:
    """Read a run of any schedule of a namespace by its uid."""
    is_parent = schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
    is_there = sa.select(schedules.c.uid).where(*is_parent).exists()
    row = connection.execute(SELECT_RUNS.where(runs.c.uid == uid.upper(), is_there)).first()
    return None if row is None else to_show(connection, [to_run(row)])[0]


def find_run_with_schedule(connection: Connection, namespace: str, uid: str) -> tuple[Schedule, Run] | None:
    """Read a run of any schedule of a namespace by its uid, with its schedule."""
    is_this = runs.c.uid == uid.upper(), schedules.c.namespace == namespace
    row = connection.execute(SELECT_RUNS_WITH_SCHEDULES.where(*is_this)).first()
    if row is None:
        return None
    run, schedule = to_run_and_schedule(connection, row)
    return schedule, run


def find_run_of(connection: Connection, schedule_uid: str, run: str) -> Run | None:
    """Read one run of a schedule by uid, number or instance id."""
    by_name: sa.ColumnElement[bool] = (runs.c.uid == run.upper()) | (runs.c.instance_id == run)
    if run.isascii() and run.isdigit() and len(run) <= 18:
        by_name = runs.c.number == int(run)
    row = connection.execute(SELECT_RUNS.where(runs.c.schedule_uid == schedule_uid, by_name)).first()
    return None if row is None else to_show(connection, [to_run(row)])[0]


class FailedRuns(NamedTuple):
    """The filters of failed and lost runs; a run must match each filter that is given."""

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


_SELECT_NAMED = sa.select(*RUN_COLUMNS, schedules.c.schedule_id).join(schedules, schedules.c.uid == runs.c.schedule_uid)


def _named(rows: Iterable[Sequence[Any]]) -> list[tuple[str, Run]]:
    """Read runs, each with the id of its schedule, which is the last column."""
    return [(row[-1], to_run(row[:-1])) for row in rows]


def failed_runs(connection: Connection, wanted: FailedRuns, limit: int) -> list[tuple[str, Run]]:
    """Read failed and lost runs of schedules that are not deleted, oldest end first, with the ids of the schedules."""
    statement = _SELECT_NAMED.where(HAS_FAILED, runs.c.ended_at >= wanted.since)
    statement = statement.where(IS_LIVE, schedules.c.namespace == wanted.namespace)
    if wanted.until is not None:
        statement = statement.where(runs.c.ended_at < wanted.until)
    if wanted.schedule_id is not None:
        statement = statement.where(schedules.c.schedule_id == wanted.schedule_id)
    if wanted.workflow is not None:
        statement = statement.where(runs.c.workflow == wanted.workflow)
    rows = connection.execute(statement.order_by(runs.c.ended_at, runs.c.uid).limit(limit))
    return _named(rows)


class FailureMark(NamedTuple):
    """The values by which failed and lost runs are grouped."""

    schedule_uid: str
    """The uid of the run's schedule."""
    uid: str
    """The uid of the run."""
    error: str
    """The beginning of the run's error. If this is a traceback, which ends with the error: `Traceback` and its end."""


def failed_since(
    connection: Connection, namespace: str, since: datetime, limit: int
) -> tuple[list[FailureMark], datetime]:
    """Read a namespace's runs that failed or were lost since `since`, newest first.

    Only the newest failures of all namespaces are searched. Also returns the time from which the result is complete.
    This time is later than `since` if all namespaces together have more failures than are searched.
    """
    order = runs.c.ended_at.desc(), runs.c.uid.desc()
    last = sa.select(runs.c.ended_at).where(HAS_FAILED, runs.c.ended_at >= since).order_by(*order)
    begin = connection.execute(last.offset(_FAILED_AMONG - 1).limit(1)).scalar() or since
    text = sa.func.coalesce(runs.c.error, "")
    is_long = sa.func.length(text) > _SHOWN_OF_ERROR
    end = "Traceback " + sa.func.substr(text, sa.func.length(text) - _SHOWN_OF_ERROR)
    shown = sa.case((is_long & text.startswith("Traceback "), end), else_=sa.func.substr(text, 1, _SHOWN_OF_ERROR))
    statement = (
        sa.select(runs.c.schedule_uid, runs.c.uid, shown)
        .where(HAS_FAILED, runs.c.ended_at >= begin, is_of_namespace(namespace))
        .order_by(*order)
    )
    return [FailureMark(*row) for row in connection.execute(statement.limit(limit)).all()], begin


_FAILED_AMONG = 5_000
"""How many of the newest failures of all namespaces are searched for the failures of one namespace."""
_SHOWN_OF_ERROR = 300


class FailedRun(NamedTuple):
    """A run that failed or was lost."""

    schedule_id: str
    """The id of its schedule."""
    uid: str
    """Its uid."""
    number: int
    """Its number within the schedule."""
    ended_at: datetime
    """When it ended."""
    error: str | None
    """Its whole error."""


def failures_of(connection: Connection, uids: Sequence[str]) -> dict[str, FailedRun]:
    """Read some runs that failed or were lost, by their uids."""
    columns = of_schedule(schedules.c.schedule_id, runs), *(runs.c[name] for name in FailedRun._fields[1:])
    found = connection.execute(sa.select(*columns).where(runs.c.uid.in_(uids), HAS_FAILED)) if uids else ()
    return {run.uid: run for run in (FailedRun(*row) for row in found)}


def recent_runs(connection: Connection, namespace: str, limit: int) -> list[tuple[str, Run]]:
    """Read the newest runs of a namespace, newest first, each with the id of its schedule.

    The newest runs of all namespaces are searched first, because the runs of a busy namespace are among them. If they
    are too few, the runs are read through the schedules of the namespace.
    """
    newest = runs.c.uid.desc()  # uids begin with the time, so the primary key is in the order of creation
    statement = _SELECT_NAMED.where(schedules.c.namespace == namespace).order_by(newest).limit(limit)
    of_all = sa.select(runs.c.uid).order_by(newest).limit(_LOOKED_AT)
    found = connection.execute(statement.where(runs.c.uid.in_(of_all))).all()
    rows = found if len(found) == limit else connection.execute(statement)
    return _named(rows)


_LOOKED_AT = 200
"""How many of the newest runs of all namespaces are searched for the runs of one namespace."""


class LastRun(NamedTuple):
    """The newest run of a schedule, for the schedule's description."""

    schedule_uid: str
    """The uid of the schedule."""
    status: RunStatus
    """The status of the run."""
    attempt: int
    """The current attempt of the run."""
    blocked_at: datetime | None
    """When a worker could not find the run's workflow."""
    blocked_reason: str | None
    """The worker that could not find the run's workflow, and the reason."""

    @property
    def is_blocked(self) -> bool:
        """Whether the run waits for a worker that can find its workflow."""
        return self.blocked_at is not None and self.status is RunStatus.PENDING


_SELECT_LATEST = sa.select(
    runs.c.schedule_uid, runs.c.status, runs.c.attempt, runs.c.blocked_at, runs.c.blocked_reason
).where(runs.c.uid.in_(sa.bindparam("uids", expanding=True)))


def last_runs(connection: Connection, found: Sequence[Schedule]) -> dict[str, LastRun]:
    """Read the newest run of each schedule, by the schedule's uid."""
    uids = [schedule.last_run_uid for schedule in found if schedule.last_run_uid]
    if not uids:
        return {}
    rows = connection.execute(_SELECT_LATEST, {"uids": uids}).all()
    return {uid: LastRun(uid, RunStatus(status), *rest) for uid, status, *rest in rows}


class Streak(NamedTuple):
    """A schedule's newest failures in a row."""

    since: datetime | None = None
    """When the first of these failures ended; None if it is not stored any more."""
    succeeded_at: datetime | None = None
    """When the newest success before these failures ended; None if the searched runs have none."""


def streaks(connection: Connection, found: Collection[Schedule]) -> dict[str, Streak]:
    """Read the newest failures in a row of each schedule that has any, by the schedule's uid.

    If a schedule has more than `MOST_AHEAD` of them, its times are None.
    """
    told = {one.uid: Streak() for one in found if one.consecutive_failures}
    numbers = {one.uid: one.consecutive_failures for one in found if 0 < one.consecutive_failures <= MOST_AHEAD}
    given: dict[str, Any] = {}
    for place, (uid, number) in enumerate(numbers.items()):
        given |= {f"of_{place}": uid, f"later_{place}": number - 1, f"among_{place}": number + _BEFORE}
    rows = connection.execute(_select_streaks(len(numbers)), given) if numbers else ()
    return told | {uid: Streak(since, succeeded_at) for uid, since, succeeded_at in rows}


_BEFORE = 50
"""How many runs before the failures in a row are searched for a success."""


@lru_cache(maxsize=64)
def _select_streaks(count: int) -> sa.CompoundSelect[Any]:
    """Select the times of a Streak for `count` schedules. To build the statement takes longer than to run it."""
    each = []
    for place in range(count):
        uid = sa.bindparam(f"of_{place}", type_=runs.c.schedule_uid.type)
        later, among = (sa.bindparam(f"{name}_{place}", type_=sa.Integer) for name in ("later", "among"))
        live = sa.select(runs.c.ended_at, runs.c.status, runs.c.number).where(
            runs.c.schedule_uid == uid, ~IS_BACKFILLED
        )
        live = live.order_by(runs.c.number.desc())
        first = live.with_only_columns(runs.c.ended_at).where(HAS_FAILED).offset(later).limit(1)
        newest = live.limit(among).subquery()
        success = sa.select(newest.c.ended_at).where(newest.c.status == constant(RunStatus.SUCCEEDED))
        success = success.order_by(newest.c.number.desc()).limit(1)
        each.append(sa.select(uid, first.scalar_subquery(), success.scalar_subquery()))
    return sa.union_all(*each)


class RunOutline(NamedTuple):
    """The values of one run that a chart needs."""

    uid: str
    """The uid of the run."""
    schedule_uid: str
    """The uid of its schedule."""
    number: int
    """The number of the run within the schedule."""
    status: str
    """The status of the run."""
    kind: str
    """The origin of the run."""
    occurrence_at: datetime
    """The nominal time."""
    due_at: datetime | None
    """When the run was due to start."""
    started_at: datetime | None
    """When the newest attempt began."""
    ended_at: datetime | None
    """When the run ended."""
    attempt: int
    """The number of the newest attempt."""

    @property
    def waited(self) -> timedelta | None:
        """The time from the due time to the start of the first attempt; None if this start is not known."""
        is_known = self.due_at is not None and self.started_at is not None and self.attempt == 1
        return max(self.started_at - self.due_at, timedelta(0)) if is_known else None  # type: ignore[operator]

    @property
    def took(self) -> timedelta | None:
        """How long the newest attempt took; None before the end of the run."""
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at


_OUTLINE = [runs.c[name] for name in RunOutline._fields]


def newest_runs(connection: Connection, uids: Sequence[str], count: int) -> dict[str, list[RunOutline]]:
    """Read the newest `count` live runs of each schedule, by the schedule's uid. The oldest of them comes first."""
    if not uids:
        return {}
    each = []
    for uid in uids:
        live = sa.select(*_OUTLINE).where(runs.c.schedule_uid == uid, ~IS_BACKFILLED)
        each.append(sa.select(live.order_by(runs.c.number.desc()).limit(count).subquery()))
    found: dict[str, list[RunOutline]] = {uid: [] for uid in uids}
    for row in connection.execute(sa.union_all(*each)):
        found[row.schedule_uid].append(RunOutline(*row))
    return {uid: sorted(outlines, key=lambda run: run.number) for uid, outlines in found.items()}


def count_backfilled(connection: Connection, backfill_uids: Sequence[str], most: int) -> dict[str, dict[str, int]]:
    """Count the first `most` runs of each backfill by status. A backfill without runs is left out."""
    found: dict[str, dict[str, int]] = {}
    for uid in backfill_uids:
        first = sa.select(runs.c.status).where(runs.c.backfill_uid == uid).order_by(runs.c.number).limit(most)
        of_one = first.subquery()
        counted = connection.execute(sa.select(of_one.c.status, sa.func.count()).group_by(of_one.c.status))
        if counts := {row[0]: row[1] for row in counted}:
            found[uid] = counts
    return found


def run_of_occurrence(connection: Connection, schedule_uid: str, start: datetime, end: datetime) -> Run | None:
    """Read the run of the first occurrence in [start, end) that has a run. Runs of triggers do not count."""
    within = runs.c.occurrence_at >= start, runs.c.occurrence_at < end
    found = SELECT_SLIM_RUNS.where(runs.c.schedule_uid == schedule_uid, IS_OCCURRENCE, *within)
    row = connection.execute(found.order_by(runs.c.occurrence_at).limit(1)).first()
    return None if row is None else to_run(row)


def run_standing_for(connection: Connection, schedule_uid: str, nominal: datetime) -> Run | None:
    """Read the run for a nominal instant that was moved to another day."""
    near = runs.c.occurrence_at > nominal - REACH, runs.c.occurrence_at < nominal + REACH
    named = runs.c.nominals.contains(f'"{iso_utc(nominal)}"', autoescape=True)
    found = SELECT_SLIM_RUNS.where(runs.c.schedule_uid == schedule_uid, IS_OCCURRENCE, *near, named)
    row = connection.execute(found.order_by(runs.c.occurrence_at).limit(1)).first()
    return None if row is None else to_run(row)


def neighbours(connection: Connection, schedule_uid: str, number: int) -> tuple[RunOutline | None, RunOutline | None]:
    """Read the runs of a schedule before and after the run `number`, each None if it does not exist (any more)."""
    of_schedule, column = sa.select(*_OUTLINE).where(runs.c.schedule_uid == schedule_uid), runs.c.number
    before = of_schedule.where(column < number).order_by(column.desc())
    after = of_schedule.where(column > number).order_by(column.asc())
    earlier, later = (
        [RunOutline(*row) for row in connection.execute(statement.limit(1))] for statement in (before, after)
    )
    return next(iter(earlier), None), next(iter(later), None)


def runs_ahead(connection: Connection, schedule_uids: Collection[str]) -> dict[str, RunOutline]:
    """Read, for each schedule, the oldest unfinished run that has begun or may begin; by the schedule's uid."""
    if not schedule_uids:
        return {}
    begun = [status.value for status in (RunStatus.RUNNING, RunStatus.PENDING, RunStatus.RETRYING)]
    is_meant = sa.select(*_OUTLINE).where(IS_OPEN, runs.c.status.in_(begun)).order_by(runs.c.number).limit(1)
    each = [sa.select(is_meant.where(runs.c.schedule_uid == uid).subquery()) for uid in schedule_uids]
    return {run.schedule_uid: run for run in (RunOutline(*row) for row in connection.execute(sa.union_all(*each)))}


def success_before(connection: Connection, schedule_uid: str, number: int) -> RunOutline | None:
    """Read the newest successful live run before the run `number`, among the `MOST_AHEAD` live runs before it."""
    live = sa.select(*_OUTLINE).where(runs.c.schedule_uid == schedule_uid, ~IS_BACKFILLED, runs.c.number < number)
    before = live.order_by(runs.c.number.desc()).limit(MOST_AHEAD).subquery()
    found = sa.select(before).where(before.c.status == RunStatus.SUCCEEDED.value).order_by(before.c.number.desc())
    row = connection.execute(found.limit(1)).first()
    return None if row is None else RunOutline(*row)


class Outcome(NamedTuple):
    """The number of runs with the same key, status and `is_backfilled`, and their times."""

    key: Any
    """The value of the key, such as a queue or a time."""
    is_backfilled: bool
    """Whether a backfill created the runs."""
    status: str
    """The final status (`expired` for runs that were not started in time) or the current status."""
    runs: int
    """How many runs."""
    late: list[int]
    """How many microseconds after its due time each run started. Only live runs in their first attempt are included."""
    took: int
    """The total microseconds of the newest attempts of ended runs, without waits for targets; 0 if not asked for."""


BY_QUEUE: sa.ColumnElement[Any] = runs.c.queue
"""The key of `outcomes` for the queue that a run names; None is the default queue."""


def newest(connection: Connection, start: datetime, most: int) -> tuple[sa.ColumnElement[bool], datetime]:
    """Return a condition for the newest runs since `start`, at most `most`, and when the oldest of them was created."""
    return newest_since(connection, runs, start, most)


def outcomes(
    connection: Connection,
    namespace: str | None,
    is_among: sa.ColumnElement[bool],
    key: sa.ColumnElement[Any],
    *,
    with_took: bool = False,
) -> list[Outcome]:
    """Count the runs that meet the condition `is_among`, of a namespace or of all, by the values of `key`.

    SQL counts, because it would be slow to read the rows. Most of its time is for instants as numbers, so `took` is
    added up only if it is asked for.
    """
    microseconds, is_backfilled = dialect_of(connection).microseconds, IS_BACKFILLED
    late = sa.cast(microseconds(runs.c.started_at) - microseconds(runs.c.due_at), sa.Text)
    is_first = ~is_backfilled & (runs.c.attempt == sa.text("1"))
    until = sa.func.coalesce(runs.c.dispatched_at, runs.c.ended_at)
    has_ended = runs.c.ended_at.is_not(None) & runs.c.started_at.is_not(None)
    took: sa.ColumnElement[int] = sa.literal_column("0")
    if with_took:
        took = sa.func.sum(sa.case((has_ended, microseconds(until) - microseconds(runs.c.started_at)), else_=0))
    listed = sa.func.coalesce(sa.func.aggregate_strings(sa.case((is_first, late)), ","), "")
    by = key, is_backfilled, SHOWN_STATUS
    statement = sa.select(*(one.label(f"by_{place}") for place, one in enumerate(by)), sa.func.count(), listed, took)
    names = [sa.text(f"by_{place}") for place in range(len(by))]  # an expression with bound values would not match
    of_it = [] if namespace is None else [is_of_namespace(namespace)]
    rows = connection.execute(statement.where(is_among, *of_it).group_by(*names))
    return [Outcome(*row[:4], [int(one) for one in row[4].split(",") if one], int(row[5])) for row in rows]


def is_of_namespace(namespace: str) -> sa.ColumnElement[bool]:
    """Return the condition that runs are of a namespace. If there is no other namespace, no schedule is read.

    To read the schedule of each run would take a third of the query's time. The condition is a CASE, because PostgreSQL
    expects that a comparison with a subquery leaves few rows, and would then not read a page in its order.
    """
    # Compare the first and the last namespace of the index. With `<` and `>`, a plan would read all schedules.
    ends = (sa.select(end(schedules.c.namespace)).scalar_subquery() for end in (sa.func.min, sa.func.max))
    is_only = sa.and_(*(end == namespace for end in ends))
    return sa.case((is_only, sa.true()), else_=of_schedule(schedules.c.namespace, runs) == namespace)


def slot_of_creation(connection: Connection, start: datetime, width: timedelta) -> sa.ColumnElement[int]:
    """Return the number of the time slot in which a run was created; -1 before `start`. Each slot is `width` long."""
    since = dialect_of(connection).microseconds(runs.c.created_at) - int(start.timestamp()) * 1_000_000
    step = width // timedelta(microseconds=1)
    return sa.case((runs.c.created_at < start, -1), else_=since // step)


class Waiting(NamedTuple):
    """Runs or targets that wait on one queue of the main Redis."""

    queue: str | None
    """The name of the queue; None for the default queue."""
    number: int
    """How many runs or targets wait."""
    since: datetime | None
    """When the first of these began to wait for a worker; None if all are blocked."""


def waiting_by_queue(
    connection: Connection, namespace: str | None, most: int, frozen: Collection[str] = ()
) -> list[Waiting]:
    """Count the pending runs and targets of a namespace, or of all, by the queue of the main Redis that they name.

    Only the `most` oldest runs and the `most` oldest targets of all namespaces are read. A queue may appear twice: for
    runs and for targets. Runs of `frozen` namespaces are left out, because they wait for a thaw.
    """
    statement = _select_waiting(namespace, most, tuple(sorted(frozen)))
    return [Waiting(*row) for row in connection.execute(statement)]


@lru_cache(maxsize=64)
def _select_waiting(namespace: str | None, most: int, frozen: Sequence[str]) -> sa.CompoundSelect[Any]:
    is_meant = sa.and_(_IS_PENDING_IN_RQ, *is_outside(frozen, runs.c.schedule_uid))
    counted = []
    for table, is_waiting in ((runs, is_meant), (targets, _IS_PENDING_TARGET)):
        oldest = (
            sa.select(*(table.c[name] for name in ("uid", "queue", "schedule_uid", "queued_at", "blocked_at")))
            .where(is_waiting, table.c.connection.is_(None))
            .order_by(table.c.uid)
            .limit(most)
            .subquery()
        )
        since = sa.func.min(sa.case((oldest.c.blocked_at.is_(None), oldest.c.queued_at)))
        statement = sa.select(oldest.c.queue, sa.func.count(), since).group_by(oldest.c.queue)
        if namespace is not None:
            joined = oldest.join(schedules, schedules.c.uid == oldest.c.schedule_uid)
            statement = statement.select_from(joined).where(schedules.c.namespace == namespace)
        counted.append(statement)
    return sa.union_all(*counted)


def waiting(
    connection: Connection, limit: int, namespace: str | None = None, frozen: Collection[str] = ()
) -> list[tuple[Schedule, Run]]:
    """Read the runs of a namespace, or of all, that wait for an attempt to begin, with their schedules, oldest first.

    Runs of `frozen` namespaces are left out.
    """
    statuses = [status.value for status in (RunStatus.PENDING, RunStatus.RETRYING, RunStatus.BUFFERED)]
    is_meant = [IS_OPEN, runs.c.status.in_(statuses), *is_outside(frozen)]
    is_meant += [] if namespace is None else [schedules.c.namespace == namespace]
    statement = SELECT_RUNS_WITH_SCHEDULES.where(*is_meant).order_by(runs.c.uid)
    found = to_runs_and_schedules(connection, connection.execute(statement.limit(limit)).all())
    return [(schedule, run) for run, schedule in found]


def running(connection: Connection, namespace: str | None, most: int) -> list[tuple[Schedule, datetime]]:
    """Read the `most` oldest live runs that execute: for each, its schedule (slim) and when its attempt began."""
    is_running = IS_UNFINISHED & (runs.c.status == constant(RunStatus.RUNNING))
    statement = (
        SELECT_SLIM_SCHEDULES.add_columns(runs.c.started_at)
        .join_from(schedules, runs, runs.c.schedule_uid == schedules.c.uid)
        .where(is_running, ~IS_BACKFILLED, runs.c.started_at.is_not(None))
        .order_by(runs.c.uid)
        .limit(most)
    )
    if namespace is not None:
        statement = statement.where(dialect_of(connection).unindexed(schedules.c.namespace) == namespace)
    return to_schedules_with_last(connection, connection.execute(statement).all())


_IS_PENDING_IN_RQ = IS_UNFINISHED & (runs.c.status == constant(RunStatus.PENDING)) & (runs.c.executor == "rq") & HAS_JOB
"""Whether a run waits on its queue. A run in the line of a group does not wait for a worker yet."""
_IS_PENDING_TARGET = (
    IS_OPEN_TARGET & (targets.c.status == constant(TargetStatus.PENDING)) & targets.c.queued_at.is_not(None)
)


def blocked_runs(connection: Connection, namespace: str | None, limit: int) -> list[tuple[Schedule, str | None]]:
    """Read the blocked runs of a namespace, or of all: for each, its schedule (slim) and the reason; oldest first."""
    statement = (
        SELECT_SLIM_SCHEDULES.add_columns(runs.c.blocked_reason)
        .join_from(schedules, runs, runs.c.schedule_uid == schedules.c.uid)
        .where(WAITS_FOR_CODE)
        .order_by(runs.c.blocked_at, runs.c.uid)
        .limit(limit)
    )
    if namespace is not None:
        statement = statement.where(dialect_of(connection).unindexed(schedules.c.namespace) == namespace)
    return to_schedules_with_last(connection, connection.execute(statement).all())


class RunName(NamedTuple):
    """The names of a run."""

    number: int
    """Its number within its schedule."""
    schedule_id: str
    """The id of its schedule."""
    started_at: datetime | None
    """When its newest attempt began."""


def names_of_runs(connection: Connection, namespace: str, uids: Sequence[str]) -> dict[str, RunName]:
    """Return the names of the runs in a namespace, by uid."""
    statement = (
        sa.select(runs.c.uid, runs.c.number, schedules.c.schedule_id, runs.c.started_at)
        .join(schedules, schedules.c.uid == runs.c.schedule_uid)
        .where(runs.c.uid.in_(uids), schedules.c.namespace == namespace)
    )
    return {uid: RunName(*rest) for uid, *rest in connection.execute(statement)} if uids else {}


class DeadLetters(NamedTuple):
    """The filters of a list of dead letters."""

    namespace: str
    """The namespace of their schedules."""
    queue: str | None
    """The queue they were on; None shows all."""
    default_queue: str
    """The queue of runs that name no queue."""


def page_of_dead_letters(
    connection: Connection, wanted: DeadLetters, *, limit: int, cursor: str | None, offset: int = 0
) -> Page[tuple[Run, Schedule]]:
    """Read a page of dead letters with their schedules."""
    statement, of = _SELECT_DEAD_LETTERS.where(*_are_wanted(wanted)), ("dead letters", wanted.namespace, wanted.queue)
    if (place := unbind_cursor(cursor, *of)) is not None:
        instant, uid = read_cursor(place)
        bound = sa.tuple_(sa.literal(instant, runs.c.dead_letter_at.type), sa.literal(uid, runs.c.uid.type))
        statement = statement.where(sa.tuple_(runs.c.dead_letter_at, runs.c.uid) < bound)
    statement = statement.order_by(runs.c.dead_letter_at.desc(), runs.c.uid.desc()).limit(limit + 1).offset(offset)
    rows = connection.execute(statement).all()
    kept = rows[:limit]
    following = write_cursor(kept[-1].dead_letter_at, kept[-1][0]) if len(rows) > limit else None
    return Page(to_runs_and_schedules(connection, kept), bind_cursor(following, *of))


def count_dead_letters(connection: Connection, wanted: DeadLetters) -> int:
    """Count the dead letters that all pages show together."""
    statement = sa.select(sa.func.count()).select_from(_DEAD_LETTERS).where(*_are_wanted(wanted))
    return connection.execute(statement).scalar_one()


def find_dead_letter(connection: Connection, uid: str, *, namespace: str) -> tuple[Run, Schedule] | None:
    """Read one dead letter with its schedule; None if the namespace has no such dead letter."""
    statement = _SELECT_DEAD_LETTERS.where(IS_DEAD_LETTER, runs.c.uid == uid, schedules.c.namespace == namespace)
    row = connection.execute(statement).first()
    return None if row is None else to_run_and_schedule(connection, row)


def forget_dead_letter(connection: Connection, uid: str, *, namespace: str) -> bool:
    """Remove a run from the dead letters; returns whether it was a dead letter of the namespace."""
    is_parent = schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
    statement = sa.update(runs).where(
        runs.c.uid == uid, IS_DEAD_LETTER, sa.select(schedules.c.uid).where(*is_parent).exists()
    )
    return connection.execute(statement.values(dead_letter_at=None)).rowcount == 1


def take_off_dead_letters(connection: Connection, uids: Sequence[str]) -> None:
    """Remove runs from the dead letters, because they begin again. The caller has locked their schedule."""
    retried = dialect_of(connection).one_of(runs.c.uid, uids)
    connection.execute(sa.update(runs).where(retried, IS_DEAD_LETTER).values(dead_letter_at=None))


_DEAD_LETTERS = runs.join(schedules, schedules.c.uid == runs.c.schedule_uid)
_SELECT_DEAD_LETTERS = SELECT_RUNS_WITH_SCHEDULES.add_columns(runs.c.dead_letter_at)


def _are_wanted(wanted: DeadLetters) -> list[sa.ColumnElement[bool]]:
    found = [IS_DEAD_LETTER, schedules.c.namespace == wanted.namespace]
    if wanted.queue is not None:
        found.append(sa.func.coalesce(runs.c.queue, wanted.default_queue) == wanted.queue)
    return found
