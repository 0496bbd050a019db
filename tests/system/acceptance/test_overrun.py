"""Code that goes on beyond its timeout: its process is killed soon, whatever RQ's timeout of the job is.

RQ's own timeout leaves ten minutes to write the end of an attempt, and code that has ended still has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from rqsched.api.schedule_handle import RunHandle
from tests.support.env import ONCE
from tests.support.processes import Process, is_gone, wait_until
from tests.support.proxy import proxy_to
from tests.system.acceptance.chores import OVERRUN, OVERRUN_TARGET
from tests.system.acceptance.live import RQ_KINDS, LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
SOON = 120.0
BOUND = 15.0
"""Seconds after its timeout within which code is killed."""
SLACK = 10.0
"""Extra seconds for a busy machine."""
OVERDUE = "it took far longer than its timeout and was killed"


WATCHED: dict[str, Callable[[LiveEnv], Process]] = {
    "runner": lambda live: live.start_runners(1),
    "fork": lambda live: live.start_worker(),
    "rqsched.rq.Worker": lambda live: live.start_rq(*RQ_KINDS["fork"]),
}
"""Another process of ours sees it and kills it, whatever it does."""
ALONE: dict[str, Callable[[LiveEnv], Process]] = {
    "rqsched.rq.SimpleWorker": lambda live: live.start_rq(*RQ_KINDS["simple"]),
    "rqsched.rq.SpawnWorker": lambda live: live.start_rq(*RQ_KINDS["spawn"]),
    "rq.Worker": lambda live: live.start_rq("worker", "-c", "rqsched.preload", queues=("default",)),
}
"""It ends by itself."""


def begin_overrun(live: LiveEnv, how: str, workflow: str = OVERRUN) -> tuple[RunHandle, psutil.Process]:
    run = live.run_now("overrun", workflow, kwargs={"gate": str(live.gate), "how": how}, timeout=1, retry=ONCE)
    return run, live.executor_of(run, timeout=SOON)


def wait_for_kill(process: psutil.Process) -> None:
    wait_until(lambda: is_gone(process), timeout=1 + BOUND + SLACK, what=f"the end of {process}")


@pytest.mark.parametrize("how", ["in Python", "in C"])
@pytest.mark.parametrize("kind", WATCHED)
def test_code_beyond_its_timeout_is_killed_by_who_watches_it_and_its_run_is_lost(
    live: LiveEnv, kind: str, how: str
) -> None:
    worker = WATCHED[kind](live)
    run, process = begin_overrun(live, how)

    wait_for_kill(process)

    live.wait_for_status(run, "lost", timeout=SOON)
    assert run.error == OVERDUE
    assert worker.is_running
    live.wait_for_status(live.run_now("after"), "succeeded", timeout=SOON)
    live.check()


@pytest.mark.parametrize("kind", ALONE)
def test_code_beyond_its_timeout_is_ended_by_its_own_process_which_records_it(live: LiveEnv, kind: str) -> None:
    worker = ALONE[kind](live)
    run, process = begin_overrun(live, "in Python")

    wait_for_kill(process)

    assert run.refresh().status == "lost", "it was recorded before it ended"
    assert run.error == OVERDUE
    assert "most recent call first" in worker.log(), "where it was stands in the log"
    live.check()


@pytest.mark.parametrize("kind", ALONE)
def test_code_in_c_beyond_its_timeout_is_ended_by_its_own_process(live: LiveEnv, kind: str) -> None:
    worker = ALONE[kind](live)
    _, process = begin_overrun(live, "in C")

    wait_for_kill(process)

    assert "overrun" in worker.log(), "where it was stands in the log"


@pytest.mark.parametrize("kind", ["runner", "fork", "rq.Worker"])
def test_target_beyond_its_timeout_is_killed_and_lost(live: LiveEnv, kind: str) -> None:
    (WATCHED | ALONE)[kind](live)
    run, process = begin_overrun(live, "in Python", OVERRUN_TARGET)

    wait_for_kill(process)

    live.wait_for_status(run, "failed", timeout=SOON)
    [target] = run.targets().items
    assert (target.status, target.error) == ("lost", OVERDUE)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["runner", "fork", "rq.Worker"])
def test_silence_of_sql_while_the_end_is_written_is_no_overrun(
    make_live: MakeLive, postgres_url: str, kind: str
) -> None:
    """The code ends within its timeout; its end is written when SQL answers again, after everything above is over."""
    live, timeout = make_live(postgres_url), 5
    with proxy_to(postgres_url) as proxy:
        live.environment["RQSCHED_DATABASE_URL"] = proxy.url(live.environment["RQSCHED_DATABASE_URL"])
        (WATCHED | ALONE)[kind](live)
        run = live.hold_now(timeout=timeout, retry=ONCE)
        process = live.executor_of(run, timeout=SOON)
        proxy.is_silent = True
        proxy.swallow()
        live.open_gate()

        silent_until = time.monotonic() + timeout + BOUND + SLACK
        wait_until(lambda: time.monotonic() > silent_until, timeout=SOON, what="the time in which code is killed")
        assert not is_gone(process)
        proxy.is_silent = False

        live.wait_for_status(run, "succeeded", timeout=SOON)
    assert [one.attempt for one in live.executions()] == [1]
    live.check()
