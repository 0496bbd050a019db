"""Retries: how a failed attempt comes back, how long it waits, and what happens once the attempts are used up."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from rqsched import current_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.core import audit
from rqsched.core.ids import RetryLinkId
from rqsched.core.policy import RetryPolicy
from rqsched.transport.transport import retry_of
from tests.support.narrow import present
from tests.support.rig import MINUTE, SECOND, Rig, events, link_id, newest, outcomes, run_job_id, statuses

HOUR = timedelta(hours=1)


def fail() -> None:
    raise ValueError(f"attempt {current_run().attempt} failed")


DIES = RetryPolicy(max_retries=2, base=MINUTE, then="dead")


def failing(rig: Rig, **options: Any) -> ScheduleHandle:
    """An hourly schedule whose runs fail; its retries wait a minute, then two."""
    rig.register("fail", fail)
    retry = options.pop("retry", RetryPolicy(max_retries=2, base=MINUTE))
    return rig.create(runs="fail", spec=HOUR, retry=retry, **options)


def retry_link(run: RunHandle) -> RetryLinkId:
    link = retry_of(run.refresh().state).id
    assert isinstance(link, RetryLinkId)
    return link


def retry(rig: Rig, run: RunHandle) -> RunHandle:
    """The clock reaches the retry, a dispatcher fires its link and the attempt is executed."""
    rig.clock.set(present(run.refresh().retry_at))
    rig.dispatch()
    rig.work()
    return run.refresh()


def test_a_failed_attempt_waits_for_its_retry_link(any_rig: Rig) -> None:
    schedule = failing(any_rig)

    run = any_rig.turn(schedule, HOUR)

    assert (run.status, run.attempt, run.retry_at) == ("retrying", 1, any_rig.clock.now() + MINUTE)
    assert any_rig.armed()[str(retry_link(run))] == present(run.retry_at).timestamp()
    after = any_rig.state(schedule)
    assert (after.status, after.error_count, after.consecutive_failures) == ("active", 1, 0)
    assert after.last_error == run.error


def test_a_retry_is_the_same_run_with_the_next_attempt(any_rig: Rig) -> None:
    seen: list[tuple[str, int, str | None]] = []

    def flaky() -> str:
        run = current_run()
        seen.append((run.uid, run.attempt, run.error and run.error.splitlines()[0]))
        if run.attempt < 3:
            raise ValueError(f"attempt {run.attempt} failed")
        return "in the end"

    any_rig.register("flaky", flaky)
    schedule = any_rig.create(runs="flaky", spec=HOUR, retry=RetryPolicy(max_retries=2, base=MINUTE))
    run = any_rig.turn(schedule, HOUR)

    retry(any_rig, run)
    retry(any_rig, run)

    assert seen == [
        (run.uid, 1, None),
        (run.uid, 2, "ValueError: attempt 1 failed"),
        (run.uid, 3, "ValueError: attempt 2 failed"),
    ]
    assert (run.status, run.attempt, run.result, run.error) == ("succeeded", 3, "in the end", None)
    assert [attempt["outcome"] for attempt in run.attempts] == ["failed", "failed", "succeeded"]
    assert any_rig.state(schedule).run_count == 1, "a retry is no run of its own"


def test_an_early_retry_link_waits(rig: Rig) -> None:
    run = rig.turn(failing(rig), HOUR)
    rig.clock.set(present(run.retry_at) - timedelta(microseconds=1))

    (fired,) = rig.deliver(retry_link(run))

    assert (fired.outcome, fired.again_at) == ("early", run.retry_at)
    assert run.refresh().status == "retrying"


def test_a_retry_link_delivered_twice_makes_one_attempt(any_rig: Rig) -> None:
    run = any_rig.turn(failing(any_rig), HOUR)
    link = retry_link(run)
    any_rig.clock.set(present(run.retry_at))

    assert outcomes(any_rig.deliver(link)) == ["fired"]
    assert outcomes(any_rig.deliver(link)) == ["stale"]

    assert (run.refresh().status, run.attempt) == ("pending", 2)
    assert any_rig.queued() == [run_job_id(run)]


def test_the_retry_link_of_an_earlier_attempt_is_stale(rig: Rig) -> None:
    run = rig.turn(failing(rig), HOUR)
    first = retry_link(run)
    retry(rig, run)
    rig.clock.set(present(run.retry_at))

    assert outcomes(rig.deliver(first)) == ["stale"]

    assert (run.refresh().status, run.attempt) == ("retrying", 2)


@pytest.mark.parametrize("number", [0, 2, 99])
def test_the_retry_link_of_another_run_is_stale(rig: Rig, number: int) -> None:
    schedule = failing(rig)
    run = rig.turn(schedule, HOUR)
    rig.clock.set(present(run.retry_at))

    assert outcomes(rig.deliver(RetryLinkId(schedule.uid, number, 1))) == ["stale"]

    assert run.refresh().status == "retrying"


def test_a_retry_survives_the_chain_moving_on(rig: Rig) -> None:
    schedule = failing(rig, retry=RetryPolicy(max_retries=1, base=2 * HOUR), overlap="allow_all")
    run = rig.turn(schedule, HOUR)
    rig.occur(schedule, HOUR)

    rig.clock.set(present(run.retry_at))

    assert outcomes(rig.deliver(retry_link(run))) == ["fired"]


def test_a_retry_survives_a_pause(any_rig: Rig) -> None:
    schedule = failing(any_rig)
    run = any_rig.turn(schedule, HOUR)
    schedule.pause()

    retry(any_rig, run)

    assert run.attempt == 2


def test_a_retry_survives_its_schedule_being_done(rig: Rig) -> None:
    schedule = failing(rig, max_runs=1)
    run = rig.turn(schedule, HOUR)
    assert rig.state(schedule).status == "done"

    retry(rig, run)

    assert run.attempt == 2


def test_deleting_a_schedule_cancels_its_retry(any_rig: Rig) -> None:
    schedule = failing(any_rig)
    run = any_rig.turn(schedule, HOUR)
    link = retry_link(run)

    schedule.delete()

    assert run.refresh().status == "cancelled"
    any_rig.advance()
    assert outcomes(any_rig.deliver(link)) == ["stale"]
    assert any_rig.queued() == []


def test_a_run_of_a_deleted_schedule_that_fails_is_not_retried(rig: Rig) -> None:
    schedule = failing(rig)
    run = rig.occur(schedule, HOUR)
    schedule.delete()

    rig.work()

    assert run.refresh().status == "failed"


def test_a_retrying_run_is_seen_by_the_overlap_policy(rig: Rig) -> None:
    schedule = failing(rig, retry=RetryPolicy(max_retries=1, base=2 * HOUR))
    run = rig.turn(schedule, HOUR)

    rig.advance(HOUR)
    rig.fire(schedule.refresh())

    assert statuses(schedule) == ["retrying"]
    (skipped,) = events(schedule, audit.SKIPPED)
    assert skipped.payload["blocking_run_id"] == run.uid


WAITS = [
    (MINUTE, [60, 120, 240, 480, 600, 600]),
    (5 * MINUTE, [300, 600, 1200, 2400, 3000, 3000]),
    (timedelta(hours=6), [3600, 7200, 14400, 28800, 36000, 36000]),
    ("0 */6 * * *", [60, 120, 240, 480, 600, 600]),
]


@pytest.mark.parametrize(
    ("spec", "seconds"), WAITS, ids=["60 s", "300 s", "longer than an hour counts as one", "cron counts as 60 s"]
)
def test_waits_double_from_the_interval_up_to_ten_times(rig: Rig, spec: Any, seconds: list[int]) -> None:
    rig.register("fail", fail)
    schedule = rig.create(runs="fail", spec=spec, retry=RetryPolicy(max_retries=6), overlap="skip")
    run = rig.turn(schedule, present(schedule.next_run_at) - rig.clock.now())

    ends = [rig.clock.now()]
    waits = []
    while run.status == "retrying":
        waits.append((present(run.retry_at) - ends[-1]).total_seconds())
        retry(rig, run)
        ends.append(rig.clock.now())

    assert waits == seconds
    assert (run.status, len(run.attempts)) == ("failed", 7)
    assert all(earlier < later for earlier, later in pairwise(ends))


def test_jitter_spreads_retries_evenly_and_the_same_each_time(rig: Rig) -> None:
    policy = RetryPolicy(max_retries=1, base=MINUTE, jitter=30 * SECOND)
    schedule = failing(rig, retry=policy, overlap="allow_all")
    for _ in range(5):
        rig.occur(schedule, HOUR)
    rig.work()

    found = schedule.runs().items
    waits = [present(run.retry_at) - rig.clock.now() for run in found]

    assert all(MINUTE <= wait <= MINUTE + 30 * SECOND for wait in waits)
    assert len(set(waits)) == 5
    assert waits == [policy.delay(1, interval=HOUR, salt=run.uid) for run in found]


def exhaust(rig: Rig, schedule: ScheduleHandle) -> RunHandle:
    """A run fails with all its attempts."""
    run = rig.turn(schedule, present(schedule.refresh().state.due_at) - rig.clock.now())
    while run.status == "retrying":
        retry(rig, run)
    return run


def test_a_schedule_continues_by_default_when_the_attempts_of_a_run_are_used_up(any_rig: Rig) -> None:
    schedule = failing(any_rig)

    assert exhaust(any_rig, schedule).status == "failed"

    after = any_rig.state(schedule)
    assert (after.status, after.consecutive_failures) == ("active", 1)
    assert link_id(schedule) in any_rig.armed()


def test_a_schedule_whose_attempts_are_used_up_dies_where_asked(any_rig: Rig) -> None:
    schedule = failing(any_rig, retry=DIES)

    run = exhaust(any_rig, schedule)

    assert (run.status, len(run.attempts)) == ("failed", 3)
    after = any_rig.state(schedule)
    assert (after.status, after.status_reason, after.next_run_at) == ("dead", "retries_exhausted", None)
    (died,) = events(schedule, audit.DIED)
    assert died.workflow_run_id == run.uid
    assert died.payload["error"].startswith("ValueError: attempt 3 failed")


def test_the_death_of_a_schedule_is_logged_as_an_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    schedule = failing(rig, retry=DIES)

    exhaust(rig, schedule)

    [record] = [record for record in caplog.records if record.__dict__.get("action") == "schedule_died"]
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("default/report is dead")
    assert record.getMessage().endswith("ValueError: attempt 3 failed")


def test_a_schedule_told_to_continue_fires_the_next_occurrence(any_rig: Rig) -> None:
    schedule = failing(any_rig, retry=RetryPolicy(max_retries=1, base=MINUTE, then="continue"))

    exhaust(any_rig, schedule)

    after = any_rig.state(schedule)
    assert (after.status, after.consecutive_failures) == ("active", 1)
    assert link_id(schedule) in any_rig.armed()


def test_a_schedule_may_die_only_after_several_failed_runs_in_a_row(rig: Rig) -> None:
    policy = RetryPolicy(max_retries=0, max_consecutive_failures=2)
    schedule = failing(rig, retry=policy)

    exhaust(rig, schedule)
    assert rig.state(schedule).status == "active"
    rig.register("fail", lambda: "well")
    exhaust(rig, schedule)
    assert rig.state(schedule).consecutive_failures == 0
    rig.register("fail", fail)
    exhaust(rig, schedule)
    assert rig.state(schedule).status == "active"
    exhaust(rig, schedule)

    assert rig.state(schedule).status == "dead"
    assert statuses(schedule) == ["failed", "succeeded", "failed", "failed"]


def test_without_retries_user_code_runs_at_most_once(any_rig: Rig) -> None:
    schedule = failing(any_rig, retry=RetryPolicy(max_retries=0, then="continue"))

    run = any_rig.turn(schedule, HOUR)

    assert run.status == "failed"
    assert [link for link in any_rig.armed() if "-rc1" in link] == []


def test_a_dead_schedule_restarts_with_counters_at_zero_and_a_new_position(any_rig: Rig) -> None:
    schedule = failing(any_rig, retry=RetryPolicy(max_retries=0, then="dead"))
    exhaust(any_rig, schedule)
    dead = any_rig.state(schedule)

    schedule.restart()

    after = any_rig.state(schedule)
    assert (after.status, after.error_count, after.consecutive_failures, after.run_count) == ("active", 0, 0, 0)
    assert after.n == dead.n + 1
    assert link_id(schedule) in any_rig.armed()
    any_rig.register("fail", lambda: "repaired")
    assert any_rig.turn(schedule, present(after.due_at) - any_rig.clock.now()).status == "succeeded"


def test_a_late_retry_of_a_dead_schedule_still_ends(rig: Rig) -> None:
    """Under allow_all another run may have killed the schedule while this one waits."""
    schedule = failing(rig, overlap="allow_all", retry=RetryPolicy(max_retries=1, base=2 * HOUR, then="dead"))
    run = rig.turn(schedule, HOUR)
    rig.advance()
    schedule.trigger()
    rig.work()
    other = newest(schedule)
    assert (run.status, other.status) == ("retrying", "retrying")

    retry(rig, run)
    assert rig.state(schedule).status == "dead"
    retry(rig, other)

    assert (run.refresh().status, other.status) == ("failed", "failed")
    assert len(events(schedule, audit.DIED)) == 1
