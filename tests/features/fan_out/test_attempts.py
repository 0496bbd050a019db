"""An attempt of a target: what its claim records and says, and what its end says of the others, on each database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.store import Batch, Target
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, new_uid
from rqsched.kernel.decide.model import RunStatus, TargetStatus
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import targets
from tests.kernel.store.samples import LATER, NOW, add_runs, add_schedule, run_of
from tests.support.narrow import present

RUN = "01KF0RFJ6VF2Z9DHW5MX7036EE"
DONE = TargetEnd(TargetStatus.SUCCEEDED)


def pending(database: Database, names: Sequence[str], *, run_uid: str = RUN, chunk: int = 500) -> list[Target]:
    """Record targets of a run, and put the first chunk of them on the queue."""
    batch = Batch(run_uid, "w", NOW, timeout=90)
    database.transact(lambda c: fan_out_targets.record(c, batch, names, 1, NOW))
    return database.transact(lambda c: fan_out_targets.take_chunk(c, BatchJobId(run_uid, 1), chunk, NOW))[0]


def claim(database: Database, target: Target, token: str = "mine") -> fan_out_targets.ClaimedTarget | None:
    return database.transact_alone(lambda c: fan_out_targets.claim(c, target.job_id, token, LATER, "worker-1"))


def finish(database: Database, target: Target, token: str = "mine", end: TargetEnd = DONE) -> bool:
    return present(database.transact_alone(lambda c: fan_out_targets.finish(c, target, token, end, LATER)))[0]


def row_of(database: Database, target: Target) -> sa.Row[tuple[object, ...]]:
    return database.read(lambda c: c.execute(sa.select(targets).where(targets.c.uid == target.uid)).one())


def test_a_claim_records_who_holds_the_target_and_until_when(database: Database) -> None:
    [target] = pending(database, ["a"])
    assert claim(database, target) is not None
    row = row_of(database, target)
    assert (row.status, row.token, row.worker) == ("running", "mine", "worker-1")
    assert (row.started_at, row.deadline_at) == (LATER, LATER + timedelta(seconds=90))


def test_a_claim_says_what_the_run_of_the_target_has_come_to(database: Database) -> None:
    schedule = add_schedule(database)
    [run] = add_runs(database, schedule, [run_of(schedule, 1)])
    [target] = pending(database, ["a"], run_uid=run.uid)
    assert present(claim(database, target)).run == (RunStatus(run.status), run.attempt)


def test_a_target_that_does_not_exist_is_not_claimed(database: Database) -> None:
    uid = new_uid(NOW)
    assert database.transact_alone(lambda c: fan_out_targets.claim(c, TargetJobId(uid), "mine", NOW)) is None


@pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.PENDING])
def test_an_end_says_whether_others_wait_and_not_whether_others_run(database: Database, status: RunStatus) -> None:
    first, second = pending(database, ["a", "b"])
    claim(database, first)
    if status is RunStatus.RUNNING:
        claim(database, second, "theirs")
    assert finish(database, first) is (status is RunStatus.RUNNING), "what runs is looked at after the commit"


def test_a_target_of_another_run_does_not_wait_for_this_ones_end(database: Database) -> None:
    pending(database, ["a"], run_uid=new_uid(NOW))
    [target] = pending(database, ["a"])
    claim(database, target)
    assert finish(database, target) is True


def test_an_end_whose_answer_was_lost_says_so_again_and_changes_nothing(database: Database) -> None:
    [target] = pending(database, ["a"])
    claim(database, target)
    assert [finish(database, target), finish(database, target, end=TargetEnd(TargetStatus.FAILED, "late"))] == [
        True
    ] * 2
    row = row_of(database, target)
    assert (row.status, row.error, row.ended_at) == ("succeeded", None, LATER)


@pytest.mark.postgres
def test_a_claim_and_an_end_are_one_statement_each(postgres_url: str) -> None:
    database = Database(postgres_url)
    [target] = pending(database, ["a"])
    asked: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *given: asked.append(given[2].split()[0]))
    claim(database, target)
    finish(database, target)
    assert asked == ["UPDATE", "UPDATE"]
    database.close()


def test_a_rehearsal_writes_nothing(database: Database) -> None:
    [target] = pending(database, ["a"])
    database.transact(lambda c: fan_out_targets.rehearse(c, new_uid(NOW), NOW))
    assert row_of(database, target).status == "pending"
