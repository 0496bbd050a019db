"""Retries: the next attempt, its delay, and the end after the last attempt."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from rqsched import current_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.delays import backoff
from rqsched.kernel.decide.ids import RetryLinkId
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.transport.transport import retry_of
from tests.support.env import HOUR, MINUTE, ONCE, SECOND, Env, events, link_id, newest, outcomes, run_job_id, statuses
from tests.support.narrow import present


def fail() -> None:
    raise ValueError(f"attempt {current_run().attempt} failed")


DIES = RetryPolicy(max_retries=2, base=MINUTE, then="dead")


def failing(env: Env, **options: Any) -> ScheduleHandle:
    """An hourly schedule whose runs fail; its retries wait a minute, then two."""
    env.register("fail", fail)
    retry = options.pop("retry", RetryPolicy(max_retries=2, base=MINUTE))
    return env.create(workflow="fail", spec=HOUR, retry=retry, **options)


def retry_link(run: RunHandle) -> RetryLinkId:
    link = retry_of(run.refresh().state).id
    assert isinstance(link, RetryLinkId)
    return link


def retry(env: Env, run: RunHandle) -> RunHandle:
    """The clock reaches the retry, a dispatcher fires its link and the attempt is executed."""
    env.clock.set(present(run.refresh().retry_at))
    env.dispatch()
    env.work()
    return run.refresh()


def test_a_failed_attempt_waits_for_its_retry_link(any_env: Env) -> None:
    schedule = failing(any_env)

    run = any_env.run_next(schedule, HOUR)

    assert (run.status, run.attempt, run.retry_at) == ("retrying", 1, any_env.clock.now() + MINUTE)
    assert any_env.armed()[str(retry_link(run))] == present(run.retry_at).timestamp()
    after = any_env.state(schedule)
    assert (after.status, after.error_count, after.consecutive_failures) == ("active", 1, 0)
    assert after.last_error == run.error


def test_the_fence_of_an_attempt_is_larger_than_the_one_before_whatever_the_clock_says(any_env: Env) -> None:
    fences: list[int] = []

    def note_and_fail() -> None:
        fences.append(current_run().fence)
        raise ValueError

    any_env.register("note", note_and_fail)
    schedule = any_env.create(workflow="note", spec=HOUR, retry=RetryPolicy(max_retries=3, base=SECOND, factor=1))
    run = any_env.fire_next(schedule, HOUR)
    claimed_at = any_env.clock.now().replace(microsecond=999_998)
    any_env.clock.set(claimed_at)
    any_env.work()
    for _ in range(3):
        any_env.clock.set(present(run.refresh().retry_at))
        any_env.dispatch()
        any_env.clock.set(claimed_at - MINUTE)  # another server answers, and its clock is behind
        any_env.work()

    assert fences[0] == round(claimed_at.timestamp() * 1_000_000)
    assert fences == [fences[0] + place for place in range(4)]


def test_a_retry_is_the_same_run_with_the_next_attempt(any_env: Env) -> None:
    seen: list[tuple[str, int, str | None]] = []

    def flaky() -> str:
        run = current_run()
        seen.append((run.uid, run.attempt, run.error and run.error.splitlines()[0]))
        if run.attempt < 3:
            raise ValueError(f"attempt {run.attempt} failed")
        return "in the end"

    any_env.register("flaky", flaky)
    schedule = any_env.create(workflow="flaky", spec=HOUR, retry=RetryPolicy(max_retries=2, base=MINUTE))
    run = any_env.run_next(schedule, HOUR)

    retry(any_env, run)
    retry(any_env, run)

    assert seen == [
        (run.uid, 1, None),
        (run.uid, 2, "ValueError: attempt 1 failed"),
        (run.uid, 3, "ValueError: attempt 2 failed"),
    ]
    assert (run.status, run.attempt, run.result, run.error) == ("succeeded", 3, "in the end", None)
    assert [attempt["outcome"] for attempt in run.attempts] == ["failed", "failed", "succeeded"]
    assert any_env.state(schedule).run_count == 1, "a retry is no run of its own"


class MailServerError(ConnectionError):
    """The application's own."""


@pytest.mark.parametrize(
    ("raised", "outcomes_seen"),
    [(MailServerError, ["failed", "succeeded"]), (ValueError, ["failed"])],
    ids=["one that retry_on names by a class it derives from", "another one"],
)
def test_only_the_errors_that_retry_on_names_are_tried_again(
    any_env: Env, raised: type[Exception], outcomes_seen: list[str]
) -> None:
    def send() -> None:
        if current_run().attempt == 1:
            raise raised

    any_env.register("send", send)
    policy = RetryPolicy(max_retries=2, base=MINUTE, retry_on=OSError)
    schedule = any_env.create(workflow="send", spec=HOUR, retry=policy)
    run = any_env.run_next(schedule, HOUR)
    if run.status == "retrying":
        retry(any_env, run)
    assert [attempt["outcome"] for attempt in run.refresh().attempts] == outcomes_seen
    told = [event.payload.get("reason") for event in events(schedule, audit.RUN_FAILED)]
    assert told == ([] if "succeeded" in outcomes_seen else ["retry_on does not name it"])


