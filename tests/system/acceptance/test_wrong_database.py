"""Two plain workers on one queue, one of them with another database: no run is swallowed, and the fault is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis
from rq.registry import FailedJobRegistry

from rqsched import Every, RetryPolicy, Scheduler
from tests.support.processes import Process, rq_worker_command, rqsched_command, wait_until
from tests.system.acceptance.live import LiveEnv

RUNS = 12


def start_worker_elsewhere(live: LiveEnv, folder: Path) -> Process:
    """A plain worker of the same Redis and queue whose database URL is another one."""
    live.scheduler.recover()  # the Redis is in use: whoever reconciles first owns it
    url, redis_url = f"sqlite:///{folder / 'elsewhere.db'}", live.environment["RQSCHED_REDIS_URL"]
    Scheduler(database_url=url, redis_url=redis_url).close()
    return live.start(rq_worker_command(redis_url, "default"), RQSCHED_DATABASE_URL=url)


@pytest.mark.acceptance
@pytest.mark.timeout(240)
def test_runs_survive_a_worker_with_another_database_until_it_is_ended(live: LiveEnv, tmp_path: Path) -> None:
    wrong = start_worker_elsewhere(live, tmp_path)
    live.start_worker()
    once = RetryPolicy(max_retries=0)
    schedules = [live.note_every(f"note-{number}", Every("24h"), retry=once) for number in range(RUNS)]
    runs = [schedule.trigger().run for schedule in schedules]

    # Redis gives a job to who has waited longest, which the wrong one may be for ever: it is told, and is ended.
    wrong.wait_for_log("Set RQSCHED_DATABASE_URL of this worker", timeout=60)
    wrong.terminate(timeout=60)
    wait_until(
        lambda: all(run is not None and run.refresh().status == "succeeded" for run in runs),
        timeout=180,
        what="all runs to succeed",
    )

    live.check()
    assert [run.attempt for run in runs if run is not None] == [1] * RUNS


@pytest.mark.acceptance
@pytest.mark.timeout(240)
def test_a_worker_with_another_database_alone_fails_a_run_in_rqs_registry_and_doctor_names_it(
    live: LiveEnv, tmp_path: Path
) -> None:
    worker = start_worker_elsewhere(live, tmp_path)
    schedule = live.note_every("note", Every("24h"))
    run = schedule.trigger().run
    assert run is not None
    with Redis.from_url(live.environment["RQSCHED_REDIS_URL"]) as redis:
        registry = FailedJobRegistry("default", connection=redis)
        (job,) = wait_until(registry.get_job_ids, timeout=90, what="the job to fail")

    assert run.refresh().status == "pending"
    assert "Set RQSCHED_DATABASE_URL of this worker" in worker.log()
    assert job.startswith(f"run-{run.uid}")
    doctor = live.start(rqsched_command("doctor", "-o", "json"))
    assert doctor.popen.wait(60) == 1
    assert "workers with another database were given jobs of this one" in doctor.log()
