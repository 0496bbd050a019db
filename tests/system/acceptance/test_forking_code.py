"""User code that forks: its children end with the call, and no second worker is left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from redis import Redis
from rq import Queue
from rq.job import Job, JobStatus

from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import RunHandle
from tests.support.narrow import present
from tests.support.processes import Process, is_gone, wait_until
from tests.system.acceptance.chores import FAIL
from tests.system.acceptance.forking import (
    AROUND,
    CHILDREN,
    ENDS,
    FORK,
    FORK_AWAITED,
    NAME_FORKING,
    TELL_FORKING,
    fork_in_awaited_job,
    fork_in_job,
)
from tests.system.acceptance.live import LiveEnv
from tests.system.acceptance.test_rq_workers import KINDS, start_rq

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]
SOON = 60.0
DAILY = Every(timedelta(days=1))
ONCE = RetryPolicy(max_retries=0, then="continue")
STARTS: dict[str, Callable[[LiveEnv], Process]] = {
    "runner": lambda live: live.start_worker("--concurrency", "1"),
    "simple": lambda live: start_rq(live, *KINDS["simple"]),
    "fork": lambda live: live.start_worker(),
}
each_worker = pytest.mark.parametrize("kind", STARTS)


@pytest.fixture
def forking(live: LiveEnv) -> LiveEnv:
    live.environment |= {
        "RQSCHED_IMPORTS": "tests.system.acceptance.forking",
        CHILDREN: str(live.folder / "children"),
        AROUND: "",
    }
    return live


def start(live: LiveEnv, workflow: str, how: str) -> RunHandle:
    kwargs = {"log": str(live.log), "how": how}
    run = live.scheduler.create(f"{workflow}-{how}", workflow, DAILY, kwargs=kwargs, retry=ONCE).trigger().run
    assert run is not None
    return run


def wait_for_children(live: LiveEnv, count: int) -> None:
    """Wait until so many children have begun, and until all of them have ended."""
    path = Path(live.environment[CHILDREN])

    def pids() -> list[int]:
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    wait_until(lambda: len(pids()) >= count, timeout=SOON, what=f"{count} children")
    for pid in pids():
        wait_until(lambda pid=pid: has_ended(pid), timeout=SOON, what=f"the end of {pid}, one of {pids()}")  # type: ignore[misc]
    assert len(pids()) == count


def has_ended(pid: int) -> bool:
    try:
        return is_gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


@each_worker
@pytest.mark.parametrize("workflow", [FORK, FORK_AWAITED])
def test_child_of_a_workflow_ends_with_the_call_and_the_run_ends_as_its_parent_says(
    forking: LiveEnv, kind: str, workflow: str
) -> None:
    worker = STARTS[kind](forking)

    runs = [start(forking, workflow, how) for how in ENDS]

    for run in runs:
        forking.wait_for_status(run, "succeeded", "failed", "lost", timeout=SOON)
    assert [run.refresh().status for run in runs] == ["succeeded"] * len(ENDS)
    wait_for_children(forking, len(ENDS))
    assert "ValueError: raised in a child" in worker.log()
    assert "FileNotFoundError" in worker.log()
    assert "KeyboardInterrupt" in worker.log()
    after = [start(forking, workflow, f"not-{number}") for number in range(3)]
    for run in after:
        forking.wait_for_status(run, "succeeded", timeout=SOON)
    if kind != "fork":
        assert len({one.pid for one in forking.executions()}) == 1, "one process executes them all"
    forking.check()


@each_worker
def test_children_of_a_resolver_and_of_targets_end_with_the_call(forking: LiveEnv, kind: str) -> None:
    STARTS[kind](forking)
    kwargs = {"log": str(forking.log)}

    run = forking.scheduler.create("fan", NAME_FORKING, DAILY, kwargs=kwargs, retry=ONCE).trigger().run

    assert run is not None
    forking.wait_for_status(run, "succeeded", "failed", timeout=SOON)
    assert present(run.progress()).counts == {"succeeded": len(ENDS)}
    wait_for_children(forking, 2 * len(ENDS))
    assert len(forking.executions()) == len(ENDS)


@each_worker
def test_children_of_a_workflow_that_is_notified_end_with_the_call(forking: LiveEnv, kind: str) -> None:
    STARTS[kind](forking)
    kwargs = {"log": str(forking.log)}
    schedule = forking.scheduler.create("fail", FAIL, DAILY, kwargs=kwargs, retry=ONCE, on_failure=TELL_FORKING)

    schedule.trigger()

    def delivered() -> list[str]:
        return [one.status for one in schedule.deliveries().items]

    wait_until(lambda: delivered() == ["succeeded"], timeout=SOON, what=f"a delivery: {delivered()}")
    wait_for_children(forking, 2)


@each_worker
def test_children_of_a_context_around_runs_end_with_it(forking: LiveEnv, kind: str) -> None:
    forking.environment[AROUND] = "yes"
    STARTS[kind](forking)

    run = start(forking, FORK, "return")

    forking.wait_for_status(run, "succeeded", timeout=SOON)
    wait_for_children(forking, 3)
    assert len(forking.executions()) == 1
    forking.check()


@each_worker
def test_children_of_a_job_that_is_not_ours_end_with_the_call(forking: LiveEnv, kind: str) -> None:
    STARTS[kind](forking)
    with Redis.from_url(forking.environment["RQSCHED_REDIS_URL"]) as redis:
        queue = Queue("default", connection=redis)
        jobs: list[Job] = [queue.enqueue(call, how) for call in (fork_in_job, fork_in_awaited_job) for how in ENDS]

        def statuses() -> list[JobStatus]:
            return [job.get_status() for job in jobs]

        wait_until(
            lambda: set(statuses()) <= {JobStatus.FINISHED, JobStatus.FAILED}, timeout=SOON, what="the end of each"
        )

        assert statuses() == [JobStatus.FINISHED] * len(jobs)
        wait_for_children(forking, len(jobs))
        assert all(len(job.results()) == 1 for job in jobs)
