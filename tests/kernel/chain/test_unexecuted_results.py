"""Workflows that return a generator, coroutine or future not yet executed: the run fails and says what to change."""

from __future__ import annotations

import io
import types
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from statemachine import State, StateMachine

from rqsched import RetryPolicy
from rqsched.errors import NotExecutedError
from rqsched.kernel.chain.runtime import using
from rqsched.machines import MachineStates, machine
from rqsched.testing import execute_pending, run_schedule
from tests.support.env import MINUTE, Env, newest, run_target
from tests.support.narrow import present

TWICE = RetryPolicy(max_retries=2, base=MINUTE)


def generate() -> Iterator[int]:
    """The mistake itself, importable by its dotted path."""
    yield 1


async def generate_async() -> AsyncIterator[int]:
    yield 1


async def inner() -> None: ...


async def forgets_to_await() -> Awaitable[None]:
    return inner()


async def returns_generator() -> Iterator[int]:
    return generate()


@types.coroutine
def old_coroutine() -> Generator[None, None, None]:
    yield


class Later:
    def __await__(self) -> Generator[None, None, None]:
        yield


class Report:
    def run(self) -> Iterator[int]:
        yield 1


class Numbers:
    def __call__(self, number: int = 1) -> Iterator[int]:
        yield number


UNEXECUTED: dict[str, tuple[Any, str]] = {
    "a generator": (generate, "a generator"),
    "an async generator": (generate_async, "an async generator"),
    "a coroutine of an async function": (forgets_to_await, "an awaitable"),
    "a generator of an async function": (returns_generator, "a generator"),
    "a coroutine of types.coroutine": (old_coroutine, "a generator"),
    "an object with __await__": (lambda: Later(), "an awaitable"),
    "a class whose run yields": (Report, "a generator"),
    "a partial of a generator function": (partial(generate), "a generator"),
    "an object that yields when it is called": (Numbers(), "a generator"),
    "a generator expression": (lambda: (one for one in [1]), "a generator"),
    "a map": (lambda: map(str, [1]), "a map"),
    "a filter": (lambda: filter(None, [1]), "a filter"),
}
EXECUTED: dict[str, Any] = {
    "iter of a list": lambda: iter([1]),
    "zip": lambda: zip([1], [2], strict=True),
    "enumerate": lambda: enumerate([1]),
    "reversed": lambda: reversed([1]),
    "a file": lambda: io.StringIO("one\ntwo"),
    "an async function": inner,
    "a range": lambda: range(3),
    "a coroutine of a lambda": lambda: inner(),
}


@pytest.mark.parametrize("name", UNEXECUTED)
def test_run_whose_work_was_not_done_fails_without_retries_and_says_what_to_do(env: Env, name: str) -> None:
    target, kind = UNEXECUTED[name]
    env.register("target", target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also that something was never awaited
        run = env.run_next(env.create(workflow="target", retry=TWICE))
    assert (run.status, run.state.attempt) == ("failed", 1)
    assert f"NotExecutedError: the workflow returned {kind}, whose work has not been done: " in present(run.error)


@pytest.mark.parametrize("name", EXECUTED)
def test_other_iterators_are_results(env: Env, name: str) -> None:
    assert run_target(env, EXECUTED[name]).status == "succeeded"


def test_workflow_given_by_its_dotted_path_fails_too(env: Env) -> None:
    run = run_schedule(env.scheduler, env.create(workflow=f"{__name__}.generate", retry=TWICE).schedule_id)
    assert (run.status, run.state.attempt) == ("failed", 1)


def test_generator_names_targets_and_a_target_that_yields_fails_without_retries(env: Env) -> None:
    env.register("handle", lambda target: (one for one in target))
    env.register("which", lambda: (name for name in "ab"))
    schedule = env.create(workflow="handle", targets="which", target_retry=TWICE)
    schedule.trigger()
    execute_pending(env.scheduler)
    run = newest(schedule)
    assert (run.status, run.target_counts) == ("failed", {"failed": 2})
    assert "NotExecutedError" in present(run.error)


def test_workflow_that_is_notified_and_yields_is_given_up_at_once(env: Env) -> None:
    env.register("alert", lambda message: (one for one in message))
    schedule = env.create(retry=RetryPolicy(max_retries=0, then="continue"), on_failure="alert")
    env.fail_next(schedule)
    (delivery,) = schedule.deliveries().items
    assert (delivery.status, delivery.attempt) == ("failed", 1)
    assert "NotExecutedError" in present(delivery.error)


def unawaited(*_: object) -> object:
    return inner()


def load_off(_: object) -> object:
    return SimpleNamespace(state="off")


def save_nothing(*_: object) -> None: ...


def machine_that(env: Env, **made: Any) -> Callable[[str], object]:
    """Return what sends SWITCH to an instance of a machine that is made so."""

    class Lamp(StateMachine):
        off = State(initial=True)
        on = State()
        SWITCH = off.to(on, on="act") | on.to(off)
        schedules = {"SWITCH": None}  # noqa: RUF012 - as users write it

        def act(self) -> object:
            return made.get("act", lambda: None)()

    options = {name: made[name] for name in ("load", "save") if name in made}
    MachineStates(env.scheduler, machine(workflows=env.registry, **options)(Lamp)).put("a", "off")
    return present(env.registry.resolve("machine:Lamp:SWITCH").each)


@pytest.mark.parametrize(
    "made",
    [
        {"act": generate},
        {"load": load_off, "save": unawaited},
        {"load": unawaited, "save": save_nothing},
    ],
    ids=["an action yields", "save is not awaited", "load is not awaited"],
)
def test_machine_whose_code_did_not_run_fails(env: Env, made: dict[str, Any]) -> None:
    send = machine_that(env, **made)
    with using(env.runtime), pytest.raises(NotExecutedError):
        send("a")
