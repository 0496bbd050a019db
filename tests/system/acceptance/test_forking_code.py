"""User code that forks: its children end with the call, and no second worker is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rq import Queue
from rq.job import Job, JobStatus

from rqsched.api.schedule_handle import RunHandle
from tests.support.env import ONCE
from tests.support.narrow import present
from tests.support.processes import SOON, Process, is_gone, wait_until
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
from tests.system.acceptance.live import RQ_KINDS, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]
STARTS: dict[str, Callable[[LiveEnv], Process]] = {
    "runner": lambda live: live.start_runners(1),
    "simple": lambda live: live.start_rq(*RQ_KINDS["simple"]),
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


def run_forking(live: LiveEnv, workflow: str, how: str) -> RunHandle:
    return live.run_now(f"{workflow}-{how}", workflow, kwargs={"how": how}, retry=ONCE)


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

    runs = [run_forking(forking, workflow, how) for how in ENDS]

    for run in runs:
        forking.wait_for_status(run, "succeeded", "failed", "lost")
    assert [run.refresh().status for run in runs] == ["succeeded"] * len(ENDS)
    wait_for_children(forking, len(ENDS))
    assert "ValueError: raised in a child" in worker.log()
    assert "FileNotFoundError" in worker.log()
    assert "KeyboardInterrupt" in worker.log()
    after = [run_forking(forking, workflow, f"not-{number}") for number in range(3)]
    for run in after:
        forking.wait_for_status(run, "succeeded")
    if kind != "fork":
        assert len({one.pid for one in forking.executions()}) == 1, "one process executes them all"
    forking.check()


@each_worker
def test_children_of_a_resolver_and_of_targets_end_with_the_call(forking: LiveEnv, kind: str) -> None:
    STARTS[kind](forking)

    run = forking.run_now("fan", NAME_FORKING, retry=ONCE)

    forking.wait_for_status(run, "succeeded", "failed")
    assert present(run.progress()).counts == {"succeeded": len(ENDS)}
    wait_for_children(forking, 2 * len(ENDS))
    assert len(forking.executions()) == len(ENDS)


@each_worker
def test_children_of_a_workflow_that_is_notified_end_with_the_call(forking: LiveEnv, kind: str) -> None:
    STARTS[kind](forking)

    forking.run_now("fail", FAIL, retry=ONCE, on_failure=TELL_FORKING)

    def delivered() -> list[str]:
        return [one.status for one in forking.scheduler.get("fail").deliveries().items]

    wait_until(lambda: delivered() == ["succeeded"], timeout=SOON, what=f"a delivery: {delivered()}")
    wait_for_children(forking, 2)


@each_worker
def test_children_of_a_context_around_runs_end_with_it(forking: LiveEnv, kind: str) -> None:
    forking.environment[AROUND] = "yes"
    STARTS[kind](forking)

    run = run_forking(forking, FORK, "return")

    forking.wait_for_status(run, "succeeded")
    wait_for_children(forking, 3)
    assert len(forking.executions()) == 1
    forking.check()


@each_worker
def test_children_of_a_job_that_is_not_ours_end_with_the_call(forking: LiveEnv, kind: str) -> None:
    STARTS[kind](forking)
    queue = Queue("default", connection=forking.redis)
    jobs: list[Job] = [queue.enqueue(call, how) for call in (fork_in_job, fork_in_awaited_job) for how in ENDS]

    def statuses() -> list[JobStatus]:
        return [job.get_status() for job in jobs]

    wait_until(lambda: set(statuses()) <= {JobStatus.FINISHED, JobStatus.FAILED}, timeout=SOON, what="the end of each")

    assert statuses() == [JobStatus.FINISHED] * len(jobs)
    wait_for_children(forking, len(jobs))
    assert all(len(job.results()) == 1 for job in jobs)
