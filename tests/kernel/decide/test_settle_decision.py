"""The end of a run: attempts, exhaustion, counters, waiting runs and the next occurrence."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule, ScheduleStatus
from rqsched.kernel.decide.policy import ErrorTypes, OverlapPolicy, Policies, RetryPolicy
from rqsched.kernel.decide.schedule_repair import decide_drain
from rqsched.kernel.decide.settle_decision import (
    MAX_ATTEMPTS_KEPT,
    MAX_ERROR,
    AttemptOutcome,
    AttemptResult,
    decide_settle,
)
from rqsched.when.spec import Every, Once, Spec
from tests.support.decisions import active, definition, ended, event, fire, holding, overlapping, run, types
from tests.support.env import HOUR, MINUTE, NOON, ONCE, SECOND

LATER = NOON + 10 * MINUTE
FAILED, LOST, SUCCEEDED = (
    AttemptResult(AttemptOutcome.FAILED, error="boom"),
    AttemptResult(AttemptOutcome.LOST),
    AttemptResult(AttemptOutcome.SUCCEEDED, "42"),
)


DIES = RetryPolicy(3, then="dead")
DIES_AT_ONCE = RetryPolicy(0, then="dead")


def retrying(retry: RetryPolicy, spec: Any = "@hourly", **fields: Any) -> Schedule:
    return active(spec, policies=Policies(retry=retry, **fields))


def end(schedule: Schedule, attempt_result: AttemptResult, *runs: Run) -> Change:
    """The first of the runs ends."""
    runs = runs or (run(1, started_at=NOON, attempt=1),)
    return decide_settle(holding(schedule, *runs), runs, runs[0], attempt_result, now=LATER)


def test_a_success_keeps_its_result_and_forgives_earlier_failures() -> None:
    before = replace(retrying(ONCE), consecutive_failures=2, error_count=5, last_error="boom")
    change = end(before, SUCCEEDED, run(1, error="boom", started_at=NOON))
    ((_, after),) = change.changed_runs
    assert (after.status, after.result, after.error, after.ended_at) == (RunStatus.SUCCEEDED, "42", None, LATER)
    assert (change.after.success_count, change.after.consecutive_failures, change.after.error_count) == (1, 0, 5)
    assert event(change, "RunSucceeded")["consecutive_failures"] == 2
    assert change.after.n == before.n


def test_every_attempt_leaves_its_entry() -> None:
    change = end(retrying(ONCE), FAILED, run(1, attempt=2, started_at=NOON, attempts='[{"attempt":1}]'))
    ((_, after),) = change.changed_runs
    assert json.loads(after.attempts) == [
        {"attempt": 1},
        {
            "attempt": 2,
            "started_at": "2026-01-15T12:00:00Z",
            "ended_at": "2026-01-15T12:10:00Z",
            "outcome": "failed",
            "error": "boom",
        },
    ]


def test_the_entries_and_the_error_are_kept_within_bounds() -> None:
    many = json.dumps([{"attempt": number} for number in range(1, 61)])
    error = "ValueError: boom\n" + "x" * 10_000 + "\nraised here"
    change = end(retrying(ONCE), AttemptResult(AttemptOutcome.FAILED, error=error), run(1, attempts=many))
    ((_, after),) = change.changed_runs
    assert len(json.loads(after.attempts)) == MAX_ATTEMPTS_KEPT
    assert after.error is not None
    assert after.error.startswith("ValueError: boom\n")
    assert after.error.endswith("\nraised here")
    assert "[cut]" in after.error
    assert len(after.error) < MAX_ERROR + 20


@pytest.mark.parametrize(
    ("retry", "attempt_result", "status", "reason"),
    [
        ({"retry_on": "OSError"}, FAILED._replace(error_types=ErrorTypes(("E",), ("OSError",))), "retrying", None),
        (
            {"retry_on": "OSError"},
            FAILED._replace(error_types=ErrorTypes(("E",))),
            "failed",
            "retry_on does not name it",
        ),
        ({"give_up_on": "E"}, FAILED._replace(error_types=ErrorTypes(("E",))), "failed", "give_up_on names E"),
        ({"retry_on": "OSError"}, LOST, "retrying", None),
        ({"give_up_on": "lost"}, LOST, "lost", "give_up_on names lost"),
        ({"give_up_on": "E", "max_retries": 0}, FAILED._replace(error_types=ErrorTypes(("E",))), "failed", None),
    ],
    ids=["named", "not named", "given up", "lost", "lost and given up", "no attempt was left"],
)
def test_an_error_that_is_not_to_be_tried_again_ends_the_run_and_the_event_says_why(
    retry: dict[str, Any], attempt_result: AttemptResult, status: str, reason: str | None
) -> None:
    change = end(retrying(RetryPolicy(**retry)), attempt_result)
    assert change.changed_runs[0][1].status == status
    event_type = {"retrying": "RunRetrying", "failed": "RunFailed", "lost": "RunLost"}[status]
    assert event(change, event_type).get("reason") == reason


@pytest.mark.parametrize("attempt_result", [FAILED, LOST], ids=["failed", "lost"])
def test_a_failing_attempt_is_retried_after_growing_delays(attempt_result: AttemptResult) -> None:
    schedule, waits = retrying(RetryPolicy(max_retries=3)), []
    for attempt in (1, 2, 3):
        change = end(schedule, attempt_result, run(1, attempt=attempt))
        ((_, after),) = change.changed_runs
        assert after.status is RunStatus.RETRYING
        assert after.retry_at is not None
        assert after.ended_at is None
        waits.append((after.retry_at - LATER) // SECOND)
        schedule = change.after
    assert waits == [60, 120, 240]
    assert (schedule.error_count, schedule.consecutive_failures) == (3, 0)
    assert schedule.last_error == (attempt_result.error or "lost")


def test_the_first_delay_is_the_interval() -> None:
    change = end(retrying(RetryPolicy(), Every("5m")), FAILED)
    assert change.changed_runs[0][1].retry_at == LATER + 5 * MINUTE


@pytest.mark.parametrize(
    ("retry", "attempt_result", "attempt", "status"),
    [
        pytest.param(DIES, FAILED, 4, "failed", id="the last attempt failed"),
        pytest.param(DIES, LOST, 4, "lost", id="the last attempt was lost"),
        pytest.param(DIES_AT_ONCE, FAILED, 1, "failed", id="at most once: failed"),
        pytest.param(DIES_AT_ONCE, LOST, 1, "lost", id="at most once: lost"),
        pytest.param(DIES, FAILED._replace(is_final=True), 1, "failed", id="no further attempt wanted"),
    ],
)
def test_a_schedule_dies_when_its_run_has_no_attempt_left(
    retry: RetryPolicy, attempt_result: AttemptResult, attempt: int, status: str
) -> None:
    schedule = retrying(retry)
    change = end(schedule, attempt_result, run(1, attempt=attempt))
    assert ended(change) == {1: status}
    assert change.after.status is ScheduleStatus.DEAD
    assert (change.after.next_run_at, change.after.due_at, change.after.n) == (None, None, schedule.n + 1)
    assert event(change, "Died") == {
        "reason": "retries_exhausted",
        "died_at": "2026-01-15T12:10:00Z",
        "error": attempt_result.error or "lost",
        "workflow_run_id": run(1).uid,
        "consecutive_failures": 1,
    }


def test_then_continue_keeps_the_schedule_active() -> None:
    schedule = retrying(ONCE)
    change = end(schedule, FAILED)
    assert ended(change) == {1: "failed"}
    assert (change.after.status, change.after.next_run_at) == (ScheduleStatus.ACTIVE, schedule.next_run_at)
    assert (change.after.n, types(change), change.after.consecutive_failures) == (schedule.n, ["RunFailed"], 1)


def test_a_failed_run_is_recorded_with_its_attempt_the_first_line_of_its_error_and_its_duration() -> None:
    error = AttemptResult(AttemptOutcome.FAILED, error="ValueError: boom\n\nFile jobs.py, line 3")
    change = end(retrying(ONCE), error, run(1, attempt=2, started_at=NOON))
    assert event(change, "RunFailed") == {
        "workflow_instance_id": "schedule:nightly:1",
        "workflow_run_id": run(1).uid,
        "occurrence_time": "2026-01-14T12:01:00Z",
        "attempt": 2,
        "error": "ValueError: boom",
        "duration_seconds": 600.0,
        "consecutive_failures": 1,
    }
    assert change.events[0].run_uid == run(1).uid


def test_a_lost_run_is_recorded_as_lost() -> None:
    change = end(retrying(ONCE), LOST._replace(error="its work horse died"))
    assert types(change) == ["RunLost"]
    assert event(change, "RunLost")["error"] == "its work horse died"


@pytest.mark.parametrize(("attempt_result", "outcome"), [(FAILED, "failed"), (LOST, "lost")])
def test_an_attempt_that_is_tried_again_is_recorded_with_the_time_of_the_next_one(
    attempt_result: AttemptResult, outcome: str
) -> None:
    change = end(retrying(RetryPolicy(1, base=MINUTE)), attempt_result)
    recorded = event(change, "RunRetrying")
    assert types(change) == ["RunRetrying"]
    assert (recorded["outcome"], recorded["attempt"], recorded["retry_at"]) == (outcome, 1, "2026-01-15T12:11:00Z")


def test_a_success_after_a_success_has_no_event_and_writes_nothing_but_the_counts() -> None:
    before = end(retrying(ONCE), SUCCEEDED).after
    assert before.last_outcome == "succeeded", "written with the first success, and then left alone"
    change = end(before, SUCCEEDED)
    changed = {
        field.name for field in fields(Schedule) if getattr(before, field.name) != getattr(change.after, field.name)
    }
    assert (change.events, changed) == ((), {"success_count"})


@pytest.mark.parametrize("failure", [FAILED, LOST], ids=["failed", "lost"])
def test_only_the_first_success_after_a_failed_run_is_recorded(failure: AttemptResult) -> None:
    recovered = end(end(retrying(ONCE), failure).after, SUCCEEDED)
    assert event(recovered, "RunSucceeded")["consecutive_failures"] == 1
    assert types(end(recovered.after, SUCCEEDED)) == []


def test_a_success_is_recorded_as_one_after_failures_even_after_a_restart() -> None:
    dead = end(retrying(DIES_AT_ONCE), FAILED).after
    revived = lifecycle.decide_restart(dead, [], now=LATER).after
    assert event(end(revived, SUCCEEDED), "RunSucceeded")["consecutive_failures"] == 0
    cancelled = end(revived, AttemptResult(AttemptOutcome.CANCELLED)).after
    assert types(end(cancelled, SUCCEEDED)) == ["RunSucceeded"]


def test_a_run_that_succeeds_at_a_later_attempt_is_recorded() -> None:
    change = end(retrying(ONCE), SUCCEEDED, run(1, attempt=3, started_at=NOON))
    assert (event(change, "RunSucceeded")["attempt"], "error" in event(change, "RunSucceeded")) == (3, False)


def test_a_schedule_may_die_only_after_failures_in_a_row() -> None:
    schedule = retrying(RetryPolicy(0, then="continue", max_consecutive_failures=3))
    for attempt_result in (FAILED, FAILED, SUCCEEDED, FAILED, FAILED):
        schedule = end(schedule, attempt_result).after
        assert schedule.is_active
    assert end(schedule, LOST).after.status is ScheduleStatus.DEAD


def test_a_paused_schedule_dies_too() -> None:
    paused = lifecycle.decide_pause(retrying(DIES_AT_ONCE), now=NOON).after
    assert end(paused, FAILED).after.status is ScheduleStatus.DEAD


@pytest.mark.parametrize("outcome", [AttemptOutcome.CANCELLED, AttemptOutcome.TERMINATED])
def test_a_run_ended_on_request_does_not_count_as_a_failure(outcome: AttemptOutcome) -> None:
    change = end(retrying(RetryPolicy(3)), AttemptResult(outcome))
    assert ended(change) == {1: outcome.value}
    assert (change.after.error_count, change.after.consecutive_failures) == (0, 0)
    assert change.after.is_active


def test_a_retrying_run_that_is_cancelled_has_no_retry() -> None:
    change = end(retrying(RetryPolicy(3)), AttemptResult(AttemptOutcome.CANCELLED), run(1, "retrying", retry_at=LATER))
    assert change.changed_runs[0][1].retry_at is None


@pytest.mark.parametrize(
    "attempt_result",
    [SUCCEEDED, FAILED, LOST, AttemptResult(AttemptOutcome.CANCELLED), AttemptResult(AttemptOutcome.TERMINATED)],
)
def test_the_oldest_waiting_run_starts_when_the_one_ahead_ends(attempt_result: AttemptResult) -> None:
    change = end(overlapping("buffer_all"), attempt_result, run(1), run(2, "buffered"), run(3, "buffered"))
    assert ended(change)[2] == "pending"
    assert 3 not in ended(change)
    started = event(change, "Triggered")
    assert (started["outcome"], started["workflow_run_id"]) == ("drained", run(2).uid)
    assert (change.after.buffer_depth, change.after.run_count) == (1, 1)


def test_waiting_runs_start_in_order_one_at_a_time() -> None:
    open_runs = [run(1), run(2, "buffered"), run(3, "buffered"), run(4, "buffered")]
    schedule, order = overlapping("buffer_all"), []
    while open_runs:
        change = end(schedule, SUCCEEDED, *open_runs)
        begun = [new for old, new in change.changed_runs if old.status is RunStatus.BUFFERED]
        order += [new.number for new in begun]
        open_runs = begun + open_runs[2:]
        schedule = change.after
    assert order == [2, 3, 4]
    assert (schedule.buffer_depth, schedule.run_count) == (0, 3)


def test_a_retry_keeps_the_others_waiting() -> None:
    policies = Policies(overlap=OverlapPolicy.BUFFER_ALL, retry=RetryPolicy(3))
    change = end(active(policies=policies), FAILED, run(1), run(2, "buffered"))
    assert ended(change) == {1: "retrying"}


def test_two_unfinished_runs_keep_the_others_waiting() -> None:
    change = end(overlapping("buffer_all"), SUCCEEDED, run(1), run(2, kind="manual"), run(3, "buffered"))
    assert ended(change) == {1: "succeeded"}


def test_a_paused_schedule_keeps_its_runs_waiting_until_it_resumes() -> None:
    runs = [run(1), run(2, "buffered")]
    paused = lifecycle.decide_pause(holding(overlapping("buffer_all"), *runs), now=NOON).after
    change = end(paused, SUCCEEDED, *runs)
    assert ended(change) == {1: "succeeded"}
    assert change.after.buffer_depth == 1
    assert decide_drain(change.after, runs[1:], now=LATER).is_empty
    resumed = lifecycle.decide_resume(change.after, runs[1:], now=LATER)
    assert ended(resumed) == {2: "pending"}
    assert types(resumed) == ["Resumed", "Triggered"]


def test_a_paused_schedule_continues_its_backfill() -> None:
    runs = [run(1, kind="backfill"), run(2, "buffered", "backfill"), run(3, "buffered")]
    paused = lifecycle.decide_pause(holding(overlapping("buffer_all"), *runs), now=NOON).after
    assert ended(end(paused, SUCCEEDED, *runs)) == {1: "succeeded", 2: "pending"}


def test_live_runs_go_before_a_backfill() -> None:
    runs = [run(1), run(2, "buffered", "backfill"), run(3, "buffered")]
    assert ended(end(overlapping("buffer_all"), SUCCEEDED, *runs)) == {1: "succeeded", 3: "pending"}


def test_a_drain_that_a_crash_lost_is_decided_again() -> None:
    waiting = run(2, "buffered")
    schedule = holding(overlapping("buffer_all"), waiting)
    assert ended(decide_drain(schedule, [waiting], now=LATER)) == {2: "pending"}
    assert decide_drain(holding(schedule, run(1), waiting), [run(1), waiting], now=LATER).is_empty


def test_a_drained_run_uses_up_max_runs_and_the_rest_is_dropped() -> None:
    runs = [run(1), run(2, "buffered"), run(3, "buffered")]
    change = end(overlapping("buffer_all", max_runs=1), SUCCEEDED, *runs)
    assert types(change) == ["Triggered", "Completed"]
    assert (change.after.remaining, change.after.buffer_depth, change.drops_buffer) == (0, 0, True)
    assert event(change, "Completed")["dropped_buffered"] == 1


@pytest.mark.parametrize("kind", ["scheduled", "backfill"])
def test_a_schedule_that_dies_starts_nothing_that_waited(kind: str) -> None:
    runs = [run(1), run(2, "buffered", kind)]
    change = end(retrying(DIES_AT_ONCE), FAILED, *runs)
    assert ended(change) == {1: "failed"}
    assert event(change, "Died")["dropped_buffered"] == 1
    assert (change.drops_buffer, change.after.buffer_depth, change.after.backfill_waiting) == (True, 0, 0)


def test_a_spec_that_is_over_is_done_when_its_buffer_is_empty() -> None:
    schedule = fire(holding(overlapping("buffer_all", Once(NOON + HOUR)), run(1)), run(1)).after
    waiting = run(2, "buffered")
    change = decide_settle(schedule, [run(1), waiting], run(1), SUCCEEDED, now=NOON + 2 * HOUR)
    assert types(change) == ["Triggered", "Completed"]
    assert (event(change, "Completed")["reason"], change.after.status) == ("spec_ended", ScheduleStatus.DONE)


def test_total_repeats_counts_successes() -> None:
    schedule = retrying(ONCE, max_successes=2)
    for attempt_result in (SUCCEEDED, FAILED, LOST, AttemptResult(AttemptOutcome.CANCELLED)):
        schedule = end(schedule, attempt_result).after
        assert schedule.is_active
    change = end(schedule, SUCCEEDED)
    assert event(change, "Completed")["reason"] == "total_repeats_reached"
    assert (change.after.status, change.after.success_count) == (ScheduleStatus.DONE, 2)


def test_total_repeats_that_was_lowered_ends_with_the_next_success() -> None:
    schedule = replace(retrying(ONCE, max_successes=2), success_count=5)
    assert end(schedule, SUCCEEDED).after.status is ScheduleStatus.DONE


def test_what_was_due_when_a_schedule_ends_has_its_outcome() -> None:
    """I1: after an hour's outage a lost run makes the schedule dead before any fire."""
    schedule = retrying(DIES_AT_ONCE, "*/10 * * * *")
    change = decide_settle(holding(schedule, run(1)), [run(1)], run(1), LOST, now=NOON + HOUR)
    assert types(change) == ["RunLost", "TriggerSkipped", "Missed", "Died"]
    skipped, missed = event(change, "TriggerSkipped"), event(change, "Missed")
    assert (skipped["occurrence_time"], skipped["reason"]) == ("2026-01-15T12:10:00Z", "status_not_triggerable")
    assert (missed["count"], missed["first"], missed["last"]) == (5, "2026-01-15T12:20:00Z", "2026-01-15T13:00:00Z")


