"""Lost runs: found by heartbeats that stand still in three passes, and by nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import RunHandle
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.model import Change, RunStatus
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import claims
from rqsched.kernel.store.tables import runs
from tests.support.damage import repaired, started
from tests.support.env import HOUR, MINUTE, ONCE, SECOND, Env, statuses
from tests.support.narrow import present


def token_of(run: RunHandle) -> str:
    """Return the token with which the run's process signs its heartbeats."""
    return present(run.refresh().state.token)


def test_a_run_without_heartbeats_is_lost_after_three_sightings(any_env: Env) -> None:
    schedule, run = started(any_env)
    seen = []
    for _ in range(5):
        any_env.recover()
        seen.append(run.refresh().status)
        any_env.advance(15 * SECOND)

    assert seen == ["running", "running", "running", "lost", "lost"], "the first pass has nothing to compare with"
    assert "no sign of life" in present(run.error)
    assert any_env.state(schedule).error_count == 1


def test_sightings_closer_than_the_interval_do_not_count(env: Env) -> None:
    _, run = started(env)
    for _ in range(20):
        env.recover()
        env.advance(timedelta(milliseconds=700))

    assert run.refresh().status == "running", "twenty passes, but 14 seconds"


def test_a_run_with_heartbeats_is_never_lost(env: Env) -> None:
    _, run = started(env)
    token = token_of(run)
    for _ in range(8):
        env.runtime.database.transact(lambda c: claims.record_heartbeat(c, run.uid, token))
        env.recover()
        env.advance(15 * SECOND)

    assert run.refresh().status == "running"


def test_a_heartbeat_resets_the_count_of_sightings(any_env: Env) -> None:
    _, run = started(any_env)
    seen = []
    for i in range(8):
        if i == 3:
            any_env.runtime.database.transact(lambda c: claims.record_heartbeat(c, run.uid, token_of(run)))
        any_env.recover()
        seen.append(run.refresh().status)
        any_env.advance(15 * SECOND)

    assert seen == ["running"] * 6 + ["lost"] * 2


def test_a_run_with_a_new_heartbeat_during_the_pass_is_not_lost(env: Env) -> None:
    """Its process was frozen and wakes up after the pass has read it as silent."""
    _, run = started(env, retry=RetryPolicy(max_retries=0, then="dead"))
    _, awake = started(env, schedule_id="other")
    token = token_of(awake)

    def wake_up(change: Change, event: Event) -> None:
        env.runtime.database.transact(lambda c: claims.record_heartbeat(c, awake.uid, token))

    env.runtime.subscribers.append(wake_up)

    for _ in range(4):
        env.recover()
        env.advance(15 * SECOND)

    assert (run.refresh().status, awake.refresh().status) == ("lost", "running")


def test_a_run_that_ends_during_the_pass_keeps_its_end(env: Env) -> None:
    """Its process was frozen and wakes up after the pass has read it as silent, just to record that it succeeded."""
    _, run = started(env, retry=RetryPolicy(max_retries=0, then="dead"))
    _, ending = started(env, schedule_id="other")
    success = AttemptResult(AttemptOutcome.SUCCEEDED)

    def end(change: Change, event: Event) -> None:
        settle_run(env.runtime, ending.uid, success, fence=lambda found: found.status is RunStatus.RUNNING)

    env.runtime.subscribers.append(end)

    for _ in range(4):
        env.recover()
        env.advance(15 * SECOND)

    assert (run.refresh().status, ending.refresh().status) == ("lost", "succeeded")


def test_a_lost_run_with_attempts_left_is_retried(any_env: Env) -> None:
    schedule, run = started(any_env, retry=RetryPolicy(max_retries=1, base=MINUTE))
    for _ in range(4):
        any_env.recover()
        any_env.advance(15 * SECOND)

    assert run.refresh().status == "retrying"
    any_env.clock.set(present(run.retry_at))
    any_env.dispatch()
    any_env.work()
    assert (run.refresh().status, run.attempt) == ("succeeded", 2)
    assert [attempt["outcome"] for attempt in run.attempts] == ["lost", "succeeded"]
    assert statuses(schedule) == ["succeeded"]


def test_a_waiting_run_starts_when_the_run_ahead_is_lost(env: Env) -> None:
    schedule, _ = started(env, overlap="buffer_one")
    schedule.trigger()
    assert statuses(schedule) == ["running", "buffered"]

    for _ in range(4):
        env.recover()
        env.advance(15 * SECOND)

    assert statuses(schedule) == ["lost", "pending"]


def test_flushing_redis_loses_no_run_that_executes(env: Env) -> None:
    """RQ's hash is gone while the horse lives, so its absence proves nothing."""
    schedule, run = started(env)
    for _ in range(6):
        env.runtime.database.transact(lambda c: claims.record_heartbeat(c, run.uid, token_of(run)))
        env.redis.flushall()
        env.recover()
        env.advance(15 * SECOND)

    assert statuses(schedule) == ["running"]
    assert env.queued() == [], "neither lost nor repeated"


def test_an_outage_of_sql_loses_no_run(env: Env) -> None:
    """No process could send a heartbeat or compare one. The first pass afterwards is one sighting, however late."""
    _, run = started(env)
    env.recover()
    env.advance(3 * HOUR)
    env.recover()
    env.recover()

    assert run.refresh().status == "running"
    env.runtime.database.transact(lambda c: claims.record_heartbeat(c, run.uid, token_of(run)))
    for _ in range(3):
        env.advance(15 * SECOND)
        env.recover()
    assert run.refresh().status == "running"


@pytest.mark.parametrize("jump", [5 * HOUR, -5 * HOUR], ids=["forward", "backward"])
def test_a_jump_of_the_clock_loses_no_run(env: Env, jump: timedelta) -> None:
    _, run = started(env)
    env.recover()
    env.advance(jump)

    for _ in range(5):
        env.recover()

    assert run.refresh().status == "running"


def test_a_clock_set_back_does_not_keep_a_dead_run_alive(env: Env) -> None:
    _, run = started(env)
    env.recover()
    env.advance(-5 * HOUR)

    for _ in range(5):
        env.recover()
        env.advance(15 * SECOND)

    assert run.refresh().status == "lost"


def silent_external(env: Env, heartbeat_at: datetime | None) -> RunHandle:
    schedule = env.create(executor="external", workflow="anything", spec=HOUR, retry=ONCE)
    run = env.fire_next(schedule, HOUR)
    values = {"status": "running", "token": "x" * 26, "started_at": env.clock.now(), "heartbeat_at": heartbeat_at}
    fetch = sa.update(runs).where(runs.c.uid == run.uid).values(**values)
    env.runtime.database.transact(lambda connection: connection.execute(fetch))
    return run


@pytest.mark.parametrize("has_heartbeat", [True, False], ids=["silent since a heartbeat", "silent from the start"])
def test_a_silent_external_run_is_lost(any_env: Env, has_heartbeat: bool) -> None:
    run = silent_external(any_env, any_env.clock.now() + HOUR if has_heartbeat else None)
    any_env.recover()
    any_env.advance(timedelta(minutes=9, seconds=59))
    any_env.recover()
    assert run.refresh().status == "running"

    any_env.advance(SECOND)
    assert repaired(any_env)["lost"] == 1

    assert run.refresh().status == "lost"
    assert "no heartbeat" in present(run.error)


def test_an_external_run_is_not_judged_by_the_heartbeats_of_rq_runs(env: Env) -> None:
    run = silent_external(env, env.clock.now() + HOUR)

    for _ in range(6):
        env.recover()
        env.advance(15 * SECOND)

    assert run.refresh().status == "running"
