"""One log line for each attempt that started or ended."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rqsched import RetryPolicy
from rqsched.features.external import chain as external_runs
from rqsched.kernel.chain.settle import lose_run
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.transport.transport import job_id_of
from tests.support.env import MINUTE, ONCE, SECOND, Env, newest
from tests.support.narrow import present


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rqsched.runs")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "rqsched.runs"]


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("action", "schedule", "namespace", "run", "attempt", "workflow", "outcome", "duration", "error")
    found = [vars(one) for one in caplog.records if one.name == "rqsched.runs"]
    return [{name: one[name] for name in names if name in one} for one in found]


def test_a_run_that_succeeds_is_two_lines(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    def take_a_while() -> None:
        env.advance(1.5 * SECOND)

    env.register("slow", take_a_while)

    run = env.run_next(env.create("nightly", workflow="slow", namespace="eu"))

    assert told(caplog) == [
        ("INFO", f"run started: eu/nightly, run {run.uid}, attempt 1 (slow)"),
        ("INFO", f"run succeeded: eu/nightly, run {run.uid}, attempt 1, 1.500 s"),
    ]
    same = {"schedule": "nightly", "namespace": "eu", "run": run.uid, "attempt": 1, "workflow": "slow"}
    assert fields(caplog) == [
        {"action": "run_started", **same},
        {"action": "run_ended", **same, "outcome": "succeeded", "duration": 1.5},
    ]


def test_a_failed_attempt_that_is_tried_again_is_a_warning_and_so_is_the_last(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    env.failing = True
    run = env.run_next(env.create(retry=RetryPolicy(max_retries=1, base=MINUTE)))
    env.advance(2 * MINUTE)
    env.dispatch()
    env.work()

    assert run.refresh().status == "failed"
    ends = [(level, text) for level, text in told(caplog) if "started" not in text]
    error = "RuntimeError: as the test wants it"
    assert ends == [
        ("WARNING", f"run retrying: default/report, run {run.uid}, attempt 1, 0.000 s: {error}"),
        ("WARNING", f"run failed: default/report, run {run.uid}, attempt 2, 0.000 s: {error}"),
    ]
    assert [one["error"] for one in fields(caplog) if "error" in one] == [error, error]


def test_a_run_that_was_lost_is_told_by_whoever_saw_it(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    lost: list[str] = []

    def die() -> None:
        lose_run(env.runtime, job_id_of(newest(schedule).state), "its work horse died")
        lost.append(newest(schedule).status)

    env.register("die", die)
    schedule = env.create(workflow="die", retry=ONCE)
    env.run_next(schedule)

    assert lost == ["lost"]
    assert [text.partition(":")[0] for _, text in told(caplog)] == ["run started", "run lost"], "its own end is fenced"


def test_a_run_that_is_cancelled_before_it_began_ends_without_a_duration(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    run = env.fire_next(env.create())

    run.cancel()

    assert told(caplog) == [("INFO", f"run cancelled: default/report, run {run.uid}, attempt 1")]


def test_a_run_that_a_new_one_replaces_is_told_too(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    schedule = env.create(overlap="cancel_other")
    first = env.fire_next(schedule)

    env.fire_next(schedule)

    assert [text for _, text in told(caplog)] == [f"run cancelled: default/report, run {first.uid}, attempt 1"]


def test_a_run_of_an_external_worker_is_told(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    run = env.fire_next(env.create(executor="external"))
    (claimed,) = external_runs.claim(env.runtime, ["default"], "w1", namespace="default")
    env.advance(SECOND)

    external_runs.finish(env.runtime, claimed.run, AttemptResult(AttemptOutcome.SUCCEEDED))

    assert [text for _, text in told(caplog)] == [
        f"run started: default/report, run {run.uid}, attempt 1 (note)",
        f"run succeeded: default/report, run {run.uid}, attempt 1, 1.000 s",
    ]


def test_what_fires_tells_nothing_of_runs_that_wait(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    env.fire_next(env.create())

    assert told(caplog) == []
    assert present(env.queued())
