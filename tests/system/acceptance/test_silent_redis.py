"""Connections to Redis that swallow what is sent: workers give them up within 15 s and go on where they were."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest

from rqsched import Every, RetryPolicy, Scheduler
from tests.support.processes import Process, is_gone, wait_until
from tests.support.proxy import Proxy, proxy_to
from tests.system.acceptance.live import LiveEnv
from tests.system.acceptance.test_worker_supervisor import wait_for_child

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
SOON = 60.0
BOUND = 15.0
"""What is promised on an idle machine; the tests wait longer before they give up, and print what they saw."""


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with proxy_to(redis_url) as proxy:
        yield proxy


def start_worker(live: LiveEnv, proxy: Proxy) -> Process:
    """A worker whose every connection to Redis goes through the proxy; the test's own do not."""
    live.environment["RQSCHED_REDIS_URL"] = proxy.url(live.environment["RQSCHED_REDIS_URL"])
    return live.start_worker()


def test_an_idle_worker_whose_connections_swallow_everything_executes_again_soon(live: LiveEnv, proxy: Proxy) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")
    worker = start_worker(live, proxy)
    wait_until(live.executions, timeout=SOON, what="a first run")
    runs = wait_for_child(worker, "runs")

    silent_since = time.monotonic()
    assert proxy.swallow() >= 2, "the dispatcher and the RQ worker have connections"

    fired, ran = schedule.refresh().run_count, len(live.executions())
    wait_until(lambda: schedule.refresh().run_count > fired + 1, timeout=SOON, what="further fires")
    wait_until(lambda: len(live.executions()) > ran + 2, timeout=SOON, what="further runs")
    print(f"fired and executed again after {time.monotonic() - silent_since:.1f} s, the bound is {BOUND:.0f} s")
    assert not is_gone(runs), "it connects again, it does not quit"
    schedule.pause()
    live.check()


def test_a_worker_whose_connections_swallow_everything_during_a_run_keeps_it(live: LiveEnv, proxy: Proxy) -> None:
    worker = start_worker(live, proxy)
    runs = wait_for_child(worker, "runs")
    run = live.hold_now(retry=RetryPolicy(max_retries=0))
    horse = psutil.Process(live.wait_for_execution(run).pid)

    assert proxy.swallow() >= 2
    live.open_gate()

    live.wait_for_status(run, "succeeded", timeout=SOON)
    wait_until(lambda: is_gone(horse), timeout=SOON, what="the horse's end")
    after = live.note_every("after", Every(timedelta(seconds=1)))
    wait_until(lambda: after.refresh().state.success_count > 0, timeout=SOON, what="a run of another schedule")
    assert not is_gone(runs)
    live.check()


@pytest.mark.proof
def test_a_run_that_ignores_its_timeout_is_ended_by_the_worker_behind_silent_connections(
    live: LiveEnv, proxy: Proxy, sqlite_url: str, redis_url: str
) -> None:
    """RQ's parent kills a horse a minute after its timeout, and must still be there then: about two minutes."""
    live.scheduler.close()
    live.scheduler = Scheduler(database_url=sqlite_url, redis_url=redis_url, completion_outage=1)  # writes RQ's timeout
    worker = start_worker(live, proxy)
    runs = wait_for_child(worker, "runs")
    run = live.hold_now(timeout=1, deaf=True, retry=RetryPolicy(max_retries=0))
    horse = psutil.Process(live.wait_for_execution(run).pid)

    proxy.swallow()

    live.wait_for_status(run, "lost", timeout=240)
    assert run.error is not None
    assert run.error.startswith("its work horse died"), "not for want of heartbeats, which it still sends"
    assert is_gone(horse)
    assert not is_gone(runs)
    live.check()
