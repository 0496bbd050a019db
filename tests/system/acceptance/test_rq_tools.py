"""RQ's own tools and features around our runs, with real workers: what they show, and what a workflow may use."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job, JobStatus

from rqsched import Every
from rqsched.api.schedule_handle import RunHandle
from tests.support.env import ONCE, run_job_id
from tests.support.processes import BIN, Process, wait_until
from tests.system.acceptance import rq_chores
from tests.system.acceptance.chores import TOLD
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
SOON = 60.0
KINDS = {"ours": ["-w", "rqsched.rq.Worker"], "rqs": [], "simple": ["-w", "rq.SimpleWorker"]}
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())


@pytest.fixture
def told(live: LiveEnv) -> Path:
    """The file that the application's own jobs, handlers and classes write to."""
    path = live.folder / "told"
    live.environment[TOLD] = str(path)
    live.environment["RQSCHED_IMPORTS"] += ",tests.system.acceptance.rq_chores"
    return path


def lines(told: Path) -> list[str]:
    return sorted(told.read_text().splitlines()) if told.exists() else []


def wait_for_lines(told: Path, *expected: str) -> None:
    wait_until(lambda: lines(told) == sorted(expected), timeout=SOON, what=f"{expected} in {lines(told)}")


def start_rq(live: LiveEnv, *options: str) -> Process:
    url = live.environment["RQSCHED_REDIS_URL"]
    return live.start([BIN / "rq", "worker", "--url", url, *options, "default"])


def trigger(live: LiveEnv, workflow: str, **kwargs: Any) -> RunHandle:
    kwargs = {"log": str(live.log), **kwargs}
    run = live.scheduler.create("nightly", workflow, Every("24h"), kwargs=kwargs, retry=ONCE).trigger().run
    assert run is not None
    return run


def redis_of(live: LiveEnv) -> Redis:
    return live.scheduler.runtime.transport.redis


def fetch(live: LiveEnv, run: RunHandle) -> Job:
    return Job.fetch(run_job_id(run.refresh()), connection=redis_of(live))


def rq(live: LiveEnv, *words: str) -> str:
    command: Sequence[str | Path] = [BIN / "rq", *words, "--url", live.environment["RQSCHED_REDIS_URL"]]
    return subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=True).stdout


@each_kind
def test_a_run_is_shown_by_name_and_tells_its_progress_in_its_jobs_meta(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = trigger(live, rq_chores.PROGRESS, gate=str(live.gate))
    worker = start_rq(live, *options)
    live.wait_for_execution(run)

    worker.wait_for_log("nightly: acceptance.progress", timeout=SOON)
    job = fetch(live, run)
    assert (job.meta["schedule"], job.meta["run"], job.meta["done"]) == ("nightly", run.uid, "half")
    assert job.func_name == "rqsched.jobs.workflow.acceptance.progress"
    shown = rq(live, "info", "--raw")
    assert "queue default 0, 1 executing" in shown
    assert "busy default" in shown

    live.open_gate()
    live.wait_for_status(run, "succeeded", timeout=SOON)
    worker.wait_for_log("Successfully completed nightly: acceptance.progress", timeout=SOON)


@each_kind
def test_a_job_that_depends_on_a_run_follows_its_success_and_callbacks_are_called(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = trigger(live, rq_chores.FOLLOWED, told=str(told))

    start_rq(live, *options)

    live.wait_for_status(run, "succeeded", timeout=SOON)
    wait_for_lines(told, "followed", "on_success", "on_failure ValueError")


def test_a_job_that_depends_on_an_attempt_that_failed_stays_deferred(live: LiveEnv, told: Path) -> None:
    run = trigger(live, rq_chores.FAILING_FOLLOWED, told=str(told))

    start_rq(live, *KINDS["ours"])

    live.wait_for_status(run, "failed", timeout=SOON)
    wait_for_lines(told, "on_failure ValueError")
    (waiting,) = Queue("default", connection=redis_of(live)).deferred_job_registry.get_job_ids()
    assert Job.fetch(waiting, connection=redis_of(live)).get_status() is JobStatus.DEFERRED


@each_kind
def test_an_exception_handler_of_the_worker_is_told_which_schedule_failed(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = trigger(live, "acceptance.handled", told=str(told))

    start_rq(live, *options, "--exception-handler", f"{rq_chores.__name__}.handle")

    live.wait_for_status(run, "failed", timeout=SOON)
    wait_for_lines(told, "nightly nightly: acceptance.handled ValueError")


@each_kind
def test_workers_with_job_and_queue_classes_of_their_own_execute_runs(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = trigger(live, "acceptance.note")
    job_class, queue_class = (f"{rq_chores.__name__}.{name}" for name in ("OwnJob", "OwnQueue"))

    start_rq(live, *options, "-j", job_class, "--queue-class", queue_class)

    live.wait_for_status(run, "succeeded", timeout=SOON)
    # A job that was taken and not begun when the pass at boot looked is delivered twice, and executed once.
    assert set(lines(told)) == {"performed nightly: acceptance.note"}
    assert len(live.executions()) == 1
