"""A process that freezes or thaws dies, or loses an answer, at any step: then everything is frozen, or nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rqsched import Scheduler
from rqsched.kernel.decide.freeze import Freeze
from rqsched.kernel.decide.ids import new_uid
from tests.support.sizes import IS_NIGHTLY
from tests.system.crash.cases import run_in_child
from tests.system.crash.env import CrashEnv
from tests.system.crash.flows import (
    HALF_A_SECOND,
    SECOND,
    START,
    Flow,
    dispatch,
    execute,
    fire_plainly,
    late,
    missed_while_paused,
    owed,
    popped,
    taken_by_rq,
    waiting,
)
from tests.system.crash.steps import FATES, Fate, Steps, tried_at_the_next
from tests.system.crash.workflows import executed


@pytest.fixture
def env(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[CrashEnv]:
    with closing(CrashEnv(database_url, redis_url, tmp_path, START)) as env:
        env.scheduler.recover()
        env.redis.set(env.runtime.transport.interval_key, 1)
        yield env


def all_frozen(env: CrashEnv) -> None:
    """Two occurrences are due and a run waits, and all of it is frozen."""
    waiting(SECOND + HALF_A_SECOND, overlap="allow_all")(env)
    env.scheduler.freeze(everything=True)


def all_frozen_and_owed(env: CrashEnv) -> None:
    """A run has ended, its downstream has not started, and everything is frozen."""
    owed(env)
    env.scheduler.freeze(everything=True)


def thaw_all(env: CrashEnv, **how: Any) -> None:
    env.scheduler.thaw(everything=True, **how)


EVERYTHING = Flow("freeze everything", late(), lambda env: env.scheduler.freeze("restore", everything=True))
FLOWS = (
    EVERYTHING,
    Flow("thaw everything", all_frozen, lambda env: thaw_all(env)),
    Flow(
        "miss and cancel",
        all_frozen,
        lambda env: env.scheduler.thaw(everything=True, missed="none", cancel_pending=True),
    ),
    Flow("thaw everything, what is owed too", all_frozen_and_owed, lambda env: thaw_all(env)),
    Flow(
        "miss what is owed and thaw everything",
        all_frozen_and_owed,
        lambda env: env.scheduler.thaw(everything=True, missed="none"),
    ),
)


def frozen(env: CrashEnv) -> None:
    """The same of a namespace that is frozen."""
    waiting(SECOND + HALF_A_SECOND, overlap="allow_all")(env)
    env.scheduler.freeze()


def frozen_and_owed(env: CrashEnv) -> None:
    """The same for a frozen namespace in which a resume has also fired what a pause missed."""
    missed_while_paused(env)
    env.scheduler.freeze()
    env.scheduler.get("later").resume("once")


FREEZE = Flow("freeze", late(), lambda env: env.scheduler.freeze("it moves"))
OF_NAMESPACE = (
    FREEZE,
    Flow("thaw", frozen, lambda env: env.scheduler.thaw()),
    Flow("fire all and thaw", frozen, lambda env: env.scheduler.thaw(missed="all")),
    Flow("thaw what is owed", frozen_and_owed, lambda env: env.scheduler.thaw()),
    Flow("miss what is owed and thaw", frozen_and_owed, lambda env: env.scheduler.thaw(missed="none")),
    Flow("miss, cancel and thaw", frozen, lambda env: env.scheduler.thaw(missed="none", cancel_pending=True)),
)

BESIDE = (
    Flow("dispatch", late(), dispatch),
    Flow("fire as rq worker does", taken_by_rq, fire_plainly),
    Flow("execute", popped(), execute),
)
"""Flows of another process while everything is frozen or thawed."""
each_database = pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.nightly])]
)


def _case(flow: Flow) -> Any:
    return pytest.param(flow, id=flow.name, marks=[pytest.mark.once] if flow in (EVERYTHING, FREEZE) else [])


def _everything(env: CrashEnv) -> Freeze | None:
    return next((one for one in env.scheduler.frozen() if one.namespace is None), None)


@each_database
@pytest.mark.parametrize("flow", [_case(flow) for flow in FLOWS])
def test_at_each_step_everything_is_frozen_or_it_is_not_and_repeated_it_is_whole(
    flow: Flow, env: CrashEnv, database_kind: str
) -> None:
    del database_kind
    flow.prepare(env)
    before = env.snapshot()
    run_in_child(env, flow, Steps())  # now Redis knows every script
    env.restore(before)
    steps = run_in_child(env, flow, Steps()).seen
    assert len(steps) > 4
    for at, step in enumerate(steps):
        for fate in sorted(set(FATES[step.kind]) - (set() if IS_NIGHTLY else tried_at_the_next(steps, at))):
            name = f"{flow.name}: at step {at} of {len(steps)} ({step}), process {fate.value}"
            env.restore(before)
            ended = run_in_child(env, flow, Steps(at, fate))
            assert ended.error is None, f"{name}: {ended.error}"
            freeze = _everything(env)
            if not ended.has_died:
                assert (freeze is not None) is (flow is EVERYTHING), name
            env.scheduler.recover()
            again = _everything(env)
            # SQL remembers a thaw that died between the two: the pass ends it in Redis, too.
            is_half_thawed = flow is not EVERYTHING and freeze is not None and freeze.kept_in == ("redis",)
            assert (again is None) is (freeze is None or is_half_thawed), f"{name}: after a pass"
            if again is not None:
                assert again.kept_in == ("redis", "sql"), name
                began = [run.started_at for story in env.stories() for run in story.runs]
                env.dispatch_all()
                env.work()
                assert [run.started_at for story in env.stories() for run in story.runs] == began, name
            if flow is EVERYTHING:
                env.scheduler.thaw(everything=True)
            else:
                flow.act(env)
            assert env.scheduler.frozen() == [], name
            env.settle()


@each_database
@pytest.mark.parametrize("flow", [_case(flow) for flow in OF_NAMESPACE])
def test_at_each_step_a_namespace_is_frozen_or_it_is_not_and_repeated_it_is_whole(
    flow: Flow, env: CrashEnv, database_kind: str
) -> None:
    del database_kind
    flow.prepare(env)
    before = env.snapshot()
    run_in_child(env, flow, Steps())  # now Redis knows every script
    env.restore(before)
    steps = run_in_child(env, flow, Steps()).seen
    assert len(steps) > 4
    for at, step in enumerate(steps):
        for fate in sorted(set(FATES[step.kind]) - (set() if IS_NIGHTLY else tried_at_the_next(steps, at))):
            name = f"{flow.name}: at step {at} of {len(steps)} ({step}), process {fate.value}"
            env.restore(before)
            ended = run_in_child(env, flow, Steps(at, fate))
            assert ended.error is None, f"{name}: {ended.error}"
            is_frozen = bool(env.scheduler.frozen())
            if not ended.has_died:
                assert is_frozen is (flow is FREEZE), name
            env.scheduler.recover()
            assert bool(env.scheduler.frozen()) is is_frozen, f"{name}: after a pass"
            assert (env.runtime.transport.read_freeze()[1] is not None) is is_frozen, f"{name}: what Redis tells"
            if is_frozen:
                began = [run.started_at for story in env.stories() for run in story.runs if run.started_at]
                env.dispatch_all()
                env.work()
                assert [run.started_at for story in env.stories() for run in story.runs if run.started_at] == began, (
                    name
                )
            if flow is FREEZE:
                env.scheduler.thaw()
            else:
                flow.act(env)
            assert env.scheduler.frozen() == [], name
            env.settle()


@pytest.mark.postgres
@pytest.mark.parametrize("database_kind", ["postgres"])
@pytest.mark.parametrize("is_set", [True, False], ids=["frozen", "thawed"])
@pytest.mark.parametrize("flow", BESIDE, ids=lambda flow: flow.name)
def test_a_process_dies_or_goes_on_at_each_step_at_which_its_namespace_is_frozen_or_thawed(
    flow: Flow, is_set: bool, env: CrashEnv, database_kind: str
) -> None:
    del database_kind
    nothing_yet = env.snapshot()
    flow.prepare(env)
    run_in_child(env, flow, Steps())  # now Redis knows every script
    env.restore(nothing_yet)
    flow.prepare(env)
    if not is_set:
        env.scheduler.freeze()
    before = env.snapshot()
    steps = run_in_child(env, flow, Steps()).seen
    claims = [at for at, step in enumerate(steps) if step.text.startswith("UPDATE rqsched_runs") and flow in BESIDE[2:]]
    for at, step in enumerate(steps):
        if step.kind.is_read and not IS_NIGHTLY:
            continue
        for fate in (Fate.GOES_ON, Fate.DIES_BEFORE):
            name = f"{flow.name}: at step {at} of {len(steps)} ({step}), process {fate.value}"
            env.restore(before)
            ended = run_in_child(env, flow, Steps(at, fate, meanwhile=lambda: freeze_or_thaw(env, is_set=is_set)))
            assert ended.error is None, f"{name}: {ended.error}"
            if is_set:
                if claims and at <= claims[0]:
                    assert executed(env.log) == [], f"{name}: began after it was frozen"
                env.scheduler.recover()
                began = executed(env.log)
                env.dispatch_all()
                env.work()
                assert executed(env.log) == began, f"{name}: began while it is frozen"
            env.scheduler.thaw()
            env.settle()


def freeze_or_thaw(env: CrashEnv, *, is_set: bool) -> None:
    """Freeze or thaw in another process meanwhile."""
    with closing(Scheduler(settings=env.scheduler.settings, clock=env.clock)) as other:
        if is_set:
            other.freeze()
        else:
            other.thaw()


@each_database
@pytest.mark.parametrize("is_set", [True, False], ids=["set", "released"])
@pytest.mark.parametrize("flow", BESIDE, ids=lambda flow: flow.name)
def test_a_process_dies_or_goes_on_at_each_step_at_which_everything_is_frozen_or_thawed(
    flow: Flow, is_set: bool, env: CrashEnv, database_kind: str
) -> None:
    nothing_yet = env.snapshot()
    flow.prepare(env)
    run_in_child(env, flow, Steps())  # now Redis knows every script
    env.restore(nothing_yet)
    flow.prepare(env)
    if not is_set:
        env.scheduler.freeze(everything=True)
    before = env.snapshot()
    steps = run_in_child(env, flow, Steps()).seen
    claims = [at for at, step in enumerate(steps) if step.text.startswith("UPDATE rqsched_runs") and flow in BESIDE[2:]]
    for at, step in enumerate(steps):
        if step.kind.is_read and not IS_NIGHTLY:
            continue
        for fate in (Fate.GOES_ON, Fate.DIES_BEFORE):
            name = f"{flow.name}: at step {at} of {len(steps)} ({step}), process {fate.value}"
            env.restore(before)
            env.runtime.freezes.look(is_fresh=True)
            ended = run_in_child(env, flow, Steps(at, fate, meanwhile=lambda: change(env, is_set, database_kind)))
            assert ended.error is None, f"{name}: {ended.error}"
            if is_set and env.scheduler.frozen() != []:
                if claims and at <= claims[0] and database_kind == "postgres":
                    assert executed(env.log) == [], f"{name}: began after the freeze was in SQL"
                env.scheduler.recover()
                began = executed(env.log)
                env.dispatch_all()
                env.work()
                assert executed(env.log) == began, f"{name}: began while everything is frozen"
            env.scheduler.thaw(everything=True)
            env.settle()


def change(env: CrashEnv, is_set: bool, database_kind: str) -> None:
    """Freeze or thaw everything as another process does, in Redis alone where SQL may be locked by this one."""
    with closing(Scheduler(settings=env.scheduler.settings, clock=env.clock)) as other:
        gate = other.runtime.freezes
        if not is_set:
            other.thaw(everything=True)
        elif database_kind == "postgres":
            other.freeze(everything=True)
        else:
            gate.put_into_redis(Freeze(new_uid(env.clock.now()), env.clock.now()))
