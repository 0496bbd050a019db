"""Tasks of a framework: a schedule that is created with its one run, and goes with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched import Once, RunHandle, ScheduleHandle
from rqsched.kernel.chain import create
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.model import TASK
from rqsched.types import Pruned
from tests.support.env import DAY, MINUTE, Env, newest, types
from tests.support.invariants import check_invariants

LATER = timedelta(days=91)


def enqueue(env: Env, name: str = "one", after: timedelta = timedelta(0), **options: Any) -> ScheduleHandle:
    """A task as a framework's backend writes it."""
    spec = Once(env.clock.now() + after)
    definition = define(None, {"managed_by": TASK, **options}, workflow="note", spec=spec)
    request = ScheduleRequest(Named("tasks", name), definition, must_have_future=False, starts_past=True)
    create.create(env.runtime, request)
    return env.scheduler.get(name, namespace="tasks")


def prune(env: Env, **options: Any) -> Pruned:
    return env.scheduler.prune(namespace="tasks", **options)


def ids(env: Env) -> list[str]:
    return sorted(one.schedule_id for one in env.scheduler.iter(namespace="tasks"))


@pytest.mark.parametrize("after", [timedelta(0), -DAY], ids=["now", "yesterday"])
def test_task_whose_time_has_come_is_created_with_its_run(any_env: Env, after: timedelta) -> None:
    task = enqueue(any_env, after=after, args=[7])

    assert (task.status, newest(task).status, types(task)) == ("done", "pending", ["Created", "Triggered", "Completed"])
    assert any_env.armed() == {}
    check_invariants(any_env.runtime)
    any_env.work()
    assert newest(task).status == "succeeded"
    assert any_env.calls == [((7,), {})]
    check_invariants(any_env.runtime)


def test_task_of_later_starts_when_its_time_has_come(any_env: Env) -> None:
    task = enqueue(any_env, after=MINUTE)
    assert (task.status, types(task), any_env.queued()) == ("active", ["Created"], [])

    run = any_env.run_next(task)

    assert (task.refresh().status, run.status) == ("done", "succeeded")
    check_invariants(any_env.runtime)


def test_task_is_tried_again_as_its_options_say(any_env: Env) -> None:
    any_env.failing = True
    task = enqueue(any_env, retry={"max_retries": 1, "base": "1m"})
    any_env.work()
    assert newest(task).status == "retrying"

    any_env.advance(MINUTE)
    any_env.dispatch()
    any_env.work()

    assert (newest(task).status, newest(task).attempt) == ("failed", 2)
    check_invariants(any_env.runtime)


def test_task_that_redis_lost_is_executed_after_a_pass(any_env: Env) -> None:
    task = enqueue(any_env)
    any_env.redis.flushdb()
    any_env.advance(MINUTE)
    any_env.recover()
    any_env.work()
    assert newest(task).status == "succeeded"


def test_task_goes_whole_when_its_retention_is_over(any_env: Env) -> None:
    enqueue(any_env, "old")
    enqueue(any_env, "short", retention="7d")
    enqueue(any_env, "long", retention="120d")
    enqueue(any_env, "kept", retention="1000")
    enqueue(any_env, "deleted").delete()
    any_env.work()
    any_env.advance(DAY * 8)
    enqueue(any_env, "young")

    assert prune(any_env, dry_run=True).tasks == 1
    assert prune(any_env).tasks == 1
    assert ids(any_env) == ["kept", "long", "old", "young"]
    any_env.work()
    any_env.advance(LATER - DAY * 8)

    assert prune(any_env).tasks == 2
    assert ids(any_env) == ["kept", "long", "young"]
    assert prune(any_env, retention="1d").tasks == 3
    assert ids(any_env) == []
    check_invariants(any_env.runtime)


def test_task_that_has_not_ended_stays(any_env: Env) -> None:
    any_env.failing = True
    enqueue(any_env, "pending", retry={"max_retries": 0})
    enqueue(any_env, "later", after=LATER * 2)
    any_env.advance(LATER)

    assert prune(any_env).tasks == 0
    assert ids(any_env) == ["later", "pending"]
    any_env.work()
    ended: RunHandle = newest(any_env.scheduler.get("pending", namespace="tasks"))
    any_env.advance(LATER)
    ended.retry()
    assert prune(any_env).tasks == 0


def test_schedule_of_one_run_that_is_no_task_stays(any_env: Env) -> None:
    any_env.scheduler.create("once", "note", Once(any_env.clock.now() + MINUTE), namespace="tasks")
    any_env.tick()
    any_env.work()
    any_env.advance(LATER)
    assert prune(any_env).tasks == 0
    assert ids(any_env) == ["once"]
