"""`around_runs`: every attempt and every target is executed in the application's context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from rqsched import current_run, workflows
from rqsched.workflows import Enter, around_runs
from tests.support.env import Env, run_target

Context = Callable[[str], Enter]


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """A list of events in order. The contexts that the test registers are removed after it."""
    before = list(workflows._around)
    yield []
    workflows._around[:] = before


@pytest.fixture
def context(seen: list[str]) -> Context:
    """A context that notes when it is entered and left."""

    def make(name: str) -> Enter:
        @contextmanager
        def enter() -> Iterator[None]:
            seen.append(f"enter {name}")
            try:
                yield
            finally:
                seen.append(f"leave {name}")

        return enter

    return make


def test_a_run_is_executed_inside_the_contexts_the_first_outermost(env: Env, seen: list[str], context: Context) -> None:
    inner = context("inner")
    for enter in (context("outer"), inner, inner):
        around_runs(enter)

    run = run_target(env, lambda: seen.append(current_run().workflow))

    assert run.status == "succeeded"
    assert seen == ["enter outer", "enter inner", "target", "leave inner", "leave outer"]


def test_an_async_workflow_is_awaited_inside_the_context(env: Env, seen: list[str], context: Context) -> None:
    around_runs(context("app"))

    async def target() -> None:
        seen.append("awaited")

    assert run_target(env, target).status == "succeeded"
    assert seen == ["enter app", "awaited", "leave app"]


def test_a_run_that_fails_leaves_the_context_and_its_traceback_begins_at_the_workflow(
    env: Env, seen: list[str], context: Context
) -> None:
    around_runs(context("app"))

    def target() -> None:
        raise ValueError("as the test wants it")

    run = run_target(env, target)

    assert seen == ["enter app", "leave app"]
    assert run.error is not None
    assert run.error.startswith("ValueError: as the test wants it")
    assert "workflows.py" not in run.error


def test_a_context_that_cannot_be_entered_fails_the_run(env: Env, seen: list[str]) -> None:
    def enter() -> AbstractContextManager[None]:
        raise RuntimeError("no application here")

    around_runs(enter)

    run = run_target(env, lambda: seen.append("executed"))

    assert (run.status, seen) == ("failed", [])
    assert "no application here" in (run.error or "")
