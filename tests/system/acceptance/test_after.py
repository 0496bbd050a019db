"""One schedule after another with real processes of every kind that executes runs."""

from __future__ import annotations

import pytest

from rqsched import After
from tests.support.invariants import check_invariants
from tests.support.processes import SOON, wait_until
from tests.system.acceptance.live import RQ_KINDS, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
PLAIN = {"plain": ("worker", "-c", "rqsched.preload"), "bare": ("worker", "--with-scheduler")}


@pytest.mark.parametrize("kind", ["forking", "runner", *PLAIN, "fork", "simple"])
def test_whoever_executes_runs_starts_what_comes_after_them(live: LiveEnv, kind: str) -> None:
    live.run_now("first")
    for number in range(3):
        live.note_every(f"after-{number}", After(f"after-{number - 1}" if number else "first"))
    if kind == "runner":
        live.start_runners(1)
    elif kind == "forking":
        live.start_worker()
    else:
        live.start_rq(*(PLAIN | RQ_KINDS)[kind])

    last = live.scheduler.get("after-2")
    wait_until(lambda: last.refresh().state.success_count, timeout=SOON, what="the last of four in a row")
    for number in range(3):
        (run,) = live.scheduler.get(f"after-{number}").runs().items
        assert (run.kind, run.status) == ("after", "succeeded")
    check_invariants(live.scheduler.runtime, with_redis=False)
