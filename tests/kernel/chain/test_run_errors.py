"""Failed attempts: the stored part of an error, and timeouts."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rq.job import JobStatus

import rqsched
from rqsched import current_run
from rqsched.errors import ScheduleNotFoundError
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.settle_decision import MAX_ERROR
from tests.support.env import ONCE, Env, events, run_job_id, run_target
from tests.support.narrow import present

OURS = str(Path(rqsched.__file__).parent)


def boom() -> None:
    raise ValueError("the invoice has no number")


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    else:
        boom()


def chained() -> None:
    try:
        boom()
    except ValueError as error:
        raise RuntimeError("the batch failed") from error


async def aboom() -> None:
    await asyncio.sleep(0)
    boom()


@pytest.mark.parametrize("target", [boom, chained, aboom], ids=["function", "chained", "async def"])
def test_an_error_names_the_exception_first_and_shows_only_the_workflows_own_frames(
    any_env: Env, target: Callable[..., Any]
) -> None:
    run = run_target(any_env, target)

    assert run.status == "failed"
    error = present(run.error)
    first, *rest = error.splitlines()
    assert first in {"ValueError: the invoice has no number", "RuntimeError: the batch failed"}
    assert error.endswith(first)
    assert "the invoice has no number" in error
    assert f"in {target.__name__}" in error
    assert "in boom" in error
    ours = [line for line in rest if OURS in line or "/asyncio/" in line]
    assert ours == [], "our own frames say nothing to the owner of a workflow"


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["NUL", "lone surrogate"])
def test_an_error_with_characters_no_database_stores_is_recorded_escaped(any_env: Env, text: str) -> None:
    def hostile() -> None:
        raise ValueError(text)

    run = run_target(any_env, hostile)

    assert run.status == "failed"
    escaped = {"a\0b": "ValueError: a\\x00b", "a\ud800b": "ValueError: a\\ud800b"}
    assert present(run.error).splitlines()[0] == escaped[text]


def test_a_long_traceback_keeps_the_exception_and_where_it_was_raised(env: Env) -> None:
    def from_far() -> None:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 5_000))
        alternately(400)

    def alternately(depth: int) -> None:
        # two functions in turn: Python folds repeated frames of one
        (deep_one if depth % 2 else deep_two)(depth - 1)

    def deep_one(depth: int) -> None:
        alternately(depth) if depth else boom()

    def deep_two(depth: int) -> None:
        alternately(depth) if depth else boom()

    error = present(run_target(env, from_far).error)

    assert MAX_ERROR - 100 < len(error) < MAX_ERROR + 100
    assert error.startswith("ValueError: the invoice has no number\n")
    assert "[cut]" in error
    last_frame = error[error.rindex("File ") :]
    assert "in boom" in last_frame
    assert last_frame.endswith("ValueError: the invoice has no number")


def test_a_huge_message_keeps_its_type_and_its_end(env: Env) -> None:
    def complain() -> None:
        raise OSError("begin " + "x" * 100_000 + " end")

    error = present(run_target(env, complain).error)

    assert len(error) < MAX_ERROR + 100
    assert error.startswith("OSError: begin")
    assert error.endswith("end")


def test_each_attempt_keeps_a_short_form_of_its_error(env: Env) -> None:
    run = run_target(env, lambda: deep(30))

    (attempt,) = run.attempts
    assert len(attempt["error"]) < 700
    assert attempt["error"].startswith("ValueError: the invoice has no number")
    assert "in boom" in attempt["error"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "failed")


def test_an_error_of_our_own_api_inside_a_workflow_keeps_the_workflows_frames(env: Env) -> None:
    def look_up() -> None:
        env.scheduler.get("nothing-of-this-name")

    error = present(run_target(env, look_up).error)

    assert error.startswith(f"{ScheduleNotFoundError.__module__}.ScheduleNotFoundError: no schedule")
    assert "in look_up" in error


def test_wrong_arguments_are_a_failed_attempt(env: Env) -> None:
    run = run_target(env, lambda region: region)

    assert run.status == "failed"
    assert "missing 1 required positional argument: 'region'" in present(run.error)


def test_a_workflow_that_vanished_in_a_deploy_is_waited_for_and_is_no_failed_attempt(any_env: Env) -> None:
    schedule = any_env.create(retry=ONCE)
    any_env.registry.remove("note")

    run = any_env.run_next(schedule)

    assert (run.status, run.is_blocked) == ("pending", True)
    assert "no workflow named 'note' is registered" in present(run.blocked_reason)
    any_env.register("note", lambda: "back")
    any_env.advance()
    any_env.dispatch()
    any_env.work()
    assert (run.refresh().status, run.result, run.attempt) == ("succeeded", "back", 1)


def leave() -> None:
    raise SystemExit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


class Surprise(BaseException):
    """Not even an Exception."""


def surprise() -> None:
    raise Surprise("out of nowhere")


@pytest.mark.parametrize(
    ("target", "error"),
    [(leave, "SystemExit: 3"), (interrupt, "KeyboardInterrupt"), (surprise, "Surprise: out of nowhere")],
    ids=["SystemExit", "KeyboardInterrupt", "BaseException"],
)
def test_any_exception_in_a_workflow_ends_its_run(env: Env, target: Callable[[], None], error: str) -> None:
    run = run_target(env, target)

    assert run.status == "failed"
    assert error in present(run.error).splitlines()[0]


def test_a_failed_attempt_is_a_failed_job_for_rq_too(env: Env) -> None:
    run = run_target(env, boom)

    job = env.job(run_job_id(run))
    assert job.get_status() is JobStatus.FAILED
    assert "the invoice has no number" in str(present(job.latest_result()).exc_string)


def hang() -> None:
    time.sleep(60)  # the test expects this to be cut short


async def ahang() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("target", [hang, ahang], ids=["function", "async def"])
def test_a_timeout_is_recorded_as_one(env: Env, target: Callable[..., Any]) -> None:
    run = run_target(env, target, timeout=1)

    assert run.status == "failed"
    assert present(run.error).startswith("timeout: Task exceeded maximum timeout value (1 seconds)")
    assert env.state(env.scheduler.get("report")).last_error == run.error


def test_a_timeout_names_the_line_that_hung(env: Env) -> None:
    run = run_target(env, hang, timeout=1)

    assert "in hang" in present(run.error)


@pytest.mark.parametrize(
    ("schedule", "workflow", "seconds"),
    [(30, 60, 30), (None, 60, 60), (None, None, 600)],
    ids=["the schedule's", "the workflow's", "the settings'"],
)
def test_a_runs_timeout_is_its_own_before_the_defaults(
    env: Env, schedule: int | None, workflow: int | None, seconds: int
) -> None:
    spans: list[timedelta] = []

    def look() -> None:
        spans.append(current_run().deadline_at - current_run().started_at)

    env.register("look", look, timeout=workflow)

    env.run_next(env.create(workflow="look", timeout=schedule))

    assert spans == [timedelta(seconds=seconds)]


def test_no_alarm_is_left_behind_by_a_run(env: Env) -> None:
    run_target(env, lambda: None, timeout=30)

    assert signal.alarm(0) == 0


def test_no_alarm_ticks_while_the_end_is_recorded(env: Env) -> None:
    """The timeout bounds the attempt alone; recording its end may take as long as an outage of SQL."""
    ticking: list[float] = []
    env.scheduler.on("*", lambda _: ticking.append(signal.getitimer(signal.ITIMER_REAL)[0]))

    run = run_target(env, lambda: signal.getitimer(signal.ITIMER_REAL)[0], timeout=30, max_successes=1)

    assert 0 < run.result <= 30
    assert events(env.scheduler.get("report"), audit.COMPLETED), "somebody was told while the end was recorded"
    assert ticking[-1] == 0
