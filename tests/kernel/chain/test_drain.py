"""Overlap in motion: waiting runs drain when the run ahead ends, and runs are cancelled and terminated from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis
from sqlalchemy.engine import Connection

from rqsched import current_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.store.tables import runs, schedules
from tests.support.env import MINUTE, ONCE, Env, all_runs, events, job_id, run_job_id, statuses
from tests.support.narrow import present


def running(env: Env, schedule: ScheduleHandle) -> tuple[RunHandle, Claim]:
    """A run that some process executes."""
    run = env.fire_next(schedule)
    claim = env.claim(run)
    return run.refresh(), claim


def test_a_waiting_run_starts_when_the_run_ahead_ends(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all")
    any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    assert statuses(schedule) == ["pending", "buffered", "buffered"]

    any_env.work()

    assert statuses(schedule) == ["succeeded"] * 3, "each end has put the next one on the queue"
    assert len(any_env.calls) == 3
    assert any_env.state(schedule).buffer_depth == 0


def test_waiting_runs_start_one_at_a_time_first_in_first_out(any_env: Env) -> None:
    order: list[str] = []

    def note() -> list[str]:
        order.append(current_run().instance_id)
        return [run.status for run in all_runs(schedule)]

    any_env.register("note", note)
    schedule = any_env.create(overlap="buffer_all")
    for _ in range(4):
        any_env.fire_next(schedule)

    any_env.work()

    runs = all_runs(schedule)
    assert order == [run.instance_id for run in runs]
    assert [[status in {"pending", "running"} for status in run.result].count(True) for run in runs] == [1] * 4


@pytest.mark.parametrize("policy", ["buffer_one", "buffer_all"])
def test_a_waiting_run_waits_for_the_retries_of_the_one_ahead(env: Env, policy: str) -> None:
    def fail_once() -> None:
        if current_run().attempt == 1:
            raise ValueError("not yet")

    env.register("flaky", fail_once)
    schedule = env.create(workflow="flaky", overlap=policy, retry=RetryPolicy(max_retries=1, base=3 * MINUTE))
    env.run_next(schedule)
    env.fire_next(schedule)
    assert statuses(schedule) == ["retrying", "buffered"]

    env.clock.set(present(all_runs(schedule)[0].retry_at))
    env.dispatch()
    env.work()

    assert statuses(schedule)[0] == "succeeded"
    assert "buffered" not in statuses(schedule)[:2]


@pytest.mark.parametrize("end", ["failure", "cancel", "terminate"])
def test_a_waiting_run_starts_whatever_the_outcome_of_the_run_ahead(any_env: Env, end: str) -> None:
    schedule = any_env.create(overlap="buffer_one", retry=ONCE, workflow="fail")
    first = any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    assert statuses(schedule) == ["pending", "buffered"]

    endings: dict[str, Callable[[], object]] = {
        "failure": any_env.work,
        "cancel": first.cancel,
        "terminate": first.terminate,
    }
    endings[end]()

    ended, drained = statuses(schedule)
    assert ended == {"failure": "failed", "cancel": "cancelled", "terminate": "terminated"}[end]
    assert drained in {"pending", "failed"}


@pytest.fixture(autouse=True)
def _failing(request: pytest.FixtureRequest) -> None:
    """The workflow `fail`."""
    for name in ("env", "any_env"):
        if name in request.fixturenames:
            request.getfixturevalue(name).register("fail", lambda: 1 / 0)


def test_waiting_runs_of_a_paused_schedule_start_after_resume(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all")
    any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    schedule.pause()

    any_env.work()
    assert statuses(schedule) == ["succeeded", "buffered"]
    assert any_env.recover().drained == 0

    schedule.resume()
    any_env.work()
    assert statuses(schedule) == ["succeeded", "succeeded"]


def test_a_deleted_schedules_waiting_runs_are_dropped_with_one_event(env: Env) -> None:
    schedule = env.create(overlap="buffer_all")
    for _ in range(3):
        env.fire_next(schedule)

    schedule.delete()
    env.work()

    assert statuses(schedule) == ["succeeded", "cancelled", "cancelled"]
    (deleted,) = events(schedule, audit.DELETED)
    assert deleted.payload["dropped_buffered"] == 2


def test_a_trigger_waits_behind_an_occurrence(env: Env) -> None:
    schedule = env.create(overlap="buffer_all")
    env.fire_next(schedule)

    result = schedule.trigger()

    assert (result.outcome, result.buffer_depth) == ("buffered", 1)
    env.work()
    assert [(run.kind, run.status) for run in all_runs(schedule)] == [
        ("scheduled", "succeeded"),
        ("manual", "succeeded"),
    ]


def test_a_serial_backfill_runs_one_occurrence_after_another(any_env: Env) -> None:
    schedule = any_env.create(spec="* * * * *")
    any_env.advance(5 * MINUTE)
    start = any_env.clock.now() - 4 * MINUTE

    schedule.backfill(start, any_env.clock.now())
    assert sorted(statuses(schedule)) == ["buffered"] * 3 + ["pending"]
    any_env.work()

    assert statuses(schedule) == ["succeeded"] * 4
    assert any_env.state(schedule).backfill_waiting == 0


OVER = "2026-01-15T12:02:30Z"
"""Two occurrences after the clock starts: a spec that ends here is over then."""


@pytest.mark.parametrize("status", ["active", "paused", "done", "dead"])
def test_reconcile_drains_a_backfill_in_every_status(any_env: Env, status: str) -> None:
    schedule = any_env.create(
        spec={"cron_expressions": ["* * * * *"], **({"end_at": OVER} if status == "done" else {})}
    )
    if status == "dead":
        schedule.update("fail", retry=RetryPolicy(max_retries=0, then="dead"))
    start = any_env.clock.now()
    for _ in range(3):
        any_env.run_next(schedule)
    if status == "paused":
        schedule.pause()
    assert any_env.state(schedule).status == status
    schedule.backfill(start - 3 * MINUTE, start)
    first = all_runs(schedule)[-3]
    assert (first.status, any_env.state(schedule).backfill_waiting) == ("pending", 2)

    lose_drain(any_env, first)

    assert any_env.recover().drained == 1
    assert statuses(schedule)[-3:] == ["succeeded", "pending", "buffered"]
    assert any_env.recover().drained == 0, "the one ahead is unfinished now"


def lose_drain(env: Env, run: RunHandle) -> None:
    """The run has ended without a drain, as after a writer that does not know drains."""

    def work(connection: Connection) -> None:
        connection.execute(sa.update(runs).where(runs.c.uid == run.uid).values(status="succeeded"))
        connection.execute(
            sa.update(schedules).where(schedules.c.uid == run.state.schedule_uid).values(backfill_unfinished=0)
        )

    env.runtime.database.transact(work)
    env.redis.lrem("rq:queue:default", 0, run_job_id(run))


def test_a_cancelled_pending_run_is_taken_off_its_queue(any_env: Env) -> None:
    schedule = any_env.create()
    run = any_env.fire_next(schedule)

    run.cancel()

    assert run.status == "cancelled"
    assert any_env.queued() == []
    assert not any_env.redis.exists(f"rq:job:{run_job_id(run)}")
    any_env.work()
    assert any_env.calls == []


@pytest.mark.parametrize("end", [RunHandle.cancel, RunHandle.terminate], ids=["cancel", "terminate"])
def test_ending_an_ended_run_changes_nothing(env: Env, end: Callable[[RunHandle], RunHandle]) -> None:
    schedule = env.create()
    run = env.run_next(schedule)

    assert end(run).status == "succeeded", "one that has ended already is left as it is"
    other = env.fire_next(schedule)
    first = end(other).status
    assert end(other).status == first
    assert env.state(schedule).error_count == 0


def test_a_cancelled_retrying_run_is_not_retried(env: Env) -> None:
    schedule = env.create(workflow="fail", spec="0 * * * *", retry=RetryPolicy(max_retries=3, base=MINUTE))
    run = env.run_next(schedule, 60 * MINUTE)

    run.cancel()
    env.advance(MINUTE)
    env.dispatch()

    assert run.refresh().status == "cancelled"
    assert env.queued() == []


def test_a_cancelled_waiting_run_leaves_the_buffer(env: Env) -> None:
    schedule = env.create(overlap="buffer_all")
    for _ in range(3):
        env.fire_next(schedule)

    all_runs(schedule)[1].cancel()

    assert env.state(schedule).buffer_depth == 1
    env.work()
    assert statuses(schedule) == ["succeeded", "cancelled", "succeeded"]


@pytest.fixture
def commands(redis: Redis) -> Iterator[Callable[[], list[Any]]]:
    """A function that reads the commands to the worker `somebody` from its pub/sub channel."""
    ear = redis.pubsub(ignore_subscribe_messages=True)
    ear.subscribe("rq:pubsub:somebody")
    ear.get_message(timeout=5)
    yield lambda: [message["data"] for _ in range(20) if (message := ear.get_message(timeout=0.01))]
    ear.close()


def perform_as_somebody(env: Env, run: RunHandle) -> None:
    """RQ has noted that the worker `somebody` performs the run's job."""
    env.redis.hset(f"rq:job:{run_job_id(run)}", mapping={"status": "started", "worker_name": "somebody"})