def test_an_early_retry_link_waits(env: Env) -> None:
    run = env.run_next(failing(env), HOUR)
    env.clock.set(present(run.retry_at) - timedelta(microseconds=1))

    (fired,) = env.deliver(retry_link(run))

    assert (fired.outcome, fired.again_at) == ("early", run.retry_at)
    assert run.refresh().status == "retrying"


def test_a_retry_link_delivered_twice_makes_one_attempt(any_env: Env) -> None:
    run = any_env.run_next(failing(any_env), HOUR)
    link = retry_link(run)
    any_env.clock.set(present(run.retry_at))

    assert outcomes(any_env.deliver(link)) == ["fired"]
    assert outcomes(any_env.deliver(link)) == ["stale"]

    assert (run.refresh().status, run.attempt) == ("pending", 2)
    assert any_env.queued() == [run_job_id(run)]


def test_the_retry_link_of_an_earlier_attempt_is_stale(env: Env) -> None:
    run = env.run_next(failing(env), HOUR)
    first = retry_link(run)
    retry(env, run)
    env.clock.set(present(run.retry_at))

    assert outcomes(env.deliver(first)) == ["stale"]

    assert (run.refresh().status, run.attempt) == ("retrying", 2)


@pytest.mark.parametrize("number", [0, 2, 99])
def test_the_retry_link_of_another_run_is_stale(env: Env, number: int) -> None:
    schedule = failing(env)
    run = env.run_next(schedule, HOUR)
    env.clock.set(present(run.retry_at))

    assert outcomes(env.deliver(RetryLinkId(schedule.uid, number, 1))) == ["stale"]

    assert run.refresh().status == "retrying"


def test_a_retry_survives_the_chain_moving_on(env: Env) -> None:
    schedule = failing(env, retry=RetryPolicy(max_retries=1, base=2 * HOUR), overlap="allow_all")
    run = env.run_next(schedule, HOUR)
    env.fire_next(schedule, HOUR)

    env.clock.set(present(run.retry_at))

    assert outcomes(env.deliver(retry_link(run))) == ["fired"]


def test_a_retry_survives_a_pause(any_env: Env) -> None:
    schedule = failing(any_env)
    run = any_env.run_next(schedule, HOUR)
    schedule.pause()

    retry(any_env, run)

    assert run.attempt == 2


def test_a_retry_survives_its_schedule_being_done(env: Env) -> None:
    schedule = failing(env, max_runs=1)
    run = env.run_next(schedule, HOUR)
    assert env.state(schedule).status == "done"

    retry(env, run)

    assert run.attempt == 2


def test_deleting_a_schedule_cancels_its_retry(any_env: Env) -> None:
    schedule = failing(any_env)
    run = any_env.run_next(schedule, HOUR)
    link = retry_link(run)

    schedule.delete()

    assert run.refresh().status == "cancelled"
    any_env.advance()
    assert outcomes(any_env.deliver(link)) == ["stale"]
    assert any_env.queued() == []


def test_a_run_of_a_deleted_schedule_that_fails_is_not_retried(env: Env) -> None:
    schedule = failing(env)
    run = env.fire_next(schedule, HOUR)
    schedule.delete()

    env.work()

    assert run.refresh().status == "failed"


def test_a_retrying_run_is_seen_by_the_overlap_policy(env: Env) -> None:
    schedule = failing(env, retry=RetryPolicy(max_retries=1, base=2 * HOUR))
    run = env.run_next(schedule, HOUR)

    env.advance(HOUR)
    env.deliver(schedule.refresh())

    assert statuses(schedule) == ["retrying"]
    (skipped,) = events(schedule, audit.SKIPPED)
    assert skipped.payload["blocking_run_id"] == run.uid


WAITS = [
    (MINUTE, [60, 120, 240, 480, 600, 600]),
    (5 * MINUTE, [300, 600, 1200, 2400, 3000, 3000]),
    (timedelta(hours=6), [300, 600, 1200, 2400, 3000, 3000]),
    ("0 */6 * * *", [60, 120, 240, 480, 600, 600]),
]


@pytest.mark.parametrize(
    ("spec", "seconds"), WAITS, ids=["60 s", "300 s", "longer than 300 s counts as that", "cron counts as 60 s"]
)
def test_waits_double_from_the_interval_up_to_ten_times(env: Env, spec: Any, seconds: list[int]) -> None:
    env.register("fail", fail)
    schedule = env.create(workflow="fail", spec=spec, retry=RetryPolicy(max_retries=6), overlap="skip")
    run = env.run_next(schedule, present(schedule.next_run_at) - env.clock.now())

    ends = [env.clock.now()]
    waits = []
    while run.status == "retrying":
        waits.append((present(run.retry_at) - ends[-1]).total_seconds())
        retry(env, run)
        ends.append(env.clock.now())

    assert waits == seconds
    assert (run.status, len(run.attempts)) == ("failed", 7)
    assert all(earlier < later for earlier, later in pairwise(ends))


