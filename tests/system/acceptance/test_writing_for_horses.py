"""Workers that write to SQL for their horses: if the worker is killed or frozen, the horse completes the write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.env import ONCE
from tests.support.narrow import present
from tests.support.processes import Process, wait_until
from tests.system.acceptance.live import RQ_KINDS, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
SOON = 90.0
STARTS: dict[str, Callable[[LiveEnv], Process]] = {
    "rqsched worker": lambda live: live.start_worker("default"),
    "rq worker": lambda live: live.start_rq(*RQ_KINDS["fork"]),
}
each_kind = pytest.mark.parametrize("kind", STARTS)


@each_kind
def test_run_whose_worker_is_killed_ends_as_its_horse_says(any_live: LiveEnv, kind: str) -> None:
    run = any_live.hold_now()
    STARTS[kind](any_live)
    horse = any_live.executor_of(run, timeout=SOON)
    worker = present(horse.parent())

    worker.kill()
    wait_until(lambda: horse.ppid() != worker.pid, timeout=SOON, what="the end of the worker")
    any_live.open_gate()

    any_live.wait_for_status(run, "succeeded", timeout=SOON)
    any_live.check()


@each_kind
def test_run_whose_worker_is_frozen_ends_as_its_horse_says_and_the_worker_goes_on(live: LiveEnv, kind: str) -> None:
    run = live.hold_now()
    STARTS[kind](live)
    horse = live.executor_of(run, timeout=SOON)
    worker = present(horse.parent())

    worker.suspend()
    try:
        live.open_gate()
        live.wait_for_status(run, "succeeded", timeout=SOON)
    finally:
        worker.resume()

    live.wait_for_status(live.run_now("after"), "succeeded", timeout=SOON)
    live.check()


@each_kind
def test_run_that_died_with_its_worker_is_lost(live: LiveEnv, kind: str) -> None:
    run = live.hold_now(retry=ONCE)
    STARTS[kind](live)
    horse = live.executor_of(run, timeout=SOON)
    worker = present(horse.parent())

    worker.suspend()
    horse.kill()
    worker.kill()
    STARTS[kind](live)

    live.wait_for_status(run, "lost", timeout=200)
    live.check()
