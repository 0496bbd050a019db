"""RQ's own tools with our runs, and RQ's features inside workflows, with real workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rq import Queue
from rq.job import Job, JobStatus

from rqsched.api.schedule_handle import RunHandle
from tests.support.env import ONCE, run_job_id
from tests.support.processes import BIN, SOON, run_to_end, wait_until
from tests.system.acceptance import rq_chores
from tests.system.acceptance.chores import TOLD
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
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


def run_nightly(live: LiveEnv, workflow: str, **kwargs: Any) -> RunHandle:
    return live.run_now("nightly", workflow, kwargs=kwargs, retry=ONCE)


@each_kind
def test_a_run_is_shown_by_name_and_tells_its_progress_in_its_jobs_meta(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = run_nightly(live, rq_chores.PROGRESS, gate=str(live.gate))
    worker = live.start_rq("worker", *options, queues=("default",))
    live.wait_for_execution(run)

    worker.wait_for_log("nightly: acceptance.progress")
    job = Job.fetch(run_job_id(run.refresh()), connection=live.redis)
    assert (job.meta["schedule"], job.meta["run"], job.meta["done"]) == ("nightly", run.uid, "half")
    assert job.func_name == "rqsched.jobs.workflow.acceptance.progress"
    shown = run_to_end([BIN / "rq", "info", "--raw", "--url", live.environment["RQSCHED_REDIS_URL"]], {}).stdout
    assert "queue default 0, 1 executing" in shown
    assert "busy default" in shown

    live.open_gate()
    live.wait_for_status(run, "succeeded")
    worker.wait_for_log("Successfully completed nightly: acceptance.progress")


@each_kind
def test_a_job_that_depends_on_a_run_follows_its_success_and_callbacks_are_called(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = run_nightly(live, rq_chores.FOLLOWED, told=str(told))

    live.start_rq("worker", *options, queues=("default",))

    live.wait_for_status(run, "succeeded")
    wait_for_lines(told, "followed", "on_success", "on_failure ValueError")


def test_a_job_that_depends_on_an_attempt_that_failed_stays_deferred(live: LiveEnv, told: Path) -> None:
    run = run_nightly(live, rq_chores.FAILING_FOLLOWED, told=str(told))

    live.start_rq("worker", *KINDS["ours"], queues=("default",))

    live.wait_for_status(run, "failed")
    wait_for_lines(told, "on_failure ValueError")
    (waiting,) = Queue("default", connection=live.redis).deferred_job_registry.get_job_ids()
    assert Job.fetch(waiting, connection=live.redis).get_status() is JobStatus.DEFERRED


@each_kind
def test_an_exception_handler_of_the_worker_is_told_which_schedule_failed(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = run_nightly(live, "acceptance.handled", told=str(told))

    live.start_rq("worker", *options, "--exception-handler", f"{rq_chores.__name__}.handle", queues=("default",))

    live.wait_for_status(run, "failed")
    wait_for_lines(told, "nightly nightly: acceptance.handled ValueError")


@each_kind
def test_workers_with_job_and_queue_classes_of_their_own_execute_runs(
    live: LiveEnv, told: Path, options: list[str]
) -> None:
    run = run_nightly(live, "acceptance.note")
    job_class, queue_class = (f"{rq_chores.__name__}.{name}" for name in ("OwnJob", "OwnQueue"))

    live.start_rq("worker", *options, "-j", job_class, "--queue-class", queue_class, queues=("default",))

    live.wait_for_status(run, "succeeded")
    # A job that was taken and not begun when the pass at boot looked is delivered twice, and executed once.
    assert set(lines(told)) == {"performed nightly: acceptance.note"}
    assert len(live.executions()) == 1
