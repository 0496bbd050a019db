"""A timeline from runs, and one from hours, agree with a count of each run."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from rqsched.features.hours import store as run_hours
from rqsched.features.hours import timeline
from rqsched.features.hours.timeline import Columns, Lot
from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule
from rqsched.kernel.store.database import Database
from tests.kernel.store.samples import NOW, add_schedule, run_of, write

HOUR = 3_600
START = int(NOW.timestamp()) // HOUR * HOUR - 100 * HOUR
STATUSES = [RunStatus.SUCCEEDED] * 3 + [RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.RUNNING, RunStatus.PENDING]
Cells = dict[tuple[str, bool, int], Counter[str]]


def runs_of(schedule: Schedule, count: int, seed: int) -> list[Run]:
    """Runs every ten minutes, some of which last for hours, some of backfills, some that are open."""
    chance = random.Random(seed)
    found = []
    for number in range(1, count + 1):
        made = NOW - timedelta(hours=130) + timedelta(minutes=10 * number)
        status, kind = chance.choice(STATUSES), chance.choice([RunKind.SCHEDULED, RunKind.MANUAL, RunKind.BACKFILL])
        started = None if status is RunStatus.PENDING else made + timedelta(seconds=chance.randrange(60))
        is_open = status in {RunStatus.RUNNING, RunStatus.PENDING}
        took = timedelta(seconds=chance.choice([5, 5, 5, 7 * HOUR]))
        of_backfill = made - timedelta(minutes=chance.randrange(5_000)) - timedelta(seconds=number)
        run = run_of(
            schedule, number, status, kind=kind, due_at=made, started_at=started,
            occurrence_at=of_backfill if kind is RunKind.BACKFILL else made,
            ended_at=None if is_open or started is None else started + took,
        )  # fmt: skip
        is_late = run.status is RunStatus.CANCELLED and number % 2 == 0
        found.append(replace(run, created_at=made, expired_at=run.ended_at if is_late else None))
    return found


def fill(database: Database) -> dict[Schedule, list[Run]]:
    found = {}
    for number, name in enumerate(("one", "other")):
        schedule = add_schedule(database, name)
        found[schedule] = runs_of(schedule, 700, number)
        write(database, Change(schedule, replace(schedule, run_number=700), new_runs=tuple(found[schedule])))
    return found


def count(database: Database, schedules: Iterable[Schedule]) -> None:
    for schedule in schedules:
        step = partial(run_hours.count_some, schedule_uid=schedule.uid)
        while (done := database.transact(step)) is not None and done.is_more:
            continue


def drawn(lots: Iterable[Lot]) -> Cells:
    """How many runs of each status are in each column."""
    cells: Cells = defaultdict(Counter)
    for lot in lots:
        for place in range(lot.first, lot.last + 1):
            cells[lot.schedule_uid, bool(lot.is_backfilled), place][lot.status] += lot.runs
    return dict(cells)


def place(columns: Columns, second: int) -> int:
    return min(max((second - columns.start) // columns.step, 0), columns.number - 1)


def begin_and_end(run: Run) -> tuple[int, int]:
    if run.kind is RunKind.BACKFILL:
        at = int(run.occurrence_at.timestamp())
        return at, at
    begin = run.started_at or run.due_at or run.occurrence_at
    return int(begin.timestamp()), int((run.ended_at or NOW).timestamp())


def looked_at(found: dict[Schedule, list[Run]], columns: Columns, *, by_hours: bool) -> Cells:
    cells: Cells = defaultdict(Counter)
    for schedule, runs in found.items():
        for run in runs:
            begin, end = begin_and_end(run)
            if by_hours and run.ended_at is not None and run.kind is not RunKind.BACKFILL:
                begin = end
            if begin < columns.end and end >= columns.start:
                for at in range(place(columns, begin), place(columns, end) + 1):
                    # Hours do not distinguish expired runs from cancelled ones.
                    status = run.status.value if by_hours else run.shown_status
                    cells[schedule.uid, run.kind is RunKind.BACKFILL, at][status] += 1
    return dict(cells)


SPANS = {
    "the newest hours": Columns(START + 90 * HOUR, 12 * 60, 100),
    "some hours in the middle": Columns(START + 20 * HOUR, 60, 300),
    "everything": Columns(START - 40 * HOUR, HOUR, 300),
    "everything in days": Columns(START // (24 * HOUR) * 24 * HOUR - 48 * HOUR, 24 * HOUR, 14),
    "the future": Columns(START + 1_000 * HOUR, HOUR, 24),
}


@pytest.mark.parametrize("columns", SPANS.values(), ids=SPANS)
def test_a_column_shows_the_runs_that_lasted_in_it(database: Database, columns: Columns) -> None:
    found = fill(database)
    newest = {schedule.uid: 700 for schedule in found}
    lots = database.read(partial(timeline.read_columns, newest=newest, columns=columns, now=NOW, by_hours=False)).lots
    assert drawn(lots) == looked_at(found, columns, by_hours=False)
    named = {run.uid: run.number for runs in found.values() for run in runs}
    assert all(named[str(lot.run_uid)] == lot.number for lot in lots if lot.runs == 1)


@pytest.mark.parametrize("span", ["everything", "everything in days", "the future"])
@pytest.mark.parametrize("steps", [2, 1, 0], ids=["counted", "counted in part", "not counted"])
def test_a_column_of_hours_shows_the_runs_that_ended_in_it_counted_or_not(
    database: Database, span: str, steps: int
) -> None:
    found, columns = fill(database), SPANS[span]
    for schedule in found:
        for _ in range(steps):
            database.transact(partial(run_hours.count_some, schedule_uid=schedule.uid))
    newest = {schedule.uid: 700 for schedule in found}
    lots = database.read(partial(timeline.read_columns, newest=newest, columns=columns, now=NOW, by_hours=True)).lots
    assert drawn(lots) == looked_at(found, columns, by_hours=True)


def test_hours_are_shown_where_there_are_too_many_runs(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_RUNS", 100)
    found = fill(database)
    count(database, found)
    columns = Columns(START, HOUR, 100)
    newest = {schedule.uid: 700 for schedule in found}
    lots = database.read(partial(timeline.read_columns, newest=newest, columns=columns, now=NOW, by_hours=False)).lots
    assert drawn(lots) == looked_at(found, columns, by_hours=True)


def test_an_hour_is_as_wide_as_its_columns(database: Database) -> None:
    found = fill(database)
    for schedule in found:
        database.transact(partial(run_hours.count_some, schedule_uid=schedule.uid))
    columns = Columns(START + 50 * HOUR, 720, 20)
    newest = {schedule.uid: 700 for schedule in found}
    lots = database.read(partial(timeline.read_columns, newest=newest, columns=columns, now=NOW, by_hours=True)).lots
    of_hours = [lot for lot in lots if lot.number is None]
    assert of_hours
    assert {(lot.first, lot.last) for lot in of_hours} <= {(first, first + 4) for first in (0, 5, 10, 15)}


def test_an_hour_tells_since_when_the_longest_of_its_runs_lasted(database: Database) -> None:
    schedule = add_schedule(database)
    started, ended_at = NOW - timedelta(hours=30), NOW - timedelta(hours=2)
    run = run_of(schedule, 1, RunStatus.SUCCEEDED, due_at=started, started_at=started, ended_at=ended_at)
    write(database, Change(schedule, replace(schedule, run_number=1), new_runs=(run,)))
    database.transact(partial(run_hours.count_some, schedule_uid=schedule.uid))
    columns = Columns(START, HOUR, 100)
    find = partial(timeline.read_columns, newest={schedule.uid: 1}, columns=columns, now=NOW, by_hours=True)
    (lot,) = database.read(find).lots
    assert abs(lot.since - int(started.timestamp())) <= HOUR


def test_a_picture_says_that_older_runs_are_still_to_be_counted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MOST_RUNS", 200)
    found = fill(database)
    find = partial(
        timeline.read_columns,
        newest={schedule.uid: 700 for schedule in found},
        columns=SPANS["everything"],
        now=NOW,
        by_hours=True,
    )
    assert not database.read(find).is_whole
    assert all(runs.total() <= 100 for runs in of_schedules(database.read(find).lots).values()), "the newest only"
    count(database, found)
    assert database.read(find).is_whole


def of_schedules(lots: Iterable[Lot]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for lot in lots:
        found[lot.schedule_uid][lot.status] += lot.runs
    return found