def test_a_deleted_schedule_s_run_ends_and_starts_nothing() -> None:
    runs = [run(1), run(2, "buffered")]
    deleted = lifecycle.decide_delete(holding(retrying(RetryPolicy(3)), *runs), now=NOON).after
    change = decide_settle(deleted, runs[:1], runs[0], FAILED, now=LATER)
    assert ended(change) == {1: "failed"}
    assert (change.after.status, types(change)) == (ScheduleStatus.DELETED, ["RunFailed"])


def test_the_last_run_of_max_runs_keeps_its_retries_where_it_deletes_the_schedule() -> None:
    policies = Policies(on_max_runs="delete", retry=RetryPolicy(3))
    change = fire(active(policies=policies, max_runs=1))
    (started,) = change.new_runs
    assert change.after.status is ScheduleStatus.DELETED
    failed = decide_settle(change.after, [started], started, FAILED, now=NOON + 2 * HOUR)
    assert ended(failed) == {1: "retrying"}


@pytest.mark.parametrize("status", ["done", "dead"])
def test_a_run_that_outlives_its_schedule_does_not_revive_it(status: str) -> None:
    over = replace(retrying(RetryPolicy(1)), status=ScheduleStatus(status), next_run_at=None, due_at=None)
    assert ended(end(over, FAILED)) == {1: "retrying"}
    for attempt_result, recorded in ((SUCCEEDED, []), (FAILED._replace(is_final=True), ["RunFailed"])):
        change = end(over, attempt_result)
        assert (change.after.status.value, types(change)) == (status, recorded)