def test_terminating_a_running_run_tells_rq_to_kill_its_horse(any_env: Env, commands: Callable[[], list[Any]]) -> None:
    run, _ = running(any_env, any_env.create())
    perform_as_somebody(any_env, run)

    run.terminate()

    assert run.status == "terminated"
    (command,) = commands()
    assert b'"command": "stop-job"' in command
    assert run_job_id(run).encode() in command


def test_cancelling_a_running_run_kills_nothing(env: Env, commands: Callable[[], list[Any]]) -> None:
    run, _ = running(env, env.create())
    perform_as_somebody(env, run)

    run.cancel()

    assert run.status == "cancelled"
    assert commands() == []


def test_terminating_a_run_without_a_job_in_redis_still_ends_it(env: Env) -> None:
    run, _ = running(env, env.create())
    env.redis.flushall()

    assert run.terminate().status == "terminated"


@pytest.mark.parametrize(
    ("policy", "status"),
    [("cancel_other", "cancelled"), ("terminate_other", "terminated")],
    ids=["cancel", "terminate"],
)
def test_a_replaced_pending_run_never_starts(any_env: Env, policy: str, status: str) -> None:
    schedule = any_env.create(overlap=policy)
    first = any_env.fire_next(schedule)

    second = any_env.fire_next(schedule)

    assert statuses(schedule) == [status, "pending"]
    assert any_env.queued() == [run_job_id(second)]
    assert claim_run(any_env.runtime, job_id(first.state)) is None


