"""The Pipelit document, row by row: intervals, repeats that count successes, retries, event data, end states."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched import current_run
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import ScheduleNotFoundError, ScheduleStateError
from tests.support.desk import HOUR, MINUTE, NOON, SECOND, Desk, newest, statuses


def scheduled_job(desk: Desk, interval_seconds: int = 300, **options: Any) -> ScheduleHandle:
    return desk.create("daily-report", timedelta(seconds=interval_seconds), **options)


def test_the_defaults_are_those_of_the_document(any_desk: Desk) -> None:
    described = scheduled_job(any_desk).describe()

    assert described.policies["retry"]["max_retries"] == 3
    assert described.policies["max_successes"] is None, "total_repeats 0: for ever"
    assert described.policies["overlap"] == "skip"
    any_desk.turn(5 * MINUTE)
    assert any_desk.seen[0].deadline_at - any_desk.seen[0].started_at == 600 * SECOND


def test_the_event_data_is_passed_to_the_workflow(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk, kwargs={"report_type": "daily"})
    events: list[dict[str, Any]] = []
    any_desk.register("note", lambda **payload: events.append(current_run().event_data))

    any_desk.turn(5 * MINUTE)
    any_desk.turn(5 * MINUTE)

    assert events == [
        {
            "scheduled_job_id": schedule.uid,
            "scheduled_job_name": "daily-report",
            "repeat_number": number,
            "payload": {"report_type": "daily"},
        }
        for number in (0, 1)
    ]


def test_total_repeats_counts_successes_and_the_end_is_done(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk, total_repeats=2)
    any_desk.turn(5 * MINUTE)
    any_desk.failing = True
    any_desk.turn(5 * MINUTE)
    assert (schedule.refresh().success_count, schedule.error_count, schedule.status) == (1, 1, "active")
    any_desk.failing = False

    any_desk.turn(5 * MINUTE)

    assert (schedule.refresh().success_count, schedule.status) == (2, "done")
    assert (schedule.status_reason, schedule.next_run_at) == ("total_repeats_reached", None)
    assert any_desk.turn(HOUR) == []


def test_zero_total_repeats_are_no_limit(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk, total_repeats=0)
    for _ in range(3):
        any_desk.turn(5 * MINUTE)
    assert (statuses(schedule), schedule.refresh().status) == (["succeeded"] * 3, "active")


BACKOFF = {60: (60, 120, 240), 300: (300, 600, 1200)}


@pytest.mark.parametrize("interval", BACKOFF)
def test_a_failing_run_backs_off_and_the_schedule_dies_after_the_last_retry(any_desk: Desk, interval: int) -> None:
    any_desk.failing = True
    schedule = scheduled_job(any_desk, interval, total_repeats=0)
    any_desk.turn(interval * SECOND)
    delays = []
    for retry in (1, 2, 3):
        run = newest(schedule)
        assert (run.status, schedule.describe().current_retry) == ("retrying", retry)
        assert run.retry_at is not None
        delays.append(int((run.retry_at - any_desk.clock.now()).total_seconds()))
        any_desk.clock.set(run.retry_at)
        any_desk.turn(timedelta(0))

    assert tuple(delays) == BACKOFF[interval]
    assert schedule.refresh().status == "dead"
    assert (schedule.error_count, schedule.next_run_at) == (4, None)
    assert schedule.last_error is not None
    assert schedule.last_error.startswith("RuntimeError: as the test wants it")
    assert any_desk.turn(HOUR) == []
    with pytest.raises(ScheduleStateError):
        schedule.resume()


def test_a_success_resets_the_retries(any_desk: Desk) -> None:
    any_desk.failing = True
    schedule = scheduled_job(any_desk)
    any_desk.turn(5 * MINUTE)
    any_desk.failing = False
    any_desk.turn(5 * MINUTE)

    any_desk.turn(5 * MINUTE)

    assert schedule.describe().current_retry == 0
    assert (schedule.consecutive_failures, schedule.error_count) == (0, 1)
    assert schedule.last_error is not None, "the newest error stays readable"


def test_while_the_previous_execution_runs_the_next_one_is_skipped(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk)
    any_desk.fire(5 * MINUTE)
    any_desk.fire(5 * MINUTE)
    assert (statuses(schedule), schedule.refresh().skipped_count) == (["pending"], 1)
    assert schedule.next_run_at == NOON + 15 * MINUTE


def test_pausing_keeps_the_counts_and_resuming_waits_one_interval(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk, catch_up="from_now")
    any_desk.turn(5 * MINUTE)
    schedule.pause()
    assert (schedule.next_run_at, schedule.run_count) == (None, 1)
    link = f"sched-{schedule.uid}-n1-rc0"
    assert any_desk.turn(7 * MINUTE) == []

    schedule.resume()

    assert schedule.next_run_at == NOON + 17 * MINUTE
    assert f"sched-{schedule.uid}-n{schedule.n}-rc0" != link, "a link from before the pause is stale"
    any_desk.turn(5 * MINUTE)
    assert any_desk.turn(5 * MINUTE)[0]["occurrence_time"] == "2026-01-15T12:22:00Z"


def test_ids_are_deterministic_so_recovery_doubles_nothing(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk)
    before = any_desk.armed()
    any_desk.scheduler.recover(deep=True)
    assert any_desk.armed() == before == {f"sched-{schedule.uid}-n0-rc0"}


def test_recover_arms_what_redis_lost_and_counts_it(any_desk: Desk) -> None:
    scheduled_job(any_desk)
    any_desk.create("paused").pause()
    any_desk.redis.flushall()

    recovered = any_desk.scheduler.recover()

    assert recovered.links == 1
    assert len(any_desk.armed()) == 1
    assert any_desk.scheduler.recover().repaired == 0


def test_delete_with_purge_is_permanent(any_desk: Desk) -> None:
    schedule = scheduled_job(any_desk)
    schedule.delete(purge=True)
    with pytest.raises(ScheduleNotFoundError):
        any_desk.scheduler.newest("daily-report")


def test_a_schedule_has_an_owner_and_is_found_by_it_and_by_its_workflow(any_desk: Desk) -> None:
    scheduled_job(any_desk, owner="user-7", description="The daily report.")
    any_desk.create("other")

    found = any_desk.scheduler.list(owner="user-7", status="active", workflow="note").items

    assert [(s.schedule_id, s.describe().owner, s.describe().description) for s in found] == [
        ("daily-report", "user-7", "The daily report.")
    ]
