"""Connections to Redis that swallow all data: workers give them up within 15 s and go on where they were."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psutil
import pytest
from redis import Redis

from rqsched import Every
from tests.support.env import ONCE
from tests.support.narrow import present
from tests.support.processes import BIN, SOON, Process, is_gone, wait_until
from tests.support.proxy import Proxy, proxy_to
from tests.system.acceptance.live import RQ_KINDS, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
each_kind = pytest.mark.parametrize("kind", ["rqsched", "fork"])
BOUND = 15.0
"""The promised seconds on an idle machine. The tests give up later, and print the measured time."""


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with proxy_to(redis_url) as proxy:
        yield proxy


def start_worker(live: LiveEnv, proxy: Proxy, kind: str = "rqsched") -> Process:
    """A worker whose every connection to Redis goes through the proxy; the test's own do not."""
    live.environment["RQSCHED_REDIS_URL"] = proxy.url(live.environment["RQSCHED_REDIS_URL"])
    return live.start_worker() if kind == "rqsched" else live.start_rq(*RQ_KINDS[kind])


@each_kind
def test_an_idle_worker_whose_connections_swallow_everything_executes_again_soon(
    live: LiveEnv, proxy: Proxy, kind: str
) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")
    worker = start_worker(live, proxy, kind)
    wait_until(live.executions, timeout=SOON, what="a first run")
    runs = worker.wait_for_child("runs") if kind == "rqsched" else psutil.Process(worker.pid)

    silent_since = time.monotonic()
    assert proxy.swallow() >= 2, "the dispatcher and the RQ worker have connections"

    ran = len(live.executions())
    live.wait_for_fires(schedule)
    wait_until(lambda: len(live.executions()) > ran + 2, timeout=SOON, what="further runs")
    print(f"fired and executed again after {time.monotonic() - silent_since:.1f} s, the bound is {BOUND:.0f} s")
    assert not is_gone(runs), "it connects again, it does not quit"
    schedule.pause()
    live.check()


def test_a_worker_whose_connections_swallow_everything_during_a_run_keeps_it(live: LiveEnv, proxy: Proxy) -> None:
    worker = start_worker(live, proxy)
    runs = worker.wait_for_child("runs")
    run = live.hold_now(retry=ONCE)
    horse = live.executor_of(run)

    assert proxy.swallow() >= 2
    live.open_gate()

    live.wait_for_status(run, "succeeded")
    wait_until(lambda: is_gone(horse), timeout=SOON, what="the horse's end")
    after = live.note_every("after", Every(timedelta(seconds=1)))
    live.wait_for_successes(after, more=1)
    assert not is_gone(runs)
    live.check()


@pytest.mark.nightly
def test_a_run_that_ignores_its_timeout_is_ended_by_the_worker_behind_silent_connections(
    live: LiveEnv, proxy: Proxy
) -> None:
    """RQ's parent kills the horse, so it must still be alive then."""
    worker = start_worker(live, proxy)
    runs = worker.wait_for_child("runs")
    run = live.hold_now(timeout=1, deaf=True, retry=ONCE)
    horse = live.executor_of(run)

    proxy.swallow()

    live.wait_for_status(run, "lost", timeout=240)
    assert run.error == "it took far longer than its timeout and was killed", "not for want of heartbeats"
    assert is_gone(horse)
    assert not is_gone(runs)
    live.check()


@each_kind
def test_a_terminated_run_is_killed_although_its_worker_heard_no_command(
    live: LiveEnv, proxy: Proxy, kind: str
) -> None:
    worker = start_worker(live, proxy, kind)
    run = live.hold_now(deaf=True, retry=ONCE)
    horse = live.executor_of(run)

    silent_since = time.monotonic()
    proxy.swallow()
    run.terminate()

    wait_until(lambda: is_gone(horse), timeout=SOON, what="the end of the horse")
    print(f"the horse was killed {time.monotonic() - silent_since:.1f} s after its worker could hear nothing")
    assert worker.is_running
    assert run.refresh().status == "terminated"
    live.check()


@pytest.mark.nightly
def test_rqs_own_idle_worker_connects_again_where_its_ttl_is_short(live: LiveEnv, proxy: Proxy, redis_url: str) -> None:
    """With `--worker-ttl 20`, RQ's worker connects again after 15 s. A pass of reconcile restores the job that it lost.

    RQ's worker quits if Redis falls silent while it does anything else than wait for a job.
    """
    live.environment["RQSCHED_REDIS_URL"] = proxy.url(live.environment["RQSCHED_REDIS_URL"])
    worker = live.start([BIN / "rq", "worker", "-c", "rqsched.preload", "--worker-ttl", "20", "default"])
    schedule = live.note_every("note", Every(timedelta(days=1)), overlap="allow_all")
    first = present(schedule.trigger().run)
    live.wait_for_status(first, "succeeded")
    with closing(Redis.from_url(redis_url)) as redis:
        wait_until(
            lambda: "blmove" in {one["cmd"] for one in redis.client_list()}, what="a worker that waits for a job"
        )

    silent_since = time.monotonic()
    proxy.swallow()
    taken = present(schedule.trigger().run)  # its job goes to the silent connection

    def is_executed() -> bool:
        live.scheduler.recover()
        return taken.refresh().status == "succeeded"

    wait_until(is_executed, timeout=SOON, what="the run whose job was swallowed")
    print(f"executed again after {time.monotonic() - silent_since:.1f} s")
    assert worker.is_running
    live.check()