def test_jitter_spreads_retries_evenly_and_the_same_each_time(env: Env) -> None:
    policy = RetryPolicy(max_retries=1, base=MINUTE, jitter=30 * SECOND)
    schedule = failing(env, retry=policy, overlap="allow_all")
    for _ in range(5):
        env.fire_next(schedule, HOUR)
    env.work()

    found = schedule.runs().items
    waits = [present(run.retry_at) - env.clock.now() for run in found]

    assert all(MINUTE <= wait <= MINUTE + 30 * SECOND for wait in waits)
    assert len(set(waits)) == 5
    assert waits == [backoff(policy, 1, interval=HOUR, salt=run.uid) for run in found]


def exhaust(env: Env, schedule: ScheduleHandle) -> RunHandle:
    """A run fails with all its attempts."""
    run = env.run_next(schedule, present(schedule.refresh().state.due_at) - env.clock.now())
    while run.status == "retrying":
        retry(env, run)
    return run


def test_a_schedule_continues_by_default_when_the_attempts_of_a_run_are_used_up(any_env: Env) -> None:
    schedule = failing(any_env)

    assert exhaust(any_env, schedule).status == "failed"

    after = any_env.state(schedule)
    assert (after.status, after.consecutive_failures) == ("active", 1)
    assert link_id(schedule) in any_env.armed()


def test_a_schedule_whose_attempts_are_used_up_dies_where_asked(any_env: Env) -> None:
    schedule = failing(any_env, retry=DIES)

    run = exhaust(any_env, schedule)

    assert (run.status, len(run.attempts)) == ("failed", 3)
    after = any_env.state(schedule)
    assert (after.status, after.status_reason, after.next_run_at) == ("dead", "retries_exhausted", None)
    (died,) = events(schedule, audit.DIED)
    assert died.workflow_run_id == run.uid
    assert died.payload["error"].startswith("ValueError: attempt 3 failed")


def test_the_death_of_a_schedule_is_logged_as_an_error(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    schedule = failing(env, retry=DIES)

    exhaust(env, schedule)

    [record] = [record for record in caplog.records if record.__dict__.get("action") == "schedule_died"]
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("default/report is dead")
    assert record.getMessage().endswith("ValueError: attempt 3 failed")


def test_a_schedule_told_to_continue_fires_the_next_occurrence(any_env: Env) -> None:
    schedule = failing(any_env, retry=RetryPolicy(max_retries=1, base=MINUTE, then="continue"))

    exhaust(any_env, schedule)

    after = any_env.state(schedule)
    assert (after.status, after.consecutive_failures) == ("active", 1)
    assert link_id(schedule) in any_env.armed()


def test_a_schedule_may_die_only_after_several_failed_runs_in_a_row(env: Env) -> None:
    policy = RetryPolicy(max_retries=0, max_consecutive_failures=2)
    schedule = failing(env, retry=policy)

    exhaust(env, schedule)
    assert env.state(schedule).status == "active"
    env.register("fail", lambda: "well")
    exhaust(env, schedule)
    assert env.state(schedule).consecutive_failures == 0
    env.register("fail", fail)
    exhaust(env, schedule)
    assert env.state(schedule).status == "active"
    exhaust(env, schedule)

    assert env.state(schedule).status == "dead"
    assert statuses(schedule) == ["failed", "succeeded", "failed", "failed"]


def test_without_retries_user_code_runs_at_most_once(any_env: Env) -> None:
    schedule = failing(any_env, retry=ONCE)

    run = any_env.run_next(schedule, HOUR)

    assert run.status == "failed"
    assert [link for link in any_env.armed() if "-rc1" in link] == []


def test_a_dead_schedule_restarts_with_counters_at_zero_and_a_new_position(any_env: Env) -> None:
    schedule = failing(any_env, retry=RetryPolicy(max_retries=0, then="dead"))
    exhaust(any_env, schedule)
    dead = any_env.state(schedule)

    schedule.restart()

    after = any_env.state(schedule)
    assert (after.status, after.error_count, after.consecutive_failures, after.run_count) == ("active", 0, 0, 0)
    assert after.n == dead.n + 1
    assert link_id(schedule) in any_env.armed()
    any_env.register("fail", lambda: "repaired")
    assert any_env.run_next(schedule, present(after.due_at) - any_env.clock.now()).status == "succeeded"


def test_a_late_retry_of_a_dead_schedule_still_ends(env: Env) -> None:
    """Under allow_all another run may have killed the schedule while this one waits."""
    schedule = failing(env, overlap="allow_all", retry=RetryPolicy(max_retries=1, base=2 * HOUR, then="dead"))
    run = env.run_next(schedule, HOUR)
    env.advance()
    schedule.trigger()
    env.work()
    other = newest(schedule)
    assert (run.status, other.status) == ("retrying", "retrying")

    retry(env, run)
    assert env.state(schedule).status == "dead"
    retry(env, other)

    assert (run.refresh().status, other.status) == ("failed", "failed")
    assert len(events(schedule, audit.DIED)) == 1
