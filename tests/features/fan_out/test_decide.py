"""The pure decision after an attempt of a target."""

from __future__ import annotations

import pytest

from rqsched.errors import InvalidPolicyError
from rqsched.features.fan_out.decide import TargetEnd, decide_blocked, decide_failed
from rqsched.kernel.decide.model import Schedule, ScheduleStatus, changed
from rqsched.kernel.decide.policy import ErrorTypes, Policies, RetryPolicy
from rqsched.kernel.decide.settle_decision import MAX_ERROR
from tests.support.decisions import active
from tests.support.env import HOUR, NOON, SECOND

ERROR = "ValueError: not today"


def schedule(**options: object) -> Schedule:
    """A schedule whose targets are tried once more, after 7 s."""
    return active(policies=Policies(target_retry=RetryPolicy(max_retries=1, base=7 * SECOND), **options))  # type: ignore[arg-type]


def test_a_failed_attempt_is_repeated_while_the_policy_allows() -> None:
    first, second = (decide_failed(schedule(), "t", attempt, ERROR, now=NOON) for attempt in (1, 2))
    assert first == TargetEnd("retrying", ERROR, NOON + 7 * SECOND)  # type: ignore[arg-type]
    assert (second.status, second.retry_at, second.has_ended) == ("failed", None, True)


def test_a_target_whose_process_vanished_is_lost_when_no_attempt_is_left() -> None:
    ends = [decide_failed(schedule(), "t", attempt, ERROR, now=NOON, is_lost=True).status for attempt in (1, 2)]
    assert ends == ["retrying", "lost"]


def test_nothing_is_repeated_of_a_deleted_schedule_an_ended_run_or_after_a_final_error() -> None:
    deleted = changed(schedule(), status=ScheduleStatus.DELETED)
    final = schedule(final_errors=("ValueError",))
    for policy in (deleted, None, final):
        assert (
            decide_failed(policy, "t", 1, ERROR, now=NOON, error_types=ErrorTypes(("ValueError",))).status == "failed"
        )
    kept = changed(schedule(on_delete="keep_runs"), status=ScheduleStatus.DELETED)
    assert decide_failed(kept, "t", 1, ERROR, now=NOON).status == "retrying"


def test_the_policy_of_targets_says_which_errors_are_tried_again() -> None:
    retry = RetryPolicy(max_retries=1, retry_on="OSError", give_up_on="lost")
    known = active(policies=Policies(target_retry=retry))
    attempts = {
        name: decide_failed(known, "t", 1, ERROR, now=NOON, error_types=ErrorTypes(("MyError",), (name,))).status.value
        for name in ("OSError", "ValueError")
    }
    assert attempts == {"OSError": "retrying", "ValueError": "failed"}
    assert decide_failed(known, "t", 1, ERROR, now=NOON, is_lost=True).status == "lost"


def test_by_default_a_target_has_one_attempt() -> None:
    assert decide_failed(active(), "t", 1, ERROR, now=NOON).status == "failed"


def test_a_long_error_keeps_its_first_line_and_its_end() -> None:
    error = decide_failed(None, "t", 1, ERROR + "x" * 20_000 + "the end", now=NOON).error or ""
    assert error.startswith(ERROR)
    assert error.endswith("the end")
    assert len(error) < MAX_ERROR + 20


def test_a_blocked_target_is_offered_after_5_to_60_seconds_and_fails_after_the_timeout() -> None:
    waits, since, now = [], None, NOON
    for _ in range(6):
        end = decide_blocked(since, "no module", now=now, timeout=HOUR)
        assert end.retry_at is not None
        waits.append((end.retry_at - now).total_seconds())
        since, now = end.blocked_at, end.retry_at
    assert (waits, since) == ([5, 10, 20, 40, 60, 60], NOON)
    last = decide_blocked(since, "no module", now=NOON + HOUR, timeout=HOUR)
    assert (last.status, last.blocked_at) == ("failed", None)
    assert last.error == "no worker could find its workflow within 3600 s (RQSCHED_BLOCKED_TIMEOUT): no module"


@pytest.mark.parametrize(
    "policies",
    [
        {"target_retry": RetryPolicy(then="dead")},
        {"target_retry": RetryPolicy(max_consecutive_failures=2)},
        {"target_timeout": 0},
        {"max_parallel": 0},
        {"max_parallel": True},
    ],
)
def test_policies_of_targets_that_make_no_sense_are_refused(policies: dict[str, object]) -> None:
    with pytest.raises(InvalidPolicyError):
        Policies(**policies)  # type: ignore[arg-type]


def test_policies_of_targets_are_read_back_as_they_were_written() -> None:
    policies = Policies(target_retry=RetryPolicy(max_retries=2, base=SECOND), target_timeout=9, max_parallel=4)
    assert Policies.loads(policies.dumps()) == policies
    assert Policies.loads("{}").target_retry.max_retries == 0
    assert "target" not in Policies().dumps()
