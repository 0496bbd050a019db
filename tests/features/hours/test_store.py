"""Hours hold each run that has ended once, whatever happens to runs meanwhile and whoever else counts."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import sqlalchemy as sa

from rqsched.features.hours import store as run_hours
from rqsched.features.hours.decide import by_day
from rqsched.features.pruning import store as pruning
from rqsched.kernel.decide.model import OPEN, Change, Run, RunKind, RunStatus, Schedule
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import counted, hours, uncounted
from tests.kernel.store.samples import NOW, add_runs, add_schedule, created, run_of
from tests.support.sql import wait_for_a_lock

ENDED = [status for status in RunStatus if status not in OPEN]
DAY = timedelta(days=1)
FIRST, LAST = -(10**6), 10**6


def counts(database: Database, schedule: Schedule) -> Counter[tuple[int, bool, str]]:
    """How many runs are in each hour, as readers see it."""
    found = database.read(lambda connection: run_hours.read(connection, schedule.uid, FIRST, LAST))
    return Counter({(key.hour, key.is_backfilled, key.outcome): one.count for key, one in found.items()})


def days_agree(database: Database, schedule: Schedule) -> bool:
    """Whether the days hold what their hours do."""
    first, last = ((step * 24 * 10**4) for step in (-1, 1))
    by_hours, by_days = (
        database.read(partial(run_hours.read, schedule_uid=schedule.uid, first=first, last=last, in_days=in_days))
        for in_days in (False, True)
    )
    summed, kept = (
        {key: (one.count, one.waits, one.durations) for key, one in found.items()}
        for found in (by_day(by_hours), by_days)
    )
    return summed == kept


def expected(runs: Iterable[Run]) -> Counter[tuple[int, bool, str]]:
    """How many there are, each run looked at."""
    found = Counter[tuple[int, bool, str]]()
    for run in runs:
        if run.ended_at is not None:
            is_backfilled = run.kind is RunKind.BACKFILL
            at = run.occurrence_at if is_backfilled else run.ended_at
            found[int(at.timestamp() // 3600), is_backfilled, run.status.value] += 1
    return found


def write(database: Database, change: Change) -> None:
    """Write a Change and what it owes to the hours, in one transaction."""

    def work(connection: sa.Connection) -> None:
        changes.write(connection, [change])
        run_hours.take_out(connection, [change])

    database.transact(work)


def count_all(database: Database, schedule: Schedule) -> None:
    step = partial(run_hours.count_some, schedule_uid=schedule.uid)
    while (done := database.transact(step)) is not None and done.is_more:
        continue


def ended(run: Run, at: int, status: RunStatus = RunStatus.SUCCEEDED) -> Run:
    """The run as it is when it has ended some minutes after NOW."""
    moment = NOW + timedelta(minutes=at)
    return replace(run, status=status, started_at=moment - timedelta(seconds=at % 50), ended_at=moment)


def again(run: Run) -> Run:
    """The run as it is when it is run again."""
    return replace(run, status=RunStatus.PENDING, attempt=run.attempt + 1, started_at=None, ended_at=None)


class Story:
    """A schedule whose runs come, end, are run again and are deleted; all of them as they were last."""

    def __init__(self, database: Database, seed: int) -> None:
        self.random = random.Random(seed)
        self.database = database
        self.schedule = add_schedule(database)
        self.runs: dict[int, Run] = {}
        self.gone: set[int] = set()

    def start(self) -> None:
        first = len(self.runs) + 1
        fresh = [self._new(number) for number in range(first, first + self.random.randrange(1, 12))]
        self._write(tuple(fresh))

    def _new(self, number: int) -> Run:
        kind = self.random.choice([RunKind.SCHEDULED, RunKind.MANUAL, RunKind.BACKFILL])
        run = run_of(self.schedule, number, kind=kind, occurrence_at=NOW + timedelta(minutes=7 * number), due_at=NOW)
        return self._end(run) if self.random.random() < 0.4 else run

    def _end(self, run: Run) -> Run:
        return ended(run, self.random.randrange(-40_000, 40_000), self.random.choice(ENDED))

    def end(self) -> None:
        self._change([run for run in self.there if run.ended_at is None], self._end)

    def run_again(self) -> None:
        self._change([run for run in self.there if run.ended_at is not None], again)

    def _change(self, those: list[Run], become: Callable[[Run], Run]) -> None:
        some = self.random.sample(those, min(len(those), self.random.randrange(1, 8)))
        self._write(changed=tuple((run, become(run)) for run in some))

    def _write(self, new: tuple[Run, ...] = (), changed: tuple[tuple[Run, Run], ...] = ()) -> None:
        after = replace(self.schedule, run_number=len(self.runs) + len(new))
        write(self.database, Change(self.schedule, after, new, changed))
        self.schedule = after
        self.runs |= {run.number: run for run in (*new, *(moved for _, moved in changed))}

    def count(self) -> None:
        self.database.transact(partial(run_hours.count_some, schedule_uid=self.schedule.uid))

    def prune(self) -> None:
        """Delete some of those that are counted."""
        numbers = [run.number for run in self.there if run.ended_at is not None]

        def work(connection: sa.Connection) -> None:
            going = sorted(run_hours.are_counted(connection, self.schedule.uid, numbers))[: self.random.randrange(9)]
            pruning.delete_runs(connection, self.schedule.uid, [self.runs[number].uid for number in going], None)
            self.gone |= {*going}

        self.database.transact(work)

    @property
    def there(self) -> list[Run]:
        return [run for number, run in self.runs.items() if number not in self.gone]


@pytest.mark.parametrize("seed", range(6))
def test_every_run_that_has_ended_is_counted_once_whatever_happens(
    database: Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_hours, "BATCH", (4, 500)[seed % 2])
    story = Story(database, seed)
    steps = [story.start, story.end, story.run_again, story.count, story.prune]
    for _ in range(40):
        story.random.choice(steps)()
        assert counts(database, story.schedule) == expected(story.runs.values())
    count_all(database, story.schedule)
    assert counts(database, story.schedule) == expected(story.runs.values())
    assert days_agree(database, story.schedule)
    open_ones = {run.number for run in story.there if run.ended_at is None}
    passed = database.read(lambda c: {*c.execute(sa.select(uncounted.c.number)).scalars()})
    assert passed <= open_ones, "what has ended is counted"


def test_waits_and_durations_are_counted_with_the_runs_and_taken_out_with_them(database: Database) -> None:
    schedule = add_schedule(database)
    (run,) = add_runs(database, schedule, [ended(run_of(schedule, 1, due_at=NOW), 35)])
    before = database.read(lambda c: run_hours.read(c, schedule.uid, FIRST, LAST))
    count_all(database, schedule)
    assert database.read(lambda c: run_hours.read(c, schedule.uid, FIRST, LAST)) == before
    ((_, one),) = before.items()
    assert (one.waits.total(), one.durations.total(), one.longest) == (1, 1, timedelta(seconds=35))
    write(database, Change(schedule, replace(schedule, run_number=1), changed_runs=((run, again(run)),)))
    assert database.read(lambda c: c.execute(sa.select(hours)).all()) == []


@pytest.mark.parametrize("number_open", [7, 150, 2 * run_hours.BATCH + 3])
def test_counting_goes_on_behind_any_number_of_open_runs_a_batch_at_a_time(
    database: Database, number_open: int
) -> None:
    schedule = add_schedule(database)
    open_runs = [run_of(schedule, number) for number in range(1, number_open + 1)]
    behind = [ended(run_of(schedule, number_open + number), number) for number in range(1, 6)]
    add_runs(database, schedule, [*open_runs, *behind])
    sizes = [1]
    while sizes[-1]:
        before = passed_over(database)
        database.transact(partial(run_hours.count_some, schedule_uid=schedule.uid))
        sizes.append(passed_over(database) - before)
    assert max(sizes) <= run_hours.BATCH
    assert database.read(lambda c: run_hours.counted_to(c, [schedule.uid])) == {schedule.uid: number_open + 5}
    assert passed_over(database) == number_open
    late = tuple((run, ended(run, 90)) for run in open_runs)
    write(database, Change(schedule, replace(schedule, run_number=number_open + 5), changed_runs=late))
    assert counts(database, schedule) == expected([*(run for _, run in late), *behind]), "read, not counted"
    count_all(database, schedule)
    assert passed_over(database) == 0
    assert counts(database, schedule) == expected([*(run for _, run in late), *behind])


def passed_over(database: Database) -> int:
    """How many runs are kept as not counted."""
    return database.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(uncounted)).scalar_one())


def test_a_step_that_fails_has_counted_nothing(database: Database) -> None:
    schedule = add_schedule(database)
    add_runs(database, schedule, [ended(run_of(schedule, number), number) for number in range(1, 9)])

    def work(connection: sa.Connection) -> None:
        run_hours.count_some(connection, schedule.uid)
        raise RuntimeError("the process dies")

    with pytest.raises(RuntimeError):
        database.transact(work)
    assert database.read(lambda c: c.execute(sa.select(counted)).all()) == []
    assert counts(database, schedule).total() == 8


def test_many_that_count_while_runs_end_and_are_run_again_count_each_once(database: Database) -> None:
    story = Story(database, 7)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def go_on_counting() -> None:
        step = partial(run_hours.count_some, schedule_uid=story.schedule.uid, skip_locked=True)
        try:
            while not is_over.is_set():
                database.transact(step)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=go_on_counting) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        story.random.choice([story.start, story.end, story.run_again])()
    is_over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counts(database, story.schedule) == expected(story.runs.values())
    count_all(database, story.schedule)
    assert counts(database, story.schedule) == expected(story.runs.values())


@pytest.mark.parametrize("is_first", [True, False], ids=["the first time", "later"])
def test_who_counts_leaves_a_schedule_alone_of_which_a_run_is_being_run_again(
    postgres_database: Database, is_first: bool
) -> None:
    database, schedule = postgres_database, add_schedule(postgres_database)
    run, _ = add_runs(database, schedule, [ended(run_of(schedule, number), number) for number in (1, 2)])
    if not is_first:
        count_all(database, schedule)
    with database.engine.begin() as connection:
        changes.lock(connection, [schedule.uid])
        after = replace(schedule, run_number=2)
        repeat = Change(schedule, after, changed_runs=((run, again(run)),))
        changes.write(connection, [repeat])
        run_hours.take_out(connection, [repeat])
        step = partial(run_hours.count_some, schedule_uid=schedule.uid, skip_locked=True)
        assert database.transact(step) is None
    count_all(database, schedule)
    assert counts(database, schedule).total() == 1


def test_a_run_that_is_run_again_while_it_is_counted_is_taken_out(postgres_database: Database) -> None:
    database, schedule = postgres_database, add_schedule(postgres_database)
    runs = add_runs(database, schedule, [ended(run_of(schedule, number), number) for number in (1, 2)])
    count_all(database, schedule)
    after = replace(schedule, run_number=2)
    repeat = Change(schedule, after, changed_runs=((runs[0], again(runs[0])),))
    retrying = threading.Thread(target=write, args=(database, repeat))
    with database.engine.begin() as connection:
        run_hours.count_some(connection, schedule.uid)
        retrying.start()
        wait_for_a_lock(database)
    retrying.join()
    assert counts(database, schedule).total() == 1
    count_all(database, schedule)
    assert counts(database, schedule).total() == 1


def test_a_purge_waits_for_who_counts_and_leaves_nothing(postgres_database: Database) -> None:
    database, schedule = postgres_database, add_schedule(postgres_database)
    add_runs(database, schedule, [ended(run_of(schedule, number), number) for number in range(1, 5)])
    database.transact(partial(run_hours.count_some, schedule_uid=schedule.uid))

    def purge(connection: sa.Connection) -> None:
        changes.lock(connection, [schedule.uid])
        changes.purge_schedule(connection, schedule.uid)

    purging = threading.Thread(target=database.transact, args=(purge,))
    with database.engine.begin() as connection:
        run_hours.count_some(connection, schedule.uid)
        purging.start()
        wait_for_a_lock(database)
    purging.join()
    assert database.transact(partial(run_hours.count_some, schedule_uid=schedule.uid, skip_locked=True)) is None
    every = (sa.select(table.c.schedule_uid) for table in (hours, counted, uncounted))
    assert database.read(lambda connection: connection.execute(sa.union_all(*every)).all()) == []


def test_some_of_a_schedules_new_runs_say_that_it_may_be_counted(database: Database) -> None:
    some, few = add_schedule(database, "some"), created("few").after
    write(database, created("few"))
    for schedule, number in ((some, run_hours.LEAST + 3), (few, run_hours.LEAST - 1)):
        add_runs(database, schedule, [ended(run_of(schedule, n), n) for n in range(1, number + 1)])
    look = partial(run_hours.milestones, until="Z" * 26)
    found = database.read(partial(look, after="", limit=1_000))
    assert (found.schedule_uids, found.runs) == ([some.uid], 2 * run_hours.LEAST + 2)
    assert database.read(partial(look, after=found.last or "", limit=1_000)).runs == 0
    first = database.read(partial(look, after="", limit=5))
    assert first.runs == 5
    assert database.read(partial(look, after=first.last or "", limit=1_000)).runs == found.runs - 5
    count_all(database, some)
    assert database.read(partial(look, after="", limit=1_000)).schedule_uids == [], "it is counted"


def test_hours_before_one_are_forgotten(database: Database) -> None:
    schedule = add_schedule(database)
    add_runs(database, schedule, [ended(run_of(schedule, n), n * 60) for n in range(1, 6)])
    count_all(database, schedule)
    before = min(hour for hour, _, _ in counts(database, schedule)) + 2
    database.transact(lambda connection: run_hours.forget(connection, schedule.uid, before))
    assert counts(database, schedule).total() == 3
