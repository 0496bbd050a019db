"""Blocked runs: what giving one back writes, how long it waits, and when it fails."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.blocked import MAX_REASON, decide_block
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.policy import OverlapPolicy, Policies, RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from tests.support.decisions import active, event, fire, holding, overlapping, run, types
from tests.support.env import HOUR, MINUTE, NOON, SECOND

LATER = NOON + 10 * MINUTE
CLAIMED: dict[str, Any] = {"started_at": LATER, "token": "T", "worker": "host:7", "queued_at": NOON}


def block(claimed: Run, reason: str = "no module 'billing'", *, schedule: Schedule | None = None) -> Change:
    held = holding(schedule or active(), claimed)
    return decide_block(held, [claimed], claimed, reason, now=LATER, timeout=HOUR)


def test_a_run_that_is_given_back_is_pending_under_the_next_delivery_and_no_attempt_counts() -> None:
    claimed = run(1, attempt=2, delivery=3, **CLAIMED)
    change = block(claimed)
    ((_, after),) = change.changed_runs
    assert (after.status, after.attempt, after.delivery) == (RunStatus.PENDING, 2, 4)
    assert (after.token, after.worker, after.started_at, after.attempts) == (None, None, None, "[]")
    assert (after.blocked_at, after.queued_at) == (LATER, LATER + 5 * SECOND)
    assert after.blocked_reason == "host:7: no module 'billing'"
    assert after.is_blocked
    assert (change.after.error_count, change.after.consecutive_failures, change.after.n) == (0, 0, active().n)


def test_the_first_time_is_recorded_and_those_after_it_are_not() -> None:
    first = block(run(1, **CLAIMED))
    assert types(first) == ["RunBlocked"]
    told = event(first, audit.RUN_BLOCKED)
    assert (told["worker"], told["reason"], told["attempt"]) == ("host:7", "no module 'billing'", 1)
    again = block(run(1, blocked_at=LATER - MINUTE, **CLAIMED))
    assert types(again) == []
    assert again.after == again.before


def test_the_delay_doubles_from_five_seconds_to_a_minute() -> None:
    waited, delays = timedelta(0), []
    for _ in range(6):
        change = block(run(1, blocked_at=LATER - waited, **CLAIMED))
        ((_, after),) = change.changed_runs
        assert after.queued_at is not None
        delays.append(after.queued_at - LATER)
        waited += delays[-1]
    assert [delay.total_seconds() for delay in delays] == [5, 10, 20, 40, 60, 60]


def test_a_run_that_was_blocked_for_too_long_fails_whatever_its_retry_policy_says() -> None:
    schedule = active(policies=Policies(retry=RetryPolicy(max_retries=3)))
    change = block(run(1, blocked_at=LATER - HOUR, **CLAIMED), schedule=schedule)
    ((_, after),) = change.changed_runs
    assert (after.status, after.blocked_at, after.blocked_reason) == (RunStatus.FAILED, None, None)
    assert after.error is not None
    assert after.error.startswith("no worker could find its workflow within 3600 s (RQSCHED_BLOCKED_TIMEOUT)")
    assert after.error.endswith("no module 'billing'")
    assert types(change)[0] == audit.RUN_FAILED


def test_a_blocked_run_is_unfinished_for_overlap() -> None:
    ((_, blocked),) = block(run(1, **CLAIMED)).changed_runs
    fired = fire(overlapping(OverlapPolicy.SKIP.value), blocked)
    assert event(fired, audit.SKIPPED)["blocking_run_id"] == blocked.uid


def test_a_from_completion_schedule_still_waits_for_a_blocked_run() -> None:
    claimed = run(1, **CLAIMED)
    schedule = replace(active(), awaiting_run_uid=claimed.uid, next_run_at=None, due_at=None)
    assert block(claimed, schedule=schedule).after.awaiting_run_uid == claimed.uid


@pytest.mark.parametrize("outcome", [outcome for outcome in AttemptOutcome if outcome is not AttemptOutcome.DISPATCHED])
@pytest.mark.parametrize("retries", [0, 3])
def test_no_end_of_an_attempt_leaves_a_run_marked_as_blocked(outcome: AttemptOutcome, retries: int) -> None:
    schedule = active(policies=Policies(retry=RetryPolicy(max_retries=retries)))
    claimed = run(1, blocked_at=NOON, blocked_reason="host:7: nothing", **CLAIMED)
    change = decide_settle(holding(schedule, claimed), [claimed], claimed, AttemptResult(outcome), now=LATER)
    ((_, after),) = change.changed_runs
    assert (after.blocked_at, after.blocked_reason) == (None, None)


def test_a_run_that_is_cancelled_for_a_new_one_is_no_longer_blocked() -> None:
    ((_, blocked),) = block(run(1, **CLAIMED)).changed_runs
    fired = fire(overlapping("cancel_other"), blocked)
    ((_, after),) = fired.changed_runs
    assert (after.status, after.blocked_at) == (RunStatus.CANCELLED, None)


def test_a_long_reason_is_cut() -> None:
    ((_, after),) = block(run(1, **CLAIMED), "x" * 10_000).changed_runs
    assert after.blocked_reason is not None
    assert len(after.blocked_reason) == MAX_REASON
