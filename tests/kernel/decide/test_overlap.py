"""The outcome of a new run while earlier ones are unfinished: one table, for scheduled fires and manual triggers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule
from rqsched.kernel.decide.overlap import for_backfill, judge_overlap
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.decide.runs_on_request import Trigger, decide_trigger
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from tests.support.decisions import ended, event, fire, holding, overlapping, run, types
from tests.support.env import MINUTE, NOON

NOTHING, QUEUED, RUNNING, RETRYING, BUFFERED, DEAD = (
    "nothing unfinished",
    "queued",
    "running",
    "retrying",
    "buffered present",
    "dead worker",
)
BEFORE: dict[str, list[Run]] = {
    NOTHING: [],
    QUEUED: [run(1, "pending")],
    RUNNING: [run(1, "running")],
    RETRYING: [run(1, "retrying", retry_at=NOON + 5 * MINUTE)],
    BUFFERED: [run(1, "running"), run(2, "buffered")],
    DEAD: [run(1, "running")],
}
START, SKIP, FULL, BUFFER = "starts", "overlap_policy_skip", "buffer_full", "waits"
TABLE: dict[str, dict[str, str]] = {
    "skip": {
        NOTHING: START, QUEUED: SKIP, RUNNING: SKIP, RETRYING: SKIP, BUFFERED: SKIP, DEAD: START,
    },
    "buffer_one": {
        NOTHING: START, QUEUED: BUFFER, RUNNING: BUFFER, RETRYING: BUFFER, BUFFERED: FULL, DEAD: START,
    },
    "buffer_all": {
        NOTHING: START, QUEUED: BUFFER, RUNNING: BUFFER, RETRYING: BUFFER, BUFFERED: BUFFER, DEAD: START,
    },
    "allow_all": {
        NOTHING: START, QUEUED: START, RUNNING: START, RETRYING: START, BUFFERED: START, DEAD: START,
    },
    "cancel_other": {
        NOTHING: START, QUEUED: "cancelled", RUNNING: "cancelled", RETRYING: "cancelled", BUFFERED: "cancelled",
        DEAD: START,
    },
    "terminate_other": {
        NOTHING: START, QUEUED: "terminated", RUNNING: "terminated", RETRYING: "terminated", BUFFERED: "terminated",
        DEAD: START,
    },
}  # fmt: skip
Start = Callable[[Schedule, list[Run]], Change]
ROWS = [
    pytest.param(policy, before, wanted, id=f"{policy}, {before}")
    for policy, row in TABLE.items()
    for before, wanted in row.items()
]


def before(policy: str, state: str) -> tuple[Schedule, list[Run]]:
    runs = BEFORE[state]
    schedule = holding(overlapping(policy), *runs)
    if state != DEAD:
        return schedule, runs
    settled = decide_settle(schedule, runs, runs[0], AttemptResult(AttemptOutcome.LOST), now=NOON + MINUTE)
    assert ended(settled) == {1: "lost"}
    return settled.after, []


def by_fire(schedule: Schedule, runs: list[Run]) -> Change:
    return fire(schedule, *runs)


def by_trigger(schedule: Schedule, runs: list[Run]) -> Change:
    assert schedule.due_at is not None
    uid = "01KF0000000000000000000999"
    return decide_trigger(schedule, runs, Trigger(uid), now=schedule.due_at)[0]


@pytest.mark.parametrize("start", [by_fire, by_trigger])
@pytest.mark.parametrize(("policy", "state", "wanted"), ROWS)
def test_the_policy_decides_a_new_run_by_what_is_unfinished(policy: str, state: str, wanted: str, start: Start) -> None:
    schedule, runs = before(policy, state)
    change = start(schedule, runs)
    blocking = BEFORE[state][0].uid if BEFORE[state] and state != DEAD else None
    after = change.after
    if wanted in {SKIP, FULL}:
        assert (change.new_runs, change.changed_runs) == ((), ())
        skipped = event(change, "TriggerSkipped")
        assert (skipped["reason"], skipped["blocking_run_id"]) == (wanted, blocking)
        assert (after.skipped_count, after.last_skip_reason) == (1, wanted)
        assert skipped["occurrence_time"] == "2026-01-15T13:00:00Z"
        assert after.last_skipped_at == schedule.due_at
    elif wanted == BUFFER:
        assert [new.status for new in change.new_runs] == [RunStatus.BUFFERED]
        waiting = event(change, "Buffered")
        assert (waiting["blocking_run_id"], waiting["buffer_depth"]) == (blocking, schedule.buffer_depth + 1)
        assert after.buffer_depth == schedule.buffer_depth + 1
        assert after.run_count == schedule.run_count
    else:
        assert [new.status for new in change.new_runs] == [RunStatus.PENDING]
        replaced = {} if wanted == START else {1: wanted}
        assert ended(change) == replaced
        started = event(change, "Triggered")
        assert started["effective_overlap_policy"] == policy
        assert started.get(f"{wanted}_run_ids") == ([blocking] if replaced else None)
        assert after.run_count == schedule.run_count + 1
        assert after.buffer_depth == schedule.buffer_depth
    assert after.event_sequence == schedule.event_sequence + 1


def test_the_table_has_every_policy_and_every_state() -> None:
    assert set(TABLE) == {policy.value for policy in OverlapPolicy}
    assert all(set(row) == set(BEFORE) for row in TABLE.values())


@pytest.mark.parametrize("policy", ["cancel_other", "terminate_other"])
def test_a_replacing_policy_ends_every_unfinished_run_and_keeps_the_waiting_ones(policy: str) -> None:
    runs = [run(1, "running"), run(2, "pending"), run(3, "retrying", retry_at=NOON), run(4, "buffered")]
    change = fire(holding(overlapping(policy), *runs), *runs)
    how = "cancelled" if policy == "cancel_other" else "terminated"
    assert ended(change) == {1: how, 2: how, 3: how}
    assert event(change, "Triggered")[f"{how}_run_ids"] == [found.uid for found in runs[:3]]
    assert all((new.ended_at, new.retry_at) == (change.after.updated_at, None) for _, new in change.changed_runs)


def test_an_occurrence_beyond_buffer_limit_is_skipped_as_buffer_full() -> None:
    runs = [run(1), *(run(number, "buffered") for number in (2, 3))]
    schedule = holding(overlapping("buffer_all", buffer_limit=2), *runs)
    assert event(fire(schedule, *runs), "TriggerSkipped")["reason"] == "buffer_full"
    assert types(fire(replace(schedule, buffer_depth=1), *runs[:2])) == ["Buffered"]


@pytest.mark.parametrize("policy", ["buffer_one", "buffer_all"])
def test_a_new_run_does_not_overtake_the_waiting_ones(policy: str) -> None:
    """No run is ahead of them at this moment, as after a pause at the end of the run."""
    attempt_result = judge_overlap(OverlapPolicy(policy), unfinished=[], buffered=1)
    assert attempt_result.act == ("skip" if policy == "buffer_one" else "buffer")


@pytest.mark.parametrize("policy", [policy.value for policy in OverlapPolicy])
def test_a_backfilled_run_never_blocks_a_live_run(policy: str) -> None:
    runs = [run(1, "running", "backfill"), run(2, "buffered", "backfill")]
    change = fire(holding(overlapping(policy), *runs), *runs)
    assert [(new.kind, new.status) for new in change.new_runs] == [(RunKind.SCHEDULED, RunStatus.PENDING)]
    assert change.changed_runs == ()


def test_a_backfill_treats_buffering_as_allow_all() -> None:
    assert [for_backfill(policy).value for policy in OverlapPolicy] == [
        "skip",
        "allow_all",
        "allow_all",
        "allow_all",
        "cancel_other",
        "terminate_other",
    ]


def test_a_trigger_may_bring_its_own_policy() -> None:
    request = Trigger("01KF0000000000000000000999", overlap=OverlapPolicy.ALLOW_ALL)
    runs = [run(1)]
    change, outcome = decide_trigger(holding(overlapping("skip"), *runs), runs, request, now=NOON)
    assert outcome.outcome == "triggered"
    assert [new.is_override for new in change.new_runs] == [True]
    assert event(change, "Triggered")["effective_overlap_policy"] == "allow_all"


def test_run_that_the_builder_has_not_read_is_never_taken_for_a_new_one() -> None:
    stored = run(1, "retrying")
    builder = ChangeBuilder(holding(overlapping("skip"), stored), now=NOON)
    with pytest.raises(KeyError, match="has not read it"):
        builder.queue_run(stored)
