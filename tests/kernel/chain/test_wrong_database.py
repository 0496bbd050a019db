"""A worker or web app whose database does not belong to its Redis is refused with an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rq.job import Job
from rq.registry import FailedJobRegistry

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import WrongDatabaseError
from rqsched.features.fan_out.dispatch import fan_out
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.decide.ids import derived_uid, new_uid
from rqsched.kernel.transport import telemetry
from tests.support.env import MINUTE, SECOND, Env, MakeEnv, link_id, run_job_id, statuses
from tests.support.narrow import present, text

SCHEDULED = "rq:scheduled:default"


@pytest.fixture
def other(make_env: MakeEnv, tmp_path: Path) -> Env:
    """A process with another database over the same Redis, as a worker whose URL was forgotten has it."""
    soon = {"repair_grace": 0.1, "heartbeat_interval": 0.1, "reconcile_interval": 0.2}  # it steps back for so long
    return make_env(database_url=f"sqlite:///{tmp_path / 'other.db'}", **soon)


def failed(env: Env) -> dict[str, str]:
    """The jobs in RQ's registry of failed ones, each with the last line of its error."""
    ids = FailedJobRegistry("default", connection=env.redis).get_job_ids()
    jobs = [Job.fetch(name, connection=env.redis) for name in ids]
    return {job.id: present(present(job.latest_result()).exc_string).strip().splitlines()[-1] for job in jobs}


def move_scheduled(env: Env) -> list[str]:
    """Move the jobs of the queue's scheduled set to its list, as RQ's scheduler does, and return their ids."""
    found: Any = env.redis.zrange(SCHEDULED, 0, -1)
    for name in found:
        env.redis.zrem(SCHEDULED, name)
        env.redis.rpush("rq:queue:default", name)
        env.redis.hset(f"rq:job:{text(name)}", "status", "queued")
    return [text(name) for name in found]


def test_a_run_job_names_its_database_and_a_link_does_not(env: Env) -> None:
    schedule = env.create()
    run = env.fire_next(schedule)

    assert env.job(run_job_id(run)).meta["database"] == env.runtime.ownership.database_id()
    assert not env.redis.hexists(f"rq:job:{link_id(schedule.refresh())}", "meta")


def test_a_target_job_names_its_database(env: Env) -> None:
    uid = dispatch_targets(env, "a")

    assert env.job(f"target-{uid}").meta["database"] == env.runtime.ownership.database_id()


def test_a_worker_with_another_database_puts_a_run_back_once_and_then_fails_it_with_what_to_set(
    env: Env, other: Env
) -> None:
    run = env.fire_next(env.create())
    job = run_job_id(run)

    other.work()
    assert (move_scheduled(env), failed(env)) == ([job], {})

    other.work()
    assert move_scheduled(env) == []
    assert list(failed(env)) == [job]
    assert f"belongs to database {env.runtime.ownership.database_id()}" in failed(env)[job]
    assert "Set RQSCHED_DATABASE_URL of this worker" in failed(env)[job]
    assert run.refresh().status == "pending"


def test_a_run_that_was_put_back_starts_where_a_worker_has_its_database(env: Env, other: Env) -> None:
    run = env.fire_next(env.create())
    other.work()
    move_scheduled(env)

    env.work()

    assert run.refresh().status == "succeeded"
    assert failed(env) == {}


def test_a_run_that_was_refused_is_delivered_again(env: Env, other: Env) -> None:
    run = env.fire_next(env.create())
    other.work()
    move_scheduled(env)
    other.work()
    env.advance()

    assert env.recover().deliveries == 1
    env.work()

    assert run.refresh().status == "succeeded"
    assert run.attempt == 1


def test_a_run_that_was_put_back_where_no_scheduler_of_rq_runs_is_delivered_again(env: Env, other: Env) -> None:
    run = env.fire_next(env.create())
    other.work()
    env.redis.zadd(SCHEDULED, {run_job_id(run): (env.clock.now() + 5 * SECOND).timestamp()})

    env.advance(8 * SECOND)
    assert env.recover().deliveries == 0, "RQ's scheduler may still come"

    env.advance()
    assert env.recover().deliveries == 1
    env.work()
    assert run.refresh().status == "succeeded"


def test_a_run_that_is_delivered_again_is_not_put_back_again_and_one_failed_job_says_so(env: Env, other: Env) -> None:
    """As without RQ's scheduler, which would return postponed jobs: each delivery is a separate job."""
    run = env.fire_next(env.create())
    other.work()
    assert failed(env) == {}
    env.redis.zadd(SCHEDULED, {run_job_id(run): (env.clock.now() + 5 * SECOND).timestamp()})

    for delivery in (2, 3):
        env.advance(MINUTE)
        assert env.recover().deliveries == 1
        other.work()
        [(job, error)] = failed(env).items()
        assert job == f"run-{run.uid}-a1-d{delivery}"
        assert "Set RQSCHED_DATABASE_URL of this worker" in error

    env.advance(MINUTE)
    env.recover()
    env.work()
    assert (run.refresh().status, run.attempt) == ("succeeded", 1)


