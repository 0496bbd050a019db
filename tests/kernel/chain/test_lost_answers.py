"""Lost answers: a COMMIT was applied without an answer, and the repeated transaction detects that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.decide.audit import TRIGGERED
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.transport.transport import retry_of
from tests.support.env import MINUTE, Env, job_id, link_id, newest, outcomes, run_job_id, statuses
from tests.support.invariants import check_invariants
from tests.support.sql import SilentDatabase


@pytest.fixture(autouse=True)
def _invariants(env: Env) -> Iterator[None]:
    yield
    env.recover()
    check_invariants(env.runtime)


def test_a_schedule_is_created_once(env: Env, silent: SilentDatabase) -> None:
    silent.lose(2)

    schedule = env.create()

    assert [found.uid for found in env.scheduler.list().items] == [schedule.uid]
    assert list(env.armed()) == [link_id(schedule)]


def test_a_trigger_starts_one_run(env: Env, silent: SilentDatabase) -> None:
    schedule = env.create()
    silent.lose()
    told = env.told()

    result = schedule.trigger()

    assert result.outcome == "triggered"
    assert statuses(schedule) == ["pending"]
    assert env.queued() == [run_job_id(newest(schedule))]
    assert told == [TRIGGERED]


def test_a_claim_whose_answer_was_lost_is_recognised_when_repeated(env: Env, silent: SilentDatabase) -> None:
    schedule = env.create()
    run = env.fire_next(schedule)
    silent.lose()

    claim = claim_run(env.runtime, job_id(run.state))

    assert claim is not None
    assert env.run_row(run.uid).token == claim.token


def test_a_fire_whose_answer_was_lost_fires_once_and_redis_follows(env: Env, silent: SilentDatabase) -> None:
    schedule = env.create()
    env.advance()
    silent.lose()

    assert outcomes(env.deliver(schedule)) == ["stale"]

    assert env.queued() == [run_job_id(newest(schedule))]
    assert link_id(schedule.refresh()) in env.armed()
    assert env.state(schedule).n == 1


def test_a_failure_whose_answer_was_lost_is_recorded_once_and_its_retry_armed(env: Env, silent: SilentDatabase) -> None:
    def fail() -> None:
        silent.lose()
        raise ValueError("not today")

    env.register("fail", fail)
    schedule = env.create(workflow="fail", retry=RetryPolicy(max_retries=1, base=5 * MINUTE))

    run = env.run_next(schedule)

    assert (run.status, len(run.attempts)) == ("retrying", 1)
    assert env.state(schedule).error_count == 1
    assert str(retry_of(run.state).id) in env.armed()


def test_a_failure_whose_answer_was_lost_lets_redis_follow_later_changes(env: Env, silent: SilentDatabase) -> None:
    def fail() -> None:
        silent.lose(meanwhile=retry_and_flush)
        raise ValueError("not today")

    def retry_and_flush() -> None:
        env.advance()
        env.deliver(retry_of(newest(schedule).state).id)
        env.redis.flushall()

    env.register("fail", fail)
    schedule = env.create(workflow="fail", retry=RetryPolicy(max_retries=1, base=MINUTE))
    run = env.fire_next(schedule)

    with pytest.raises(ValueError, match="not today"):
        env.execute(run)

    assert (run.refresh().status, run.attempt) == ("pending", 2)
    assert env.queued() == [run_job_id(run)]


def test_a_success_whose_answer_was_lost_starts_the_waiting_run(env: Env, silent: SilentDatabase) -> None:
    def once() -> None:
        if newest(schedule).status == "buffered":
            silent.lose()

    env.register("once", once)
    schedule = env.create(workflow="once", overlap="buffer_one")
    env.fire_next(schedule)
    env.fire_next(schedule)

    env.work()

    assert statuses(schedule) == ["succeeded", "succeeded"], "the second was put on the queue at once"
    assert env.state(schedule).success_count == 2
