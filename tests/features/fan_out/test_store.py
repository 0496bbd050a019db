"""Targets and the states of machines: frequent queries use an index; see test_indexes."""

from __future__ import annotations

from functools import partial

import pytest
import sqlalchemy as sa

from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, new_uid
from rqsched.kernel.decide.model import TargetStatus
from rqsched.kernel.store import machine_states
from rqsched.kernel.store.database import Database
from tests.kernel.store.samples import LATER, NOW
from tests.support.narrow import present
from tests.support.plans import Ask, uses

RUN = "01KF0RFJ6VF2Z9DHW5MX7036EE"

ASKED: dict[str, tuple[Ask, str]] = {
    "targets to deliver again": (lambda c: fan_out_targets.pending(c, NOW, "0", 500), "ix_rqsched_targets_open"),
    "fan-outs to continue": (lambda c: fan_out_targets.unfinished_batches(c, NOW), "ix_rqsched_targets_open"),
    "the next targets of a run": (
        lambda c: fan_out_targets.take_chunk(c, BatchJobId(RUN, 1), 500, NOW),
        "ix_rqsched_targets_batch",
    ),
    "the targets of a run by status": (
        lambda c: fan_out_targets.count(c, RUN),
        "ix_rqsched_targets_batch|uq_rqsched_targets_run_uid_target_id",
    ),
    "a target by its uid": (lambda c: fan_out_targets.claim(c, TargetJobId(RUN), RUN, NOW), "pk_rqsched_targets"),
    "targets to try again": (lambda c: fan_out_targets.promote(c, NOW, 500), "ix_rqsched_targets_open"),
    "targets of a run to try again": (
        lambda c: fan_out_targets.next_promotion(c, RUN),
        "ix_rqsched_targets_batch|ix_rqsched_targets_open|uq_rqsched_targets_run_uid_target_id",
    ),
    "the next targets in the places that are free": (
        lambda c: fan_out_targets.take_waiting(c, RUN, 5, NOW),
        "ix_rqsched_targets_batch",
    ),
    "the states of a machine": (
        lambda c: machine_states.states_in_use(c, "Order"),
        "ix_rqsched_machine_states_state",
    ),
    "which ids are a machine's": (
        lambda c: machine_states.known(c, "Order", ["o-1", "o-2"]),
        "pk_rqsched_machine_states",
    ),
    "one instance": (lambda c: machine_states.find(c, "Order", "o-1"), "pk_rqsched_machine_states"),
}


@pytest.mark.parametrize(("ask", "index"), ASKED.values(), ids=ASKED.keys())
def test_an_index_serves_the_search_for(database: Database, ask: Ask, index: str) -> None:
    fill(database)
    assert uses(database, ask, index)


def fill(database: Database) -> None:
    """Many runs with many targets, many instances in few states, and the planner's statistics."""

    def write(connection: sa.Connection) -> None:
        for run in range(20):
            batch = Batch(new_uid(NOW), "w", NOW, timeout=60)
            fan_out_targets.record(connection, batch, [f"{run}-{number}" for number in range(100)], 1, NOW)
            fan_out_targets.take_chunk(connection, BatchJobId(batch.run_uid, 1), 50, NOW)
        for machine in ("Order", "Ticket"):
            machine_states.put(connection, machine, {f"o-{n}": f"state-{n % 3}" for n in range(500)}, NOW)
        if database.dialect.name != "sqlite":
            connection.exec_driver_sql("ANALYZE")

    database.transact(write)


def test_a_target_is_claimed_once_and_ended_by_its_holder_alone(database: Database) -> None:
    batch = Batch(RUN, "w", NOW, timeout=60)
    database.transact(lambda c: fan_out_targets.record(c, batch, ["a"], 1, NOW))
    assert database.transact(lambda c: fan_out_targets.record(c, batch, ["a", "b"], 1, NOW)) is None
    chunk, following = database.transact(lambda c: fan_out_targets.take_chunk(c, BatchJobId(RUN, 1), 1, NOW))
    assert ([target.target_id for target in chunk], following) == (["a"], 2), "named twice, recorded once"
    job, found = TargetJobId(chunk[0].uid), fan_out_targets.ClaimedTarget(chunk[0], None, NOW, None)

    assert database.transact(lambda c: fan_out_targets.claim(c, job, "mine", NOW)) == found
    assert database.transact(lambda c: fan_out_targets.claim(c, job, "mine", NOW)) == found, "its answer was lost"
    assert database.transact(lambda c: fan_out_targets.claim(c, job, "theirs", NOW)) is None
    failed, done = TargetEnd(TargetStatus.FAILED), TargetEnd(TargetStatus.SUCCEEDED)
    database.transact(lambda c: fan_out_targets.finish(c, chunk[0], "theirs", failed, NOW))
    assert database.read(lambda c: fan_out_targets.count(c, RUN)) == {"running": 1, "waiting": 1}
    end = partial(fan_out_targets.finish, target=chunk[0], token="mine", end=done, now=NOW)
    assert database.transact(end) == (False, []), "another one waits"
    assert database.read(lambda c: fan_out_targets.count(c, RUN)) == {"succeeded": 1, "waiting": 1}
    assert database.transact(lambda c: fan_out_targets.claim(c, job, "mine", NOW)) is None, "an ended one stays ended"


def test_a_chunk_is_dispatched_once_however_often_its_job_is_delivered(database: Database) -> None:
    batch = Batch(RUN, "w", NOW, timeout=60)
    database.transact(lambda c: fan_out_targets.record(c, batch, ["a", "b", "c"], 1, NOW))
    taken = [database.transact(lambda c: fan_out_targets.take_chunk(c, BatchJobId(RUN, 1), 2, NOW)) for _ in range(2)]
    assert [([target.target_id for target in chunk], following) for chunk, following in taken] == [
        (["a", "b"], 3),
        ([], None),
    ]


def test_a_state_is_replaced_once_also_when_the_answer_was_lost(database: Database) -> None:
    database.transact(lambda c: machine_states.put(c, "Order", {"o-1": "new"}, NOW))
    known = present(database.read(lambda c: machine_states.find(c, "Order", "o-1")))

    def move(state: str) -> bool:
        return database.transact(lambda c: machine_states.replace(c, "Order", "o-1", known, state, LATER))

    assert move("paid")
    assert move("paid"), "asked again after a lost answer"
    assert not move("shipped"), "another process was first"


def test_targets_named_again_are_numbered_after_those_that_are_known(database: Database) -> None:
    batch = Batch(RUN, "w", NOW, timeout=60)
    assert database.read(lambda c: fan_out_targets.last_number(c, RUN)) == 0
    database.transact(lambda c: fan_out_targets.record(c, batch, ["a", "b"], 1, NOW))
    assert database.read(lambda c: fan_out_targets.last_number(c, RUN)) == 2
