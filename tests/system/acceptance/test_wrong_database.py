"""Two plain workers on one queue, one of them with another database: no run is swallowed, and the fault is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rq.registry import FailedJobRegistry

from rqsched import Scheduler
from tests.support.env import ONCE
from tests.support.processes import BIN, Process, rqsched_command, wait_until
from tests.system.acceptance.live import LiveEnv

BARE: dict[str, list[str]] = {"bare": [], "with RQ's scheduler": ["--with-scheduler"]}
each_kind = pytest.mark.parametrize("options", BARE.values(), ids=BARE)


def start_worker_elsewhere(live: LiveEnv, folder: Path, options: list[str]) -> Process:
    """A plain worker of the same Redis and queue whose database URL is another one."""
    live.scheduler.recover()  # the Redis is in use: the first database to reconcile owns it
    url, redis_url = f"sqlite:///{folder / 'elsewhere.db'}", live.environment["RQSCHED_REDIS_URL"]
    Scheduler(database_url=url, redis_url=redis_url).close()
    return live.start_rq("worker", *options, queues=("default",), RQSCHED_DATABASE_URL=url)


@pytest.mark.acceptance
@pytest.mark.timeout(300)
@each_kind
@pytest.mark.parametrize("count", [1, 12])
def test_runs_start_at_the_right_worker_beside_one_with_another_database(
    live: LiveEnv, tmp_path: Path, options: list[str], count: int
) -> None:
    wrong = start_worker_elsewhere(live, tmp_path, options)
    live.start_worker()
    runs = [live.run_now(f"note-{number}", retry=ONCE) for number in range(count)]

    # Redis gives a job to the worker that waited longest, so the wrong one gets some first, and steps back.
    wrong.wait_for_log("Set RQSCHED_DATABASE_URL of this worker")
    began = time.monotonic()
    wait_until(
        lambda: all(run.refresh().status == "succeeded" for run in runs), timeout=240, what="all runs to succeed"
    )
    print(f"all {count} runs had succeeded {time.monotonic() - began:.0f} s after one was refused first")

    live.check()
    assert wrong.is_running
    assert [run.attempt for run in runs] == [1] * count


@pytest.mark.acceptance
@pytest.mark.timeout(240)
@each_kind
def test_a_worker_with_another_database_alone_fails_a_run_in_rqs_registry_and_doctor_names_it(
    live: LiveEnv, tmp_path: Path, options: list[str]
) -> None:
    worker = start_worker_elsewhere(live, tmp_path, options)
    live.start([BIN / "rqsched", "dispatcher"])  # it delivers, and executes nothing
    run = live.run_now("note")
    registry = FailedJobRegistry("default", connection=live.redis)
    (job,) = wait_until(registry.get_job_ids, timeout=90, what="the job to fail")

    assert run.refresh().status == "pending"
    assert "Set RQSCHED_DATABASE_URL of this worker" in worker.log()
    assert job.startswith(f"run-{run.uid}")
    doctor = live.start(rqsched_command("doctor", "-o", "json"))
    assert doctor.wait() == 1
    assert "Workers of another database take jobs of this one" in doctor.log()
