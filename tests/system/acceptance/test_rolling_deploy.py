"""A rolling deploy: a worker of the old release takes runs whose code it lacks, and not one of them fails."""

from __future__ import annotations

import pytest

from rqsched import Every
from rqsched.kernel.decide import audit
from tests.support.env import ONCE
from tests.support.processes import rqsched_command, wait_until
from tests.system.acceptance.live import LiveEnv

RUNS = 32


@pytest.mark.acceptance
@pytest.mark.timeout(480)
def test_runs_without_retries_survive_a_rolling_deploy(any_live: LiveEnv) -> None:
    live = any_live
    old = live.start(rqsched_command("worker"), RQSCHED_IMPORTS="tests.system.acceptance.old_release")
    schedules = [live.note_every(f"note-{number}", Every("24h"), retry=ONCE) for number in range(RUNS)]
    runs = [run for schedule in schedules if (run := schedule.trigger().run) is not None]
    wait_until(lambda: runs[0].refresh().blocked_reason, timeout=90, what="the old worker to meet a new workflow")

    live.start_worker()
    wait_until(lambda: any(run.refresh().status == "succeeded" for run in runs), timeout=90, what="the new worker")
    assert old.terminate(timeout=60) == 0
    wait_until(
        lambda: all(run.refresh().status not in {"pending", "running"} for run in runs),
        timeout=240,
        interval=0.2,
        what="all runs to end",
    )

    assert [(run.status, run.attempt) for run in runs] == [("succeeded", 1)] * RUNS
    assert not any(run.is_blocked for run in runs)
    live.check()
    told = [
        event for schedule in schedules for event in schedule.iter_history() if event.event_type == audit.RUN_BLOCKED
    ]
    assert len(told) >= 1
    assert all("no workflow named" in event.payload["reason"] or "import" in event.payload["reason"] for event in told)
