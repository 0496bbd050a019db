"""Runs as decisions and executing processes meet them: what is open, who may start one, who still owns it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.core.model import Change, Run, RunKind, RunStatus, Schedule
from rqsched.store import changes, claims, metadata, registered_workflows
from rqsched.store.database import Database
from rqsched.store.tables import runs
from tests.store.samples import LATER, NOW, add_runs, add_schedule, find_run, run_of, write

START: dict[str, Any] = {"token": "T" * 26, "worker": "worker-1", "started_at": LATER}


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


def test_a_decision_sees_no_run_of_another_schedule(database: Database) -> None:
    schedule, other = add_schedule(database), add_schedule(database, "other")
    add_runs(database, other, [run_of(other, 1)])
    assert open_uids(database, schedule) == []


def test_a_run_is_found_by_its_number_within_its_schedule(database: Database) -> None:
    schedule = add_schedule(database)
    found = add_runs(database, schedule, [run_of(schedule, 1), run_of(schedule, 2)])
    read = database.transact(lambda connection: changes.find_run_by_number(connection, schedule.uid, 2))
    assert read == found[1]


def test_writing_a_run_keeps_the_heartbeats_recorded_meanwhile(database: Database) -> None:
    run = started_run(database)
    database.transact(lambda connection: claims.record_heartbeat(connection, run.uid, START["token"]))
    schedule = database.read(lambda connection: changes.find(connection, run.schedule_uid))
    assert schedule is not None
    ended = replace(run, status=RunStatus.SUCCEEDED, ended_at=LATER)
    write(database, Change(schedule, replace(schedule, success_count=1), changed_runs=((run, ended),)))
    assert find_run(database, run.uid) == ended
    assert beats(database, run) == 1


def pending_run(database: Database) -> Run:
    schedule = add_schedule(database)
    return add_runs(database, schedule, [run_of(schedule, 1, attempt=2, delivery=3)])[0]


def start(database: Database, run: Run, **others: Any) -> bool:
    asked = {"attempt": run.attempt, "delivery": run.delivery, **START, **others}
    attempt, delivery = asked.pop("attempt"), asked.pop("delivery")
    work = partial(claims.start_run, run_uid=run.uid, attempt=attempt, delivery=delivery, start=asked)
    return database.transact(work) is not None


def started_run(database: Database) -> Run:
    run = pending_run(database)
    assert start(database, run)
    found = find_run(database, run.uid)
    assert found is not None
    return found


def test_the_first_process_to_ask_starts_a_pending_run(database: Database) -> None:
    run = started_run(database)
    assert (run.status, run.token, run.worker, run.started_at) == (RunStatus.RUNNING, *START.values())


def test_a_run_started_by_one_process_is_not_started_by_a_second(database: Database) -> None:
    run = started_run(database)
    assert not start(database, run, token="U" * 26, worker="worker-2")
    assert find_run(database, run.uid) == run


def test_a_process_that_lost_the_answer_of_its_start_may_ask_again(database: Database) -> None:
    run = started_run(database)
    assert start(database, run)


def test_a_run_that_ended_meanwhile_is_not_started_again_with_the_same_token(database: Database) -> None:
    run = started_run(database)
    set_status(database, run, RunStatus.CANCELLED)
    assert not start(database, run)


@pytest.mark.parametrize("older", [{"attempt": 1}, {"delivery": 2}], ids=["attempt", "delivery"])
def test_a_job_of_an_older_attempt_or_delivery_starts_nothing(database: Database, older: dict[str, int]) -> None:
    run = pending_run(database)
    assert not start(database, run, **older)
    assert find_run(database, run.uid) == run


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.PENDING])
def test_only_a_pending_run_can_be_started(database: Database, status: RunStatus) -> None:
    run = pending_run(database)
    set_status(database, run, status)
    assert not start(database, run)


def set_status(database: Database, run: Run, status: RunStatus) -> None:
    changed = sa.update(runs).where(runs.c.uid == run.uid).values(status=status.value)
    database.transact(lambda connection: connection.execute(changed))


def beats(database: Database, run: Run) -> int:
    read = sa.select(runs.c.beat).where(runs.c.uid == run.uid)
    return int(database.read(lambda connection: connection.execute(read).scalar_one()))


def beat(database: Database, uid: str, token: str = START["token"]) -> str | None:
    return database.transact(lambda connection: claims.record_heartbeat(connection, uid, token))


def test_each_heartbeat_of_the_process_that_holds_the_run_counts(database: Database) -> None:
    run = started_run(database)
    assert [beat(database, run.uid) for _ in range(3)] == [None, None, None]
    assert beats(database, run) == 3


def test_a_heartbeat_learns_that_the_run_was_cancelled(database: Database) -> None:
    run = started_run(database)
    set_status(database, run, RunStatus.CANCELLED)
    assert beat(database, run.uid) == "cancelled"
    assert beats(database, run) == 0


def test_a_heartbeat_with_another_token_does_not_count(database: Database) -> None:
    run = started_run(database)
    assert beat(database, run.uid, "U" * 26) == "running"
    assert beats(database, run) == 0


def test_a_heartbeat_of_a_purged_run_returns_deleted(database: Database) -> None:
    assert beat(database, "nobody") == "deleted"


def test_the_first_claim_of_a_value_wins(database: Database) -> None:
    claims = [database.transact(partial(metadata.claim_value, name="origin", value=value)) for value in ("1", "2")]
    assert claims == ["1", "1"]


def test_setting_a_value_again_replaces_it(database: Database) -> None:
    for value in ("2025b", "2026a"):
        database.transact(partial(metadata.set_value, name="tzdata", value=value))
    assert database.read(lambda connection: metadata.find_value(connection, "tzdata")) == "2026a"


def test_the_newest_registration_of_a_workflow_wins(database: Database) -> None:
    for queue in ("low", "high"):
        row = {"name": "report", "path": "app.report", "queue": queue, "registered_at": NOW}
        database.transact(partial(registered_workflows.record, rows=[row]))
    found = database.read(lambda connection: registered_workflows.find(connection, "report"))
    assert found is not None
    assert (found["queue"], found["registered_at"]) == ("high", NOW)
