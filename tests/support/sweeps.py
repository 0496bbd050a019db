"""A workflow that names targets, in a few words; and what each option about targets does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa

from rqsched import current_run
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.fan_out.dispatch import batch_of, fan_out
from rqsched.kernel.store.tables import targets
from rqsched.workflows import FannedOut, make_workflow
from tests.support.env import SECOND, Env, newest


def sweep(env: Env, each: Callable[[str], bool] = bool) -> None:
    """The workflow `note` names two targets from now on."""

    def run() -> FannedOut:
        return FannedOut(targets=fan_out(env.runtime, batch_of(env.runtime, current_run().uid), [["one", "two"]]))

    env.registry.add(replace(make_workflow("note", run), each=each))


def named_targets(env: Env, schedule: ScheduleHandle) -> None:
    env.run_due()
    assert env.calls[-2:] == [(("one",), {}), (("two",), {})]


def target_retry(env: Env, schedule: ScheduleHandle) -> None:
    left = [ValueError("not yet")]

    def each(target: str) -> bool:
        if target == "one" and left:
            raise left.pop()
        return True

    sweep(env, each)
    env.run_due()
    assert newest(schedule).status == "running"
    env.advance(7 * SECOND)
    env.recover()
    env.work()
    assert newest(schedule).target_counts == {"succeeded": 2}
    env.register("note", env._note)


def target_timeout(env: Env, schedule: ScheduleHandle) -> None:
    sweep(env)
    env.run_due()
    found = env.runtime.database.read(lambda c: c.execute(sa.select(targets.c.timeout).distinct()).scalars().all())
    assert found == [33]
    env.register("note", env._note)


def max_parallel(env: Env, schedule: ScheduleHandle) -> None:
    seen: list[list[str]] = []

    def each(target: str) -> bool:
        seen.append(env.queued())
        return True

    sweep(env, each)
    env.run_due()
    assert seen == [[], []], "no other is on the queue"
    assert newest(schedule).target_counts == {"succeeded": 2}
    env.register("note", env._note)
