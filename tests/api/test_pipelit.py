"""The Pipelit document, row by row: intervals, repeats that count successes, retries, event data, end states."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched import current_run
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import ScheduleNotFoundError, ScheduleStateError
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, newest, statuses


def scheduled_job(env: Env, interval_seconds: int = 300, **options: Any) -> ScheduleHandle:
    return env.create("daily-report", timedelta(seconds=interval_seconds), **options)


def test_the_defaults_are_those_of_the_document(any_env: Env) -> None:
    described = scheduled_job(any_env).describe()

    assert described.policies["retry"]["max_retries"] == 3
    assert described.policies["max_successes"] is None, "total_repeats 0: for ever"
    assert described.policies["overlap"] == "skip"
    any_env.run_due(5 * MINUTE)
    assert any_env.seen[0].deadline_at - any_env.seen[0].started_at == 600 * SECOND


def test_the_event_data_is_passed_to_the_workflow(any_env: Env) -> None:
    schedule = scheduled_job(any_env, kwargs={"report_type": "daily"})
    events: list[dict[str, Any]] = []
    any_env.register("note", lambda **payload: events.append(current_run().event_data))

    any_env.run_due(5 * MINUTE)
    any_env.run_due(5 * MINUTE)

    assert events == [
        {
            "scheduled_job_id": schedule.uid,
            "scheduled_job_name": "daily-report",
            "repeat_number": number,
            "payload": {"report_type": "daily"},
        }
        for number in (0, 1)
    ]


def test_total_repeats_counts_successes_and_the_end_is_done(any_env: Env) -> None:
    schedule = scheduled_job(any_env, max_successes=2)
    any_env.run_due(5 * MINUTE)
    any_env.failing = True
    any_env.run_due(5 * MINUTE)
    assert (schedule.refresh().success_count, schedule.error_count, schedule.status) == (1, 1, "active")
    any_env.failing = False

    any_env.run_due(5 * MINUTE)

    assert (schedule.refresh().success_count, schedule.status) == (2, "done")
    assert (schedule.status_reason, schedule.next_run_at) == ("total_repeats_reached", None)
    assert any_env.run_due(HOUR) == []


def test_no_total_repeats_are_no_limit(any_env: Env) -> None:
    schedule = scheduled_job(any_env)
    for _ in range(3):
        any_env.run_due(5 * MINUTE)
    assert (statuses(schedule), schedule.refresh().status) == (["succeeded"] * 3, "active")


BACKOFF = {60: (60, 120, 240), 300: (300, 600, 1200)}


@pytest.mark.parametrize("interval", BACKOFF)
def test_a_failing_run_backs_off_and_the_schedule_dies_after_the_last_retry(any_env: Env, interval: int) -> None:
    any_env.failing = True
    schedule = scheduled_job(any_env, interval, retry={"then": "dead"})
    any_env.run_due(interval * SECOND)
    delays = []
    for retry in (1, 2, 3):
        run = newest(schedule)
        assert (run.status, schedule.describe().current_retry) == ("retrying", retry)
        assert run.retry_at is not None
        delays.append(int((run.retry_at - any_env.clock.now()).total_seconds()))
        any_env.clock.set(run.retry_at)
        any_env.run_due(timedelta(0))

    assert tuple(delays) == BACKOFF[interval]
    assert schedule.refresh().status == "dead"
    assert (schedule.error_count, schedule.next_run_at) == (4, None)
    assert schedule.last_error is not None
    assert schedule.last_error.startswith("RuntimeError: as the test wants it")
    assert any_env.run_due(HOUR) == []
    with pytest.raises(ScheduleStateError):
        schedule.resume()


def test_a_success_resets_the_retries(any_env: Env) -> None:
    any_env.failing = True
    schedule = scheduled_job(any_env)
    any_env.run_due(5 * MINUTE)
    any_env.failing = False
    any_env.run_due(5 * MINUTE)

    any_env.run_due(5 * MINUTE)

    assert schedule.describe().current_retry == 0
    assert (schedule.consecutive_failures, schedule.error_count) == (0, 1)
    assert schedule.last_error is not None, "the newest error stays readable"


def test_while_the_previous_execution_runs_the_next_one_is_skipped(any_env: Env) -> None:
    schedule = scheduled_job(any_env)
    any_env.tick(5 * MINUTE)
    any_env.tick(5 * MINUTE)
    assert (statuses(schedule), schedule.refresh().skipped_count) == (["pending"], 1)
    assert schedule.next_run_at == NOON + 15 * MINUTE


def test_pausing_keeps_the_counts_and_resuming_waits_one_interval(any_env: Env) -> None:
    schedule = scheduled_job(any_env, on_resume="from_now")
    any_env.run_due(5 * MINUTE)
    schedule.pause()
    assert (schedule.next_run_at, schedule.run_count) == (None, 1)
    link = f"sched-{schedule.uid}-n1-rc0"
    assert any_env.run_due(7 * MINUTE) == []

    schedule.resume()

    assert schedule.next_run_at == NOON + 17 * MINUTE
    assert f"sched-{schedule.uid}-n{schedule.position}-rc0" != link, "a link from before the pause is stale"
    any_env.run_due(5 * MINUTE)
    assert any_env.run_due(5 * MINUTE)[0]["occurrence_time"] == "2026-01-15T12:22:00Z"


def test_ids_are_deterministic_so_recovery_doubles_nothing(any_env: Env) -> None:
    schedule = scheduled_job(any_env)
    before = set(any_env.armed())
    any_env.scheduler.recover(deep=True)
    assert set(any_env.armed()) == before == {f"sched-{schedule.uid}-n0-rc0"}


def test_recover_arms_what_redis_lost_and_counts_it(any_env: Env) -> None:
    scheduled_job(any_env)
    any_env.create("paused").pause()
    any_env.redis.flushall()

    recovered = any_env.scheduler.recover()

    assert recovered.links == 1
    assert len(any_env.armed()) == 1
    assert any_env.scheduler.recover().repaired == 0


def test_delete_with_purge_is_permanent(any_env: Env) -> None:
    schedule = scheduled_job(any_env)
    schedule.delete(purge=True)
    with pytest.raises(ScheduleNotFoundError):
        any_env.scheduler.newest("daily-report")


def test_a_schedule_has_an_owner_and_is_found_by_it_and_by_its_workflow(any_env: Env) -> None:
    scheduled_job(any_env, owner="user-7", description="The daily report.")
    any_env.create("other")

    found = any_env.scheduler.list(owner="user-7", status="active", workflow="note").items

    assert [(s.schedule_id, s.describe().owner, s.describe().description) for s in found] == [
        ("daily-report", "user-7", "The daily report.")
    ]
