"""The decision of one fire of a due schedule, branch by branch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rqsched.kernel.decide.fire_decision import decide_fire_failed, decide_retry, is_stale
from rqsched.kernel.decide.model import RunKind, RunStatus, ScheduleStatus
from rqsched.kernel.decide.policy import MissedPolicy, OverlapPolicy, Policies
from rqsched.when.spec import Cron, Every, Once, Spec
from tests.support.decisions import active, ended, event, fire, holding, overlapping, run, types
from tests.support.env import HOUR, MINUTE, NOON, ONCE, SECOND
from tests.support.narrow import present

DELAYED = Spec(Every("5m", from_completion=True))


def test_a_fire_starts_one_run_for_its_occurrence_and_sets_the_next_time() -> None:
    schedule = active("@hourly", labels='{"team":"billing"}', queue="high", timeout=60, priority=1)
    change = fire(schedule, now=NOON + HOUR + 3 * SECOND)
    (started,) = change.new_runs
    assert (started.kind, started.status, started.number, started.attempt) == (
        RunKind.SCHEDULED,
        RunStatus.PENDING,
        1,
        1,
    )
    assert started.instance_id == "schedule:nightly:2026-01-15T13:00:00Z"
    assert (started.occurrence_at, started.due_at) == (NOON + HOUR, NOON + HOUR)
    assert (started.labels, started.queue, started.timeout, started.priority) == ('{"team":"billing"}', "high", 60, 1)
    assert not started.is_override
    after = change.after
    assert (after.next_run_at, after.due_at, after.evaluated_to) == (NOON + 2 * HOUR, NOON + 2 * HOUR, NOON + HOUR)
    assert (after.run_count, after.run_number, after.last_run_at) == (1, 1, NOON + HOUR + 3 * SECOND)
    assert (after.last_run_uid, after.last_instance_id) == (started.uid, started.instance_id)
    assert event(change, "Triggered") == {
        "workflow_instance_id": started.instance_id,
        "workflow_run_id": started.uid,
        "outcome": "triggered",
        "effective_overlap_policy": "skip",
        "trigger_number": 1,
        "occurrence_time": "2026-01-15T13:00:00Z",
    }


def test_a_run_carries_the_event_that_ties_it_to_its_schedule() -> None:
    (started,) = fire(active(Spec("0 9 * * *", "Asia/Tokyo"))).new_runs
    assert json.loads(started.lineage) == {
        "schedule_id": "nightly",
        "schedule_ulid": started.schedule_uid,
        "cron_expression": "0 9 * * *",
        "timezone": "Asia/Tokyo",
        "overlap_policy": "skip",
        "trigger_number": 1,
        "occurrence_time": "2026-01-16T00:00:00Z",
    }


def test_routing_takes_each_field_from_the_schedule_else_from_the_workflow() -> None:
    defaults = '{"connection":"eu","queue":"low","timeout":30}'
    (started,) = fire(active(queue="high", defaults=defaults)).new_runs
    assert (started.queue, started.connection, started.timeout) == ("high", "eu", 30)


@pytest.mark.parametrize("late", [timedelta(0), SECOND, 59 * MINUTE], ids=str)
def test_a_late_fire_never_moves_the_grid(late: timedelta) -> None:
    change = fire(active(Every("1h", anchor=NOON)), now=NOON + HOUR + late)
    assert change.after.next_run_at == NOON + 2 * HOUR


def test_every_fire_takes_the_next_position_in_the_chain() -> None:
    schedule = active("@hourly")
    for n in (1, 2, 3):
        schedule = fire(schedule, run(7)).after
        assert schedule.n == n


def test_a_fire_decides_the_same_again_from_the_same_state() -> None:
    schedule = active("@hourly")
    assert fire(schedule) == fire(schedule)


@pytest.mark.parametrize(("env", "starts"), [("production", True), ("staging", True), ("laptop", False), ("", False)])
def test_a_schedule_of_other_environments_skips_and_continues(env: str, starts: bool) -> None:
    policies = Policies(environments=("production", "staging"), retry=ONCE)
    change = fire(active(policies=policies), env=env)
    assert len(change.new_runs) == starts
    assert change.after.next_run_at == NOON + 2 * HOUR
    if not starts:
        assert event(change, "TriggerSkipped")["reason"] == "environment"


SPRING = datetime(2026, 3, 8, tzinfo=UTC)


def test_a_reading_the_clock_never_showed_is_skipped_when_the_next_one_fires() -> None:
    schedule = active(Spec("30 2 * * *", "America/New_York", dst_gap="skip"), now=SPRING)
    assert schedule.next_run_at == SPRING + timedelta(days=1, hours=6, minutes=30)
    change = fire(schedule)
    assert types(change) == ["TriggerSkipped", "Triggered"]
    skipped = event(change, "TriggerSkipped")
    assert (skipped["reason"], skipped["occurrence_time"]) == ("dst_skip", "2026-03-08T07:30:00Z")
    assert types(fire(change.after)) == ["Triggered"], "it is recorded once"


def test_an_occurrence_a_backfill_ran_starts_nothing_and_the_chain_advances() -> None:
    change = fire(active("@hourly"), ran=[NOON + HOUR])
    assert (change.new_runs, change.events) == ((), ())
    assert (change.after.next_run_at, change.after.n) == (NOON + 2 * HOUR, 1)
    assert change.after.evaluated_to == NOON + HOUR


@pytest.mark.parametrize(
    ("mode", "status", "event_type"), [("done", "done", "Completed"), ("delete", "deleted", "Deleted")]
)
def test_the_last_of_max_runs_ends_the_schedule(mode: str, status: str, event_type: str) -> None:
    policies = Policies(overlap=OverlapPolicy.ALLOW_ALL, on_max_runs=mode, retry=ONCE)
    schedule = active("@hourly", policies=policies, max_runs=2)
    first = fire(schedule).after
    assert (first.remaining, first.status) == (1, ScheduleStatus.ACTIVE)
    change = fire(first)
    assert types(change) == ["Triggered", event_type]
    assert event(change, event_type)["reason"] == "max_runs_exhausted"
    assert (change.after.remaining, change.after.status.value) == (0, status)
    assert (change.after.next_run_at, change.after.due_at, change.after.n) == (None, None, 2)
    assert [started.status for started in change.new_runs] == [RunStatus.PENDING]
    assert not change.drops_retries, "the runs that max_runs allowed keep their attempts"


def test_the_end_of_max_runs_drops_the_buffer_with_one_event() -> None:
    runs = [run(2, "buffered"), run(3, "buffered")]
    schedule = replace(holding(overlapping("cancel_other", max_runs=1), *runs))
    change = fire(schedule, runs[0])
    assert event(change, "Completed")["dropped_buffered"] == 2
    assert (change.drops_buffer, change.after.buffer_depth) == (True, 0)


def test_skips_and_buffered_runs_do_not_use_up_max_runs() -> None:
    for policy in ("skip", "buffer_all"):
        schedule = holding(overlapping(policy, max_runs=1), run(1))
        assert fire(schedule, run(1)).after.remaining == 1


def test_the_last_occurrence_of_a_spec_ends_the_schedule() -> None:
    change = fire(active(Once(NOON + HOUR)))
    assert types(change) == ["Triggered", "Completed"]
    assert event(change, "Completed")["reason"] == "spec_ended"
    assert change.after.status is ScheduleStatus.DONE
    assert change.after.status_reason == "spec_ended"


def test_a_spec_that_is_over_waits_for_its_buffer() -> None:
    change = fire(holding(overlapping("buffer_all", Once(NOON + HOUR)), run(1)), run(1))
    assert types(change) == ["Buffered"]
    assert (change.after.status, change.after.next_run_at, change.after.n) == (ScheduleStatus.ACTIVE, None, 1)
    assert is_stale(change.after, 1), "nothing is left to fire"


def test_a_spec_that_is_over_waits_for_its_backfill() -> None:
    waiting = run(1, "buffered", "backfill")
    change = fire(holding(active(Once(NOON + HOUR)), waiting), waiting)
    assert (change.after.status, change.drops_buffer) == (ScheduleStatus.ACTIVE, False)


def test_a_schedule_from_completion_waits_for_the_run_it_started() -> None:
    change = fire(active(DELAYED))
    assert (change.after.next_run_at, change.after.due_at) == (None, None)
    assert change.after.awaiting_run_uid == change.new_runs[0].uid
    assert change.after.n == 1


def test_a_schedule_from_completion_waits_for_the_blocking_run() -> None:
    change = fire(holding(active(DELAYED), run(1), run(2)), run(1), run(2))
    assert types(change) == ["TriggerSkipped"]
    assert change.after.awaiting_run_uid == run(2).uid


def test_a_schedule_from_completion_that_started_nothing_tries_again_after_its_delay() -> None:
    late = NOON + HOUR
    change = fire(active(DELAYED, policies=Policies(environments=("production",))), now=late)
    assert types(change) == ["TriggerSkipped"]
    assert (change.after.next_run_at, change.after.awaiting_run_uid) == (late + 5 * MINUTE, None)


def test_a_schedule_from_completion_that_is_late_has_missed_nothing() -> None:
    """Such a schedule has one occurrence at a time, so nothing else was due."""
    change = fire(active(DELAYED), now=NOON + HOUR)
    assert types(change) == ["Triggered"]
    assert change.new_runs[0].occurrence_at == NOON + 5 * MINUTE


def test_jitter_delays_the_fire_and_not_the_occurrence() -> None:
    schedule = active("@hourly", jitter=10 * MINUTE)
    assert schedule.due_at is not None
    assert NOON + HOUR < schedule.due_at < NOON + HOUR + 10 * MINUTE
    (started,) = fire(schedule).new_runs
    assert (started.occurrence_at, started.due_at) == (NOON + HOUR, schedule.due_at)


def test_a_mixed_spec_fires_equal_instants_once() -> None:
    schedule = active(Spec([Cron("0 * * * *"), Every("30m", offset="0s")]))
    nominal = []
    for _ in range(4):
        change = fire(schedule)
        schedule = change.after
        nominal.append(present(change.before).next_run_at)
    assert nominal == [NOON + k * 30 * MINUTE for k in (1, 2, 3, 4)]


def test_a_fire_that_raised_is_tried_again_after_growing_delays() -> None:
    schedule, waits = active("@hourly"), []
    now = NOON + HOUR
    for _ in range(10):
        change = decide_fire_failed(schedule, "boom", now=now)
        assert change.after.n == schedule.n + 1
        schedule = change.after
        assert schedule.due_at is not None
        waits.append((schedule.due_at - now).total_seconds())
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert (schedule.next_run_at, schedule.fire_failures, schedule.last_error) == (NOON + HOUR, 10, "boom")
    assert event(change, "FireFailed") == {
        "error": "boom",
        "fire_failures": 10,
        "retry_at": "2026-01-15T13:05:00Z",
        "occurrence_time": "2026-01-15T13:00:00Z",
    }


def test_a_fire_that_succeeds_after_failures_resets_their_count_and_keeps_the_first_due_time() -> None:
    failed = decide_fire_failed(active("@hourly"), "boom", now=NOON + HOUR).after
    change = fire(failed)
    assert change.after.fire_failures == 0
    assert change.new_runs[0].due_at == NOON + HOUR


def test_failed_fires_do_not_change_the_age_of_an_occurrence() -> None:
    schedule = active("@hourly", policies=Policies(missed=MissedPolicy.SKIP))
    failed = replace(schedule, due_at=NOON + HOUR + 5 * MINUTE, fire_failures=9)
    assert types(fire(failed)) == ["Missed"]


def test_a_retry_makes_its_run_pending_for_the_next_attempt_and_moves_nothing_else() -> None:
    waiting = run(1, "retrying", attempt=2, delivery=3, token="t", worker="w", retry_at=NOON, error="boom")
    schedule = holding(active("@hourly"), waiting)
    change = decide_retry(schedule, [waiting], waiting, now=NOON + MINUTE)
    ((_, again),) = change.changed_runs
    assert ended(change) == {1: "pending"}
    assert (again.attempt, again.delivery, again.token, again.worker, again.retry_at) == (3, 1, None, None, None)
    assert again.error == "boom"
    assert (change.events, change.after) == ((), schedule)


@pytest.mark.parametrize(
    ("changes", "n", "stale"),
    [
        ({}, 0, False),
        ({}, 1, True),
        ({"n": 4}, 3, True),
        ({"status": ScheduleStatus.PAUSED}, 0, True),
        ({"status": ScheduleStatus.DELETED}, 0, True),
        ({"due_at": None}, 0, True),
    ],
    ids=["its own", "of the future", "of the past", "paused", "deleted", "nothing due"],
)
def test_a_link_is_stale_unless_it_is_the_schedule_s_own(changes: dict[str, Any], n: int, stale: bool) -> None:
    assert is_stale(replace(active(), **changes), n) is stale
    assert is_stale(None, n)