def test_terminate_other_kills_the_old_horse_and_starts_the_new_run(
    env: Env, commands: Callable[[], list[Any]]
) -> None:
    schedule = env.create(overlap="terminate_other")
    run, _ = running(env, schedule)
    perform_as_somebody(env, run)

    env.fire_next(schedule)

    assert statuses(schedule) == ["terminated", "pending"]
    assert b"stop-job" in commands()[0]


def test_cancel_other_stops_the_old_run_at_its_next_checkpoint(env: Env) -> None:
    """The first run executes in this thread; the next occurrence fires in another one meanwhile."""
    steps: list[str] = []

    def work() -> None:
        if len(all_runs(schedule)) > 1:
            return
        env.advance()
        fire = threading.Thread(target=lambda: env.deliver(schedule.refresh()))
        fire.start()
        fire.join()
        steps.append("before")
        current_run().checkpoint()
        steps.append("after")

    env.register("work", work)
    schedule = env.create(workflow="work", overlap="cancel_other")

    env.run_next(schedule)

    assert steps == ["before"]
    assert statuses(schedule) == ["cancelled", "succeeded"]


def test_allow_all_runs_side_by_side(env: Env) -> None:
    schedule = env.create(overlap="allow_all")
    for _ in range(3):
        env.fire_next(schedule)

    assert statuses(schedule) == ["pending"] * 3
    assert len(env.queued()) == 3