@pytest.mark.parametrize("kind", ["target", "batch"])
def test_a_job_of_a_fan_out_is_refused_as_a_run_is(make_env: MakeEnv, other: Env, kind: str) -> None:
    env = make_env(target_chunk=1)
    dispatch_targets(env, "a", "b")
    job = next(name for name in env.queued() if name.startswith(kind))
    env.redis.delete("rq:queue:default")
    env.redis.rpush("rq:queue:default", job)

    other.work()
    assert move_scheduled(env) == [job]
    other.work()

    assert list(failed(env)) == [job]
    assert "RQSCHED_DATABASE_URL" in failed(env)[job]


def test_the_owner_is_shown_which_workers_have_another_database(env: Env, other: Env) -> None:
    env.fire_next(env.create())

    other.work()

    (name,) = telemetry.foreign_workers(env.redis, env.runtime.ownership.database_id(), now=env.clock.now())
    assert present(env.job(move_scheduled(env)[0]).worker_name) in name
    env.advance(6 * MINUTE)
    assert telemetry.foreign_workers(env.redis, env.runtime.ownership.database_id(), now=env.clock.now()) == []


def test_a_job_of_the_first_release_names_no_database_and_is_judged_by_the_owner_of_the_queue(
    env: Env, other: Env
) -> None:
    env.recover()
    job = run_job_id(env.fire_next(env.create()))
    env.redis.hdel(f"rq:job:{job}", "meta")

    other.work()
    assert move_scheduled(env) == [job]
    other.work()

    assert "RQSCHED_DATABASE_URL" in failed(env)[job]


def test_a_run_that_its_own_database_does_not_know_is_an_error(env: Env) -> None:
    schedule = env.create()
    run = env.fire_next(schedule)
    job = run_job_id(run)
    env.redis.lpop("rq:queue:default")
    schedule.delete(purge=True)
    env.redis.rpush("rq:queue:default", job)
    env.transport.deliver([run.state], now=env.clock.now())

    env.work()

    assert "its schedule was purged" in failed(env)[job]


def test_a_purge_withdraws_the_jobs_of_runs_that_wait(env: Env) -> None:
    schedule = env.create()
    env.fire_next(schedule)

    schedule.delete(purge=True)

    assert env.queued() == []
    env.work()
    assert failed(env) == {}


def test_a_stale_delivery_of_a_known_run_still_does_nothing(env: Env) -> None:
    run = env.run_next(env.create())
    env.transport.deliver([run.state], now=env.clock.now())

    env.work()

    assert len(env.calls) == 1
    assert failed(env) == {}


START: dict[str, Callable[[ScheduleHandle], object]] = {
    "trigger": lambda schedule: schedule.trigger(),
    "backfill": lambda schedule: schedule.backfill(schedule.state.created_at - 2 * MINUTE, schedule.state.created_at),
    "update": lambda schedule: schedule.update(queue="high"),
    "resume": lambda schedule: schedule.resume(),
    "restart": lambda schedule: schedule.restart(),
}


@pytest.mark.parametrize("operation", START)
def test_what_starts_something_is_refused_where_redis_belongs_to_another_database(
    env: Env, other: Env, operation: str
) -> None:
    schedule = other.create()
    other.redis.flushdb()
    env.recover()
    before = other.state(schedule)

    with pytest.raises(WrongDatabaseError, match="Set RQSCHED_DATABASE_URL to that database"):
        START[operation](schedule)

    assert other.state(schedule) == before
    assert statuses(schedule) == []
    assert other.queued() == []


@pytest.mark.parametrize("operation", ["create", "upsert"])
def test_no_schedule_is_created_where_redis_belongs_to_another_database(env: Env, other: Env, operation: str) -> None:
    env.recover()

    with pytest.raises(WrongDatabaseError):
        getattr(other.scheduler, operation)("report", "note", MINUTE)

    assert other.scheduler.list().items == []
    assert env.armed() == {}


def test_what_stops_something_works_where_redis_belongs_to_another_database(env: Env, other: Env) -> None:
    schedule = other.create()
    other.redis.flushdb()
    env.recover()

    assert schedule.pause().status == "paused"
    assert schedule.delete().status == "deleted"


def dispatch_targets(env: Env, *target_ids: str) -> str:
    """A fan-out by hand, whose first jobs wait; returns the uid of the first target."""
    run_uid, now = new_uid(env.clock.now()), env.clock.now()
    fan_out(env.runtime, Batch(run_uid, "note", now, timeout=60), [list(target_ids)])
    return derived_uid(now, run_uid, target_ids[0])
