"""Frequent operations build no SQL statement anew. Building one takes longer than the rest of a create."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from rqsched import Declaration
from rqsched.api.schedule_handle import ScheduleHandle
from tests.support.env import HOUR, MINUTE, Env, retry_link_id
from tests.support.sql import built_anew, compiled_anew

Operation = Callable[[], object]
"""The observed operation, after its preparation."""


def create(env: Env, name: str) -> Operation:
    return lambda: env.create(name)


def upsert(spec: timedelta) -> Callable[[Env, str], Operation]:
    def prepare(env: Env, name: str) -> Operation:
        env.create(name, HOUR)
        return lambda: env.scheduler.upsert(name, "note", spec)

    return prepare


def sync(count: int, *before: timedelta, spec: timedelta = MINUTE) -> Callable[[Env, str], Operation]:
    """A sync of so many, which were synchronised `before` with another timing, or the same."""

    def prepare(env: Env, name: str) -> Operation:
        def declare(when: timedelta) -> None:
            ids = [f"{name}-{number}" for number in range(count)]
            env.scheduler.sync(Declaration(one, "note", when, {"args": [one]}) for one in ids)

        for when in before:
            declare(when)
        return lambda: declare(spec)

    return prepare


def change(operate: Callable[[ScheduleHandle], object]) -> Callable[[Env, str], Operation]:
    def prepare(env: Env, name: str) -> Operation:
        schedule = env.create(name)
        return lambda: operate(schedule)

    return prepare


def resume(env: Env, name: str) -> Operation:
    schedule = env.create(name, paused=True)
    return schedule.resume


def trigger_beside_a_run(env: Env, name: str) -> Operation:
    schedule = env.create(name)
    schedule.trigger()
    return schedule.trigger


def fire(count: int, times: int = 1) -> Callable[[Env, str], Operation]:
    def prepare(env: Env, name: str) -> Operation:
        declared = [env.create(f"{name}-{number}") for number in range(count)]
        for _ in range(times - 1):
            env.advance()
            env.deliver(*declared)
        env.advance()
        return lambda: env.deliver(*(one.refresh() for one in declared))

    return prepare


def claim(env: Env, name: str) -> Operation:
    run = env.fire_next(env.create(name))
    return lambda: env.claim(run)


def execute(env: Env, name: str) -> Operation:
    run = env.fire_next(env.create(name))
    return lambda: env.execute(run)


def fail(env: Env, name: str) -> Operation:
    run = env.fire_next(env.create(name, HOUR, retry={"base": "1m"}), HOUR)

    def fail() -> None:
        env.failing = True
        with suppress(RuntimeError):
            env.execute(run)
        env.failing = False

    return fail


def retry(env: Env, name: str) -> Operation:
    schedule = env.create(name, HOUR, retry={"base": "1m"})
    link = retry_link_id(env.fail_next(schedule, HOUR))
    env.advance()
    return lambda: env.deliver(link)


HOT: dict[str, Callable[[Env, str], Operation]] = {
    "a create": create,
    "an upsert that changes nothing": upsert(HOUR),
    "an upsert that changes": upsert(MINUTE),
    "a sync that creates a few": sync(3),
    "a sync that creates many": sync(120),
    "a sync that changes nothing": sync(3, MINUTE),
    "a sync that changes": sync(3, HOUR),
    "an update": change(lambda schedule: schedule.update(queue="high")),
    "a pause": change(lambda schedule: schedule.pause()),
    "a resume": resume,
    "a trigger": change(lambda schedule: schedule.trigger()),
    "a trigger beside a run": trigger_beside_a_run,
    "a fire": fire(1),
    "a fire that skips": fire(1, times=2),
    "fires together": fire(3),
    "a claim": claim,
    "a claim and an end": execute,
    "an attempt that fails": fail,
    "a retry": retry,
}


@pytest.mark.parametrize("prepare", HOT.values(), ids=HOT.keys())
def test_a_hot_operation_builds_no_statement_anew(any_env: Env, prepare: Callable[[Env, str], Operation]) -> None:
    with built_anew(any_env.runtime) as first:
        for number in range(2):
            prepare(any_env, f"report-{number}")()
    operation = prepare(any_env, "report-2")
    with built_anew(any_env.runtime, but=first) as found, compiled_anew(any_env.runtime) as compiled:
        operation()
    assert (list(map(str, found)), compiled) == ([], [])
