"""The database's counts of outcomes and lateness per slot of time agree with the runs."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.kernel.decide.ids import derived_uid
from rqsched.kernel.decide.model import OPEN, Change, Run, RunKind, RunStatus, Schedule
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import schedules
from tests.kernel.store.samples import NOW, add_schedule, run_of, write

START = NOW.replace(microsecond=0) - timedelta(hours=24)
WIDTH = timedelta(minutes=30)
EDGES = [timedelta(0), timedelta(microseconds=1), WIDTH - timedelta(microseconds=1), WIDTH, timedelta(seconds=1)]


def some_run(schedule: Schedule, number: int, chance: random.Random) -> Run:
    """A run that was made at the edge of a slot, or somewhere within one, or before the first."""
    at = START + WIDTH * chance.randrange(-2, 48) + chance.choice([*EDGES, WIDTH * chance.random()])
    status = chance.choice([*RunStatus])
    started = None if status in {RunStatus.PENDING, RunStatus.BUFFERED} else at + timedelta(seconds=chance.gauss(9, 20))
    ended = None if status in OPEN else (started or at) + timedelta(seconds=3)
    kind = chance.choice([RunKind.SCHEDULED, RunKind.SCHEDULED, RunKind.MANUAL, RunKind.BACKFILL])
    times = {"due_at": chance.choice([at, at, None]), "started_at": started, "ended_at": ended}
    if status is RunStatus.CANCELLED:
        times["expired_at"] = chance.choice([None, ended])
    run = run_of(schedule, number, status, kind=kind, attempt=chance.choice([1, 1, 2]), **times)
    return replace(run, uid=derived_uid(at, schedule.uid, number), created_at=at)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_alone", [True, False], ids=["one namespace", "two namespaces"])
def test_outcomes_and_latenesses_are_those_of_each_run_whatever_slot_it_lies_in(
    database: Database, seed: int, is_alone: bool
) -> None:
    chance = random.Random(seed)
    mine, others = add_schedule(database), add_schedule(database, "others")
    if not is_alone:
        move = sa.update(schedules).where(schedules.c.uid == others.uid).values(namespace=chance.choice("az"))
        database.transact(lambda connection: connection.execute(move))
    made = [some_run(schedule, n, chance) for schedule in (mine, others) for n in range(1, 150)]
    for schedule in (mine, others):
        some = tuple(run for run in made if run.schedule_uid == schedule.uid)
        write(database, Change(schedule, replace(schedule, run_number=len(some)), new_runs=some))
    read = [run for run in made if (is_alone or run.schedule_uid == mine.uid) and run.created_at >= START]
    counted, late = look(database, lambda connection: run_queries.slot_of_creation(connection, START, WIDTH))
    assert counted == Counter(
        ((run.created_at - START) // WIDTH, run.kind == "backfill", run.shown_status) for run in read
    )
    expected = defaultdict[int, list[int]](list)
    for run in read:
        if run.attempt == 1 and run.kind is not RunKind.BACKFILL and run.started_at and run.due_at:
            lateness = (run.started_at - run.due_at) // timedelta(microseconds=1)
            expected[(run.created_at - START) // WIDTH].append(lateness)
    assert late == {slot: sorted(found) for slot, found in expected.items()}
    assert look(database, lambda _: run_queries.BY_QUEUE)[0].total() == len(read)


def look(
    database: Database, key: Callable[[sa.Connection], sa.ColumnElement[Any]]
) -> tuple[Counter[tuple[int, bool, str]], dict[int, list[int]]]:
    """How many runs are in each slot, and how late those began that began in it."""

    def read(connection: sa.Connection) -> list[run_queries.Outcome]:
        is_among, _ = run_queries.newest(connection, START, 1_000)
        return run_queries.outcomes(connection, "default", is_among, key(connection))

    counted, late = Counter[tuple[int, bool, str]](), defaultdict[int, list[int]](list)
    for one in database.read(read):
        counted[one.key, one.is_backfilled, one.status] += one.runs
        late[one.key] += one.late
    return counted, {slot: sorted(found) for slot, found in late.items() if found}
