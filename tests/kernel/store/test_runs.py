"""The runs that decisions read, and the values and workflows that a database stores once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule
from rqsched.kernel.store import changes, metadata, registered_workflows
from rqsched.kernel.store.database import Database
from tests.kernel.store.samples import NOW, add_runs, add_schedule, run_of, write
from tests.support.narrow import present


def open_uids(database: Database, schedule: Schedule, *, with_backfill: bool = False) -> list[str]:
    def work(connection: sa.Connection) -> list[str]:
        locked = changes.lock(connection, [schedule.uid])
        return [run.uid for run in changes.open_runs(connection, locked, with_backfill=with_backfill)[schedule.uid]]

    return database.transact(work)


def add_counted_runs(database: Database, schedule: Schedule, found: list[Run], **counts: Any) -> None:
    write(database, Change(schedule, replace(schedule, **counts), new_runs=tuple(found)))


def test_a_decision_sees_every_unfinished_run_and_no_ended_one(database: Database) -> None:
    schedule = add_schedule(database)
    found = add_runs(database, schedule, [run_of(schedule, n, s) for n, s in enumerate(RunStatus, start=1)])
    unfinished = [run.uid for run in found if run.is_unfinished]
    assert sorted(open_uids(database, schedule)) == sorted(unfinished)


def test_a_decision_sees_unfinished_backfilled_runs_only_when_it_asks(database: Database) -> None:
    schedule = add_schedule(database)
    kinds = [RunKind.SCHEDULED, RunKind.MANUAL, RunKind.BACKFILL]
    found = add_runs(database, schedule, [run_of(schedule, n, kind=kind) for n, kind in enumerate(kinds, start=1)])
    assert sorted(open_uids(database, schedule)) == sorted(run.uid for run in found[:2])
    assert sorted(open_uids(database, schedule, with_backfill=True)) == sorted(run.uid for run in found)


def test_a_decision_sees_the_oldest_waiting_run_of_each_kind(database: Database) -> None:
    schedule = add_schedule(database)
    kinds = [RunKind.SCHEDULED, RunKind.MANUAL, RunKind.BACKFILL, RunKind.BACKFILL]
    found = [run_of(schedule, n, RunStatus.BUFFERED, kind=kind) for n, kind in enumerate(kinds, start=1)]
    add_counted_runs(database, schedule, found, buffer_depth=2, backfill_waiting=2)
    assert open_uids(database, schedule) == [found[0].uid, found[2].uid]


def at_end(database: Database, schedule: Schedule, run: Run) -> list[str]:
    def work(connection: sa.Connection) -> list[str]:
        (locked,) = changes.lock(connection, [schedule.uid])
        return [one.uid for one in changes.runs_at_end(connection, locked, run.uid)]

    return database.transact(work)


def test_the_end_of_a_run_sees_no_other_run_if_none_waits(database: Database) -> None:
    schedule = add_schedule(database)
    found = add_runs(database, schedule, [run_of(schedule, n) for n in range(1, 6)])
    assert at_end(database, schedule, found[2]) == [found[2].uid]


def test_the_end_of_a_run_sees_the_first_that_waits_and_one_that_it_waits_for(database: Database) -> None:
    schedule = add_schedule(database)
    found = [
        replace(run_of(schedule, 1, RunStatus.RUNNING), dispatched_at=NOW),
        run_of(schedule, 2, kind=RunKind.BACKFILL),
        *(run_of(schedule, n) for n in range(3, 6)),
        *(run_of(schedule, n, RunStatus.BUFFERED) for n in (6, 7)),
    ]
    add_counted_runs(database, schedule, found, buffer_depth=2, backfill_unfinished=1)
    mine, ahead, first = at_end(database, schedule, found[4])
    assert (mine, first) == (found[4].uid, found[5].uid)
    assert ahead in {run.uid for run in found[2:4]}, "one that waits only for its targets may block nothing"
    assert at_end(database, schedule, found[1])[0] == found[1].uid, "a backfilled run sees itself"
    assert len(at_end(database, schedule, found[5])) == 3, "a waiting run is among those that wait"


def test_a_decision_sees_no_run_of_another_schedule(database: Database) -> None:
    schedule, other = add_schedule(database), add_schedule(database, "other")
    add_runs(database, other, [run_of(other, 1)])
    assert open_uids(database, schedule) == []


def test_a_run_is_found_by_its_number_within_its_schedule(database: Database) -> None:
    schedule = add_schedule(database)
    found = add_runs(database, schedule, [run_of(schedule, 1), run_of(schedule, 2)])
    read = database.transact(lambda connection: changes.find_run_by_number(connection, schedule.uid, 2))
    assert read == found[1]


def test_the_first_claim_of_a_value_wins(database: Database) -> None:
    found = [database.transact(partial(metadata.claim_value, name="origin", value=value)) for value in ("1", "2")]
    assert found == ["1", "1"]


def test_setting_a_value_again_replaces_it(database: Database) -> None:
    for value in ("2025b", "2026a"):
        database.transact(partial(metadata.set_value, name="tzdata", value=value))
    assert database.read(lambda connection: metadata.find_value(connection, "tzdata")) == "2026a"


def test_the_newest_registration_of_a_workflow_wins(database: Database) -> None:
    for queue in ("low", "high"):
        row = {"name": "report", "path": "app.report", "queue": queue, "registered_at": NOW}
        database.transact(partial(registered_workflows.record, rows=[row]))
    found = present(database.read(lambda connection: registered_workflows.find(connection, "report")))
    assert (found["queue"], found["registered_at"]) == ("high", NOW)
