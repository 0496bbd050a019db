"""Many concurrent changes of upstreams, and many concurrent ends of runs."""

from __future__ import annotations

from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from rqsched import After
from rqsched.config import Settings
from rqsched.errors import UpstreamError
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.testing import ManualClock
from tests.support.children import FORK, in_children
from tests.support.env import MINUTE
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.system.concurrency.crowd import Crowd

RING = 6


@pytest.fixture
def crowd(database_url: str, redis_url: str, tmp_path: Path, clock: ManualClock) -> Crowd:
    clock.advance(MINUTE)
    return Crowd(Settings(database_url=database_url, redis_url=redis_url), clock, tmp_path / "executed")


def numbered() -> SimpleQueue[int]:
    """A number for each child."""
    numbers = FORK.SimpleQueue()
    for number in range(RING):
        numbers.put(number)
    return numbers


def test_of_a_ring_that_many_close_at_once_one_edge_is_refused(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        for number in range(RING):
            scheduler.create(f"s{number}", "note", MINUTE)

    numbers = numbered()

    def close() -> str:
        number = numbers.get()
        with crowd.scheduler() as scheduler:
            try:
                scheduler.get(f"s{number}").update(spec=After(f"s{(number + 1) % RING}"))
            except UpstreamError:
                return "refused"
            return "after"

    answers = in_children(RING, close)

    assert sorted(answers) == [*["after"] * (RING - 1), "refused"]
    with crowd.scheduler() as scheduler:
        check_invariants(scheduler.runtime)


def test_ends_at_once_each_start_one_run(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        nightly = scheduler.create("nightly", "note", MINUTE, overlap="allow_all")
        scheduler.create("report", "note", After("nightly", on="end"), overlap="allow_all")
        uids = [present(nightly.trigger().run).uid for _ in range(RING)]

    numbers = numbered()

    def end() -> None:
        number = numbers.get()
        with crowd.scheduler() as scheduler:
            cancelled = AttemptResult(AttemptOutcome.CANCELLED)
            settle_run(scheduler.runtime, uids[number], cancelled, fence=lambda run: run.is_unfinished)

    in_children(RING, end)

    with crowd.scheduler() as scheduler:
        found = [run.state.upstream_run_uid for run in scheduler.get("report").iter_runs()]
        assert sorted(found, key=str) == sorted(uids)
        check_invariants(scheduler.runtime)
