"""Retries on request: a run that ended without success gets one more attempt, and obeys everything but max_runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from rq.job import Job
from rq.registry import FailedJobRegistry

from rqsched import CommandContext, current_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.errors import RunNotFoundError, RunStateError
from rqsched.features.retry_on_request.chain import retry_requeued
from rqsched.kernel.chain import execution, settle
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import parse_run_job_id
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.queries import runs as run_queries
from rqsched.run.work_horse import horse_died
from tests.support.damage import started
from tests.support.env import HOUR, MINUTE, ONCE, QUEUE, SECOND, Env, events, newest, run_job_id, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present


def failed_run(env: Env, schedule_id: str = "report", **options: Any) -> tuple[ScheduleHandle, RunHandle]:
    """A schedule whose first run has failed for good; its next one would succeed."""
    schedule = env.create(schedule_id, HOUR, **{"retry": ONCE, **options})
    run = env.fail_next(schedule, HOUR)
    assert run.status == "failed"
    return schedule, run


def requested(schedule: ScheduleHandle) -> list[dict[str, Any]]:
    return [event.payload for event in events(schedule, audit.RUN_RETRY_REQUESTED)]


def test_retried_run_is_the_same_run_with_one_more_attempt(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    context = CommandContext(principal="ada", source="cli")

    retried = run.retry("the mail server is back", context=context)

    assert (retried.status, retried.attempt, retried.number) == ("pending", 2, 1)
    assert any_env.queued() == [run_job_id(retried)]
    assert requested(schedule) == [
        {
            "workflow_instance_id": run.instance_id,
            "workflow_run_id": run.uid,
            "occurrence_time": present(requested(schedule))[0]["occurrence_time"],
            "attempt": 2,
            "outcome": "started",
            "previous_status": "failed",
            "reason": "the mail server is back",
            "command_context": context.to_json(),
        }
    ]
    any_env.work()
    assert run.refresh().status == "succeeded"
    assert [attempt["outcome"] for attempt in run.attempts] == ["failed", "succeeded"]
    state = any_env.state(schedule)
    assert (state.run_count, state.success_count, state.consecutive_failures) == (1, 1, 0)
    check_invariants(any_env.runtime)


def test_retry_is_the_last_attempt_whatever_the_policy_says(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    schedule.update(retry=RetryPolicy(max_retries=5, then="dead"))
    any_env.failing = True
    run.retry()
    any_env.work()
    assert (run.refresh().status, run.attempt) == ("failed", 2)
    state = any_env.state(schedule)
    assert (state.status, state.consecutive_failures, state.error_count) == ("active", 1, 2)
    run.retry()
    assert run.attempt == 3
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("end", [RunHandle.cancel, RunHandle.terminate])
def test_cancelled_and_terminated_runs_are_run_again(env: Env, end: Callable[[RunHandle], RunHandle]) -> None:
    schedule = env.create()
    run = env.fire_next(schedule)
    end(run)
    assert end(run).retry().status == "pending"
    env.work()
    assert run.refresh().status == "succeeded"
    assert env.state(schedule).run_count == 1
    check_invariants(env.runtime)


def test_lost_run_is_run_again(env: Env) -> None:
    schedule = env.create(retry=ONCE)
    run = env.fire_next(schedule)
    job = present(parse_run_job_id(run_job_id(run)))
    claim = present(execution.claim_run(env.runtime, job))
    present(settle.lose_run(env.runtime, job, "gone"))
    assert run.refresh().status == "lost"
    run.retry()
    env.work()
    assert (run.refresh().status, run.attempt) == ("succeeded", claim.run.attempt + 1)


def test_asking_twice_is_asking_once(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    assert run.retry().attempt == run.retry().attempt == 2
    assert len(requested(schedule)) == 1
    any_env.work()
    assert len(any_env.calls) == 2


def test_run_that_has_not_ended_or_succeeded_is_refused_with_what_to_do(env: Env) -> None:
    schedule = env.create(retry=RetryPolicy(base=MINUTE))
    run = env.fire_next(schedule)
    with pytest.raises(RunStateError, match="cancel it first, or wait"):
        run.retry()
    env.failing = True
    env.work()
    with pytest.raises(RunStateError, match=r"tried again by itself at .*cancel it to retry"):
        run.refresh().retry()
    env.failing = False
    env.advance()
    env.dispatch()
    env.work()
    with pytest.raises(RunStateError, match=r"is succeeded\. Trigger the schedule"):
        run.refresh().retry()
    assert requested(schedule) == []


def test_run_of_a_deleted_schedule_is_refused_and_a_purged_one_is_unknown(env: Env) -> None:
    schedule, run = failed_run(env)
    schedule.delete()
    with pytest.raises(RunStateError, match="Its schedule is deleted"):
        run.retry()
    schedule.delete(purge=True)
    with pytest.raises(RunNotFoundError):
        run.retry()


@pytest.mark.parametrize("status", ["paused", "done", "dead"])
def test_run_of_a_schedule_that_does_not_fire_is_retried(env: Env, status: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "paused": {},
        "done": {"max_runs": 1},
        "dead": {"retry": RetryPolicy(max_retries=0, then="dead")},
    }
    schedule, run = failed_run(env, **options[status])
    if status == "paused":
        schedule.pause()
    assert env.state(schedule).status == status
    run.retry()
    env.work()
    assert run.refresh().status == "succeeded"
    assert env.state(schedule).status == status
    check_invariants(env.runtime)


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other"])
def test_retry_waits_for_the_unfinished_run(any_env: Env, overlap: str) -> None:
    schedule, run = failed_run(any_env, overlap=overlap)
    ahead = any_env.fire_next(schedule, HOUR)
    assert run.retry().status == "buffered"
    assert requested(schedule)[0]["blocking_run_id"] == ahead.uid
    assert any_env.queued() == [run_job_id(ahead)]
    check_invariants(any_env.runtime)
    any_env.work()
    assert (ahead.refresh().status, run.refresh().status) == ("succeeded", "succeeded")
    assert [e.payload["outcome"] for e in events(schedule, audit.RUN_RETRY_STARTED)] == ["drained"]
    assert any_env.state(schedule).run_count == 2
    check_invariants(any_env.runtime)


def test_under_allow_all_a_retry_starts_beside_others(env: Env) -> None:
    schedule, run = failed_run(env, overlap="allow_all")
    env.fire_next(schedule, HOUR)
    assert run.retry().status == "pending"


def test_retry_uses_up_no_max_runs(env: Env) -> None:
    schedule, run = failed_run(env, max_runs=2)
    run.retry()
    env.work()
    state = env.state(schedule)
    assert (state.status, state.remaining) == ("active", 1)
    assert env.run_next(schedule, HOUR).status == "succeeded"
    assert env.state(schedule).status == "done"


def test_several_failed_runs_of_a_paused_schedule_start_one_after_another(any_env: Env) -> None:
    schedule, first = failed_run(any_env)
    others = [any_env.fail_next(schedule, HOUR) for _ in range(2)]
    schedule.pause()
    assert [run.retry().status for run in [first, *others]] == ["pending", "buffered", "buffered"]
    any_env.work()
    assert statuses(schedule) == ["succeeded"] * 3
    check_invariants(any_env.runtime)


def test_retry_of_a_paused_schedule_passes_runs_that_wait_for_its_resume(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, overlap="buffer_all", retry=ONCE)
    ahead, waiting = (present(schedule.trigger().run) for _ in range(2))
    failed = present(schedule.trigger(overlap="allow_all").run)
    any_env.failing = True
    with pytest.raises(RuntimeError):
        any_env.execute(failed)
    any_env.failing = False
    assert [run.refresh().status for run in (ahead, waiting, failed)] == ["pending", "buffered", "failed"]
    schedule.pause()
    assert failed.retry().status == "buffered"

    any_env.work()

    assert [run.refresh().status for run in (ahead, waiting, failed)] == ["succeeded", "buffered", "succeeded"]
    schedule.resume()
    any_env.work()
    assert waiting.refresh().status == "succeeded"
    check_invariants(any_env.runtime)


def test_backfilled_run_is_run_again(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, retry=ONCE)
    any_env.advance(3 * HOUR)
    now = any_env.clock.now()
    any_env.failing = True
    schedule.backfill(now - 2 * HOUR, now)
    any_env.work()
    any_env.failing = False
    failed = [run for run in schedule.runs().items if run.status == "failed"]
    assert len(failed) == 2
    assert sorted(run.retry().status for run in failed) == ["buffered", "pending"]
    check_invariants(any_env.runtime)
    any_env.work()
    assert {run.refresh().status for run in failed} == {"succeeded"}
    check_invariants(any_env.runtime)


def failed_jobs(env: Env) -> FailedJobRegistry:
    return FailedJobRegistry(QUEUE, connection=env.redis)


def test_requeue_of_a_failed_run_job_is_a_new_attempt(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    (job,) = failed_jobs(any_env).get_job_ids()
    failed_jobs(any_env).requeue(job)
    any_env.work()
    assert (run.refresh().status, run.attempt) == ("succeeded", 2)
    assert requested(schedule)[0]["reason"] == "requeued in RQ"
    assert requested(schedule)[0]["command_context"] == {"source": "rq"}
    assert failed_jobs(any_env).get_job_ids() == []
    assert len(any_env.calls) == 2
    check_invariants(any_env.runtime)


def test_requeue_while_everything_is_frozen_fails_again_and_is_a_new_attempt_after_the_thaw(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    (job,) = failed_jobs(any_env).get_job_ids()
    any_env.scheduler.freeze("restore", everything=True)

    failed_jobs(any_env).requeue(job)
    any_env.work()

    assert failed_jobs(any_env).get_job_ids() == [job]
    assert (run.refresh().status, len(any_env.calls)) == ("failed", 1)
    any_env.scheduler.thaw(everything=True)
    failed_jobs(any_env).requeue(job)
    any_env.work()
    assert (run.refresh().status, run.attempt) == ("succeeded", 2)
    assert len(requested(schedule)) == 1


def put_again(redis: Redis, job_id: str) -> None:
    """The same job is on its list once more, as a worker that comes back or a broken failover leaves it."""
    redis.rpush(f"rq:queue:{QUEUE}", job_id)


def test_second_delivery_of_a_failed_run_job_runs_nothing(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    put_again(any_env.redis, run_job_id(run))
    any_env.work()
    assert (run.refresh().status, len(any_env.calls)) == ("failed", 1)
    assert requested(schedule) == []


def test_failed_job_without_the_mark_runs_nothing_when_its_time_differs(any_env: Env) -> None:
    schedule, run = failed_run(any_env)
    job = Job.fetch(run_job_id(run), connection=any_env.redis)
    any_env.redis.hdel(job.key, "meta")
    failed_jobs(any_env).requeue(job.id)
    any_env.work()
    assert (run.refresh().status, len(any_env.calls)) == ("failed", 1)
    assert requested(schedule) == []


def test_requeue_of_an_earlier_attempt_runs_nothing(env: Env) -> None:
    schedule = env.create(spec=HOUR, retry=RetryPolicy(max_retries=1, base=MINUTE))
    env.failing = True
    run = env.run_next(schedule, HOUR)
    env.advance()
    env.dispatch()
    env.work()
    assert (run.refresh().status, run.attempt) == ("failed", 2)
    env.failing = False
    first, last = sorted(failed_jobs(env).get_job_ids())
    failed_jobs(env).requeue(first)
    env.work()
    assert (run.refresh().status, len(env.calls)) == ("failed", 2)
    failed_jobs(env).requeue(last)
    env.work()
    assert (run.refresh().status, len(env.calls)) == ("succeeded", 3)


def test_requeue_of_a_job_that_is_not_of_the_last_attempt_is_refused(env: Env) -> None:
    _, run = failed_run(env)
    first = present(parse_run_job_id(run_job_id(run)))
    env.failing = True
    run.retry()
    env.work()
    assert (run.refresh().status, run.attempt) == ("failed", 2)
    assert retry_requeued(env.runtime, first) is None
    assert run.refresh().attempt == 2
    assert present(retry_requeued(env.runtime, present(parse_run_job_id(run_job_id(run))))).attempt == 3


def test_requeue_delivered_twice_is_one_attempt(env: Env) -> None:
    _, run = failed_run(env)
    job = run_job_id(run)
    failed_jobs(env).requeue(job)
    put_again(env.redis, job)
    env.work()
    assert (run.refresh().attempt, len(env.calls)) == (2, 2)


def test_requeue_of_a_run_that_was_retried_and_succeeded_runs_nothing(env: Env) -> None:
    _, run = failed_run(env)
    job = run_job_id(run)
    run.retry()
    env.work()
    failed_jobs(env).requeue(job)
    env.work()
    assert (run.refresh().status, len(env.calls)) == ("succeeded", 2)
    assert retry_requeued(env.runtime, present(parse_run_job_id(job))) is None


def test_job_of_a_killed_work_horse_is_marked_and_can_be_requeued(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, retry=ONCE)
    run = any_env.fire_next(schedule, HOUR)
    job = any_env.job(run_job_id(run))
    present(execution.claim_run(any_env.runtime, present(parse_run_job_id(job.id))))
    any_env.redis.delete(f"rq:queue:{QUEUE}")
    horse_died(any_env.runtime, job)
    failed_jobs(any_env).add(job, ttl=60)
    assert run.refresh().status == "lost"
    failed_jobs(any_env).requeue(job.id)
    any_env.work()
    assert (run.refresh().status, run.attempt, len(any_env.calls)) == ("succeeded", 2, 1)


def test_job_of_a_run_that_reconcile_gave_up_can_be_requeued(any_env: Env) -> None:
    schedule, run = started(any_env, retry=ONCE)
    job = any_env.job(run_job_id(run))
    for _ in range(4):
        any_env.recover()
        any_env.advance(15 * SECOND)
    assert run.refresh().status == "lost"
    any_env.redis.delete(f"rq:queue:{QUEUE}")
    failed_jobs(any_env).add(job, ttl=60)  # RQ's own maintenance finds it abandoned

    failed_jobs(any_env).requeue(job.id)
    any_env.work()

    assert (run.refresh().status, run.attempt, len(any_env.calls)) == ("succeeded", 2, 1)
    assert requested(schedule)[0]["reason"] == "requeued in RQ"


def test_retry_of_a_workflow_that_sees_its_attempt_and_last_error(env: Env) -> None:
    seen: list[tuple[int, str | None]] = []

    def workflow() -> None:
        seen.append((current_run().attempt, current_run().error))
        if len(seen) == 1:
            raise ValueError("first")

    env.register("flaky", workflow)
    schedule = env.create(workflow="flaky", spec=HOUR, retry=ONCE)
    run = env.run_next(schedule, HOUR)
    run.retry()
    env.work()
    assert seen[0] == (1, None)
    assert seen[1][0] == 2
    assert "first" in present(seen[1][1])
    assert newest(schedule).error is None


def test_retry_while_redis_is_away_follows_with_the_next_pass(env: Env) -> None:
    _, run = failed_run(env)
    env.redis.flushall()
    run.retry()
    env.redis.flushall()
    env.advance(timedelta(seconds=10))
    env.recover()
    env.work()
    assert run.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_retried_run_is_no_dead_letter_any_more(env: Env) -> None:
    _, run = failed_run(env, dead_letter=True)
    found = env.runtime.database.read(lambda c: run_queries.find_dead_letter(c, run.uid, namespace="default"))
    assert present(found)[0].uid == run.uid
    run.retry()
    assert env.runtime.database.read(lambda c: run_queries.find_dead_letter(c, run.uid, namespace="default")) is None
