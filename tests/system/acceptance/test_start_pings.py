"""The start of a run is told while it executes, also where there is one worker and its only horse is busy."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.env import ONCE
from tests.support.processes import SOON, wait_until
from tests.support.receiver import HANG, OK, receiver
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


def test_a_lone_worker_tells_the_start_of_a_run_while_it_executes_and_its_end(
    any_live: LiveEnv, tmp_path: Path
) -> None:
    live = any_live
    live.start_worker()
    (folder := tmp_path / "receiver").mkdir()
    with receiver(folder) as hook:
        run = live.hold_now(notifications={"heartbeat": f"{hook.url}/key"})
        live.wait_for_execution(run)
        wait_until(lambda: hook.paths == ["/key/start"], timeout=SOON, what="the ping of the start")
        assert run.refresh().status == "running"

        live.open_gate()

        wait_until(lambda: hook.paths == ["/key/start", "/key"], timeout=SOON, what="the ping of the end")
    live.check()


def test_a_start_whose_horse_dies_before_it_is_told_is_not_told_after_the_failure(
    live: LiveEnv, tmp_path: Path
) -> None:
    live.start_worker()
    (folder := tmp_path / "receiver").mkdir()
    with receiver(folder) as hook:
        hook.answer(HANG)
        run = live.hold_now(notifications={"heartbeat": f"{hook.url}/key"}, retry=ONCE)
        horse = live.executor_of(run)
        wait_until(lambda: hook.paths == ["/key/start"], timeout=SOON, what="the ping of the start, unanswered")
        hook.answer(OK)

        horse.send_signal(signal.SIGKILL)

        live.wait_for_status(run, "lost")
        wait_until(lambda: hook.paths[-1:] == ["/key/fail"], timeout=SOON, what="the ping of the failure")
        wait_until(lambda: not live.scheduler.get("hold").deliveries().items, timeout=SOON, what="nothing left to tell")
        assert hook.paths == ["/key/start", "/key/fail"]
    live.check()