DELAYED = Spec(Every("5m", from_completion=True))


@pytest.mark.parametrize(
    "attempt_result", [SUCCEEDED, FAILED, LOST, AttemptResult(AttemptOutcome.CANCELLED)], ids=lambda v: v.outcome
)
def test_the_delay_begins_when_the_awaited_run_ends(attempt_result: AttemptResult) -> None:
    waiting = replace(retrying(ONCE, DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    change = end(waiting, attempt_result)
    assert (change.after.next_run_at, change.after.due_at) == (LATER + 5 * MINUTE, LATER + 5 * MINUTE)
    assert (change.after.awaiting_run_uid, change.after.n) == (None, waiting.n + 1)


def test_the_delay_waits_for_the_retries_too() -> None:
    waiting = replace(retrying(RetryPolicy(3), DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    assert end(waiting, FAILED).after.awaiting_run_uid == run(1).uid


def test_another_run_s_end_does_not_set_the_next_time() -> None:
    waiting = replace(retrying(ONCE, DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    change = end(waiting, SUCCEEDED, run(2, kind="manual"), run(1))
    assert (change.after.next_run_at, change.after.awaiting_run_uid) == (None, run(1).uid)


def test_a_spec_that_ended_meanwhile_is_done() -> None:
    spec = Spec(Every("5m", from_completion=True), end_at=LATER)
    waiting = replace(retrying(ONCE, spec), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    assert types(end(waiting, SUCCEEDED)) == ["Completed"]


def test_an_update_leaves_an_awaited_run_awaited() -> None:
    waiting = replace(retrying(ONCE, DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    slower = definition(Every("9m", from_completion=True), policies=waiting.policies)
    updated = lifecycle.decide_update(waiting, slower, now=NOON).after
    assert updated.awaiting_run_uid == run(1).uid
    assert end(updated, SUCCEEDED).after.next_run_at == LATER + 9 * MINUTE
