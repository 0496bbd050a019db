"""`rqsched worker`: its children come back, end with it, and the death of a work horse is known at once."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from rqsched import Every, RetryPolicy
from tests.support.env import ONCE
from tests.support.processes import is_gone, process_tree, wait_until
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]
ROLES = ("dispatcher", "runs")
SOON = 60.0
"""Seconds that starting a process may take on a busy machine. A lost run takes 45 s without a witness."""


@pytest.mark.parametrize("role", ROLES)
def test_a_killed_child_comes_back_and_fires_and_runs_go_on(live: LiveEnv, role: str) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")
    worker = live.start_worker()
    wait_until(live.executions, timeout=SOON, what="a first run")

    killed = worker.wait_for_child(role)
    killed.kill()
    worker.wait_for_child(role, other_than=killed.pid)

    ran = len(live.executions())
    live.wait_for_fires(schedule)
    wait_until(lambda: len(live.executions()) > ran + 1, timeout=SOON, what="further runs")
    worker.terminate()
    live.check()


def test_a_child_that_is_killed_again_and_again_still_comes_back(live: LiveEnv) -> None:
    worker = live.start_worker()
    killed = worker.wait_for_child("dispatcher")
    for _ in range(3):
        killed.kill()
        killed = worker.wait_for_child("dispatcher", other_than=killed.pid)


def test_a_dispatcher_that_stands_still_is_replaced_and_fires_go_on(live: LiveEnv) -> None:
    """It is stopped as by a debugger, which looks like an endless wait. This takes about half a minute."""
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")
    worker = live.start_worker()
    wait_until(live.executions, timeout=SOON, what="a first run")
    stopped = worker.wait_for_child("dispatcher")

    stopped.suspend()

    worker.wait_for_child("dispatcher", other_than=stopped.pid)
    assert is_gone(stopped)
    live.wait_for_fires(schedule)
    assert "dispatcher has made no progress" in worker.log()
    worker.terminate()
    live.check()


def test_the_rq_scheduler_of_a_killed_rq_worker_ends_with_it(live: LiveEnv) -> None:
    """An orphan would hold RQ's scheduler lock, and no process would promote the user's own scheduled jobs."""
    worker = live.start_worker()
    runs = worker.wait_for_child("runs")
    [scheduler] = wait_until(runs.children, timeout=SOON, what="RQ's scheduler") or []
    try:
        runs.kill()
        wait_until(lambda: is_gone(scheduler), timeout=20, what="the scheduler's end")
    finally:
        if not is_gone(scheduler):
            scheduler.kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_nothing_is_left_of_a_worker_that_ended(live: LiveEnv, end: signal.Signals) -> None:
    live.note_every("tick", Every(timedelta(seconds=1)))
    worker = live.start_worker()
    wait_until(live.executions, timeout=SOON, what="a first run")
    tree = process_tree(worker.pid)
    assert len(tree) >= 1 + len(ROLES)

    worker.signal(end)

    wait_until(lambda: all(is_gone(process) for process in tree), timeout=SOON, what=f"the end of {tree}")


def test_a_worker_that_is_asked_to_end_finishes_the_run_it_executes(live: LiveEnv) -> None:
    run = live.hold_now()
    worker = live.start_worker()
    live.wait_for_execution(run)

    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.child("dispatcher") is None, timeout=SOON, what="the dispatcher's end")
    assert worker.is_running
    live.open_gate()

    assert worker.wait() == 0
    assert run.refresh().status == "succeeded"
    live.check()


def test_a_worker_that_is_asked_twice_ends_the_run_too(live: LiveEnv) -> None:
    run = live.hold_now()
    worker = live.start_worker()
    horse = live.executor_of(run)

    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.child("dispatcher") is None, timeout=SOON, what="the dispatcher's end")
    worker.signal(signal.SIGTERM)

    worker.wait()
    wait_until(lambda: is_gone(horse), timeout=SOON, what="the horse's end")
    live.check()


@pytest.mark.parametrize(
    ("retry", "status"),
    [
        pytest.param(RetryPolicy(max_retries=1, base=timedelta(hours=1)), "retrying", id="with attempts left"),
        pytest.param(ONCE, "lost", id="without attempts left"),
    ],
)
def test_a_run_whose_horse_died_is_settled_by_the_worker_that_saw_it(
    any_live: LiveEnv, retry: RetryPolicy, status: str
) -> None:
    run = any_live.hold_now(retry=retry)
    any_live.start_worker()
    execution = any_live.wait_for_execution(run)

    os.kill(execution.pid, signal.SIGKILL)

    any_live.wait_for_status(run, status)
    assert run.error is not None
    assert "horse" in run.error
    any_live.check()


def test_the_worker_goes_on_after_one_of_its_horses_died(live: LiveEnv) -> None:
    run = live.hold_now(retry=RetryPolicy(max_retries=1, base=timedelta(seconds=1)))
    live.start_worker()
    execution = live.wait_for_execution(run)
    os.kill(execution.pid, signal.SIGKILL)
    live.open_gate()

    live.wait_for_status(run, "succeeded", timeout=30)

    assert [one.attempt for one in live.executions()] == [1, 2]
    live.check()
