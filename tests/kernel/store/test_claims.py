"""Claims: who may start a run, and who still owns it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.kernel.decide.model import Change, Run, RunStatus
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs
from tests.kernel.store.samples import LATER, add_runs, add_schedule, find_run, run_of, write
from tests.support.narrow import present

START: dict[str, Any] = {"token": "T" * 26, "worker": "worker-1", "started_at": LATER}


def test_writing_a_run_keeps_the_heartbeats_recorded_meanwhile(database: Database) -> None:
    run = started_run(database)
    database.transact(lambda connection: claims.record_heartbeat(connection, run.uid, START["token"]))
    schedule = present(database.read(lambda connection: changes.find(connection, run.schedule_uid)))
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
    return present(find_run(database, run.uid))


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
