"""Workers that write to SQL for their horses: what they are killed or frozen in is ended by the horse."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import psutil
import pytest

from rqsched import Every, RetryPolicy
from tests.support.processes import BIN, wait_until
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
SOON = 90.0
each_kind = pytest.mark.parametrize("kind", ["rqsched worker", "rq worker"])


def start_worker(live: LiveEnv, kind: str) -> None:
    if kind == "rqsched worker":
        live.start_worker("default")
        return
    redis_url = live.environment["RQSCHED_REDIS_URL"]
    live.start([BIN / "rq", "worker", "-w", "rqsched.rq.Worker", "--url", redis_url, "rqsched", "default"])


def parent_of(pid: int) -> psutil.Process:
    parent = psutil.Process(pid).parent()
    assert parent is not None
    return parent


@each_kind
def test_run_whose_worker_is_killed_ends_as_its_horse_says(any_live: LiveEnv, kind: str) -> None:
    run = any_live.hold_now()
    start_worker(any_live, kind)
    horse = any_live.wait_for_execution(run, timeout=SOON)
    worker = parent_of(horse.pid)

    worker.kill()
    wait_until(lambda: parent_of(horse.pid).pid != worker.pid, timeout=SOON, what="the end of the worker")
    any_live.open_gate()

    any_live.wait_for_status(run, "succeeded", timeout=SOON)
    any_live.check()


@each_kind
def test_run_whose_worker_is_frozen_ends_as_its_horse_says_and_the_worker_goes_on(live: LiveEnv, kind: str) -> None:
    run = live.hold_now()
    start_worker(live, kind)
    horse = live.wait_for_execution(run, timeout=SOON)
    worker = parent_of(horse.pid)

    os.kill(worker.pid, signal.SIGSTOP)
    try:
        live.open_gate()
        live.wait_for_status(run, "succeeded", timeout=SOON)
    finally:
        os.kill(worker.pid, signal.SIGCONT)

    after = live.note_every("after", Every(timedelta(hours=24))).trigger().run
    assert after is not None
    live.wait_for_status(after, "succeeded", timeout=SOON)
    live.check()


@each_kind
def test_run_that_died_with_its_worker_is_lost(live: LiveEnv, kind: str) -> None:
    run = live.hold_now(retry=RetryPolicy(max_retries=0))
    start_worker(live, kind)
    horse = live.wait_for_execution(run, timeout=SOON)
    worker = parent_of(horse.pid)

    worker.suspend()
    os.kill(horse.pid, signal.SIGKILL)
    worker.kill()
    start_worker(live, kind)

    live.wait_for_status(run, "lost", timeout=200)
    live.check()
