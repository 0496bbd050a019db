"""Work horses of runners, for jobs that are not ours: they inherit nothing of the runs that were executed beside."""

from __future__ import annotations

import os
import time

import psutil
import pytest
from redis import Redis
from rq import Queue, Worker
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus

from tests.support.narrow import present
from tests.support.processes import SOON, is_gone, wait_until
from tests.system.acceptance.forking import LINGER, take_lock
from tests.system.acceptance.live import LATER, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


def test_a_job_that_is_not_ours_has_a_work_horse_that_can_be_stopped_while_its_runner_lives(live: LiveEnv) -> None:
    live.start_runners(1)
    run = live.run_now("now")
    runner = live.executor_of(run)
    redis = live.redis
    job = Queue("default", connection=redis).enqueue(time.sleep, 300)
    wait_until(lambda: job.get_status() is JobStatus.STARTED, timeout=SOON, what="its start")
    [horse] = wait_until(lambda: horses(redis), timeout=SOON, what="a work horse")

    send_stop_job_command(redis, job.id)

    wait_until(lambda: job.get_status() is JobStatus.STOPPED, timeout=SOON, what="a stopped job")
    assert is_gone(horse)
    second = Queue("default", connection=redis).enqueue(os.getpid)
    wait_until(lambda: second.get_status() is JobStatus.FINISHED, timeout=SOON, what="the job after it")
    assert second.return_value() not in {None, runner.pid}
    assert not is_gone(runner)


def linger(live: LiveEnv) -> psutil.Process:
    """Have a run that leaves a thread with a lock in its runner; returns that."""
    run = live.run_now("linger", LINGER)
    live.wait_for_status(run, "succeeded")
    return live.executor_of(run)


def wait_for_result(job: Job) -> object:
    wait_until(lambda: job.get_status() is JobStatus.FINISHED, timeout=SOON, what=f"the end of {job}")
    return job.return_value()


def test_jobs_that_are_not_ours_inherit_no_lock_that_a_run_has_left_held(live: LiveEnv) -> None:
    live.environment["RQSCHED_IMPORTS"] = "tests.system.acceptance.forking"
    live.start_runners(1)
    runner = linger(live)

    jobs = [Queue("default", connection=live.redis).enqueue(take_lock) for _ in range(3)]

    pids = [wait_for_result(job) for job in jobs]

    assert len({*pids, runner.pid}) == 4
    assert not is_gone(runner)
    assert live.executor_of(live.run_now("again")) == runner


def test_a_runner_whose_process_for_work_horses_has_died_leaves_the_next_job_to_its_successor(live: LiveEnv) -> None:
    live.environment["RQSCHED_IMPORTS"] = "tests.system.acceptance.forking"
    worker = live.start_runners(1)
    runner = linger(live)
    [starter] = runner.children()

    starter.kill()
    wait_until(lambda: is_gone(starter), timeout=SOON, what="its end")

    assert wait_for_result(Queue("default", connection=live.redis).enqueue(take_lock)) != runner.pid
    assert live.redis.llen("rq:queue:default:intermediate") == 0
    wait_until(lambda: is_gone(runner), timeout=SOON, what="the runner's end")
    assert "the process that forks work horses has died" in worker.log()


def test_a_job_whose_work_horse_outlives_the_process_that_forked_it_fails_and_the_horse_ends(live: LiveEnv) -> None:
    live.start_runners(1)
    job = Queue("default", connection=live.redis).enqueue(time.sleep, 300)
    wait_until(lambda: job.get_status() is JobStatus.STARTED, timeout=SOON, what="its start")
    [horse] = wait_until(lambda: horses(live.redis), timeout=SOON, what="a work horse")

    horse.parent().kill()

    wait_until(lambda: job.get_status() is JobStatus.FAILED, timeout=SOON, what="a failed job")
    assert is_gone(horse)


def horses(redis: Redis) -> list[psutil.Process]:
    """The work horses of runners' jobs that are not ours: children of the child that each runner has."""
    runners = [psutil.Process(present(worker.pid)) for worker in Worker.all(connection=redis)]
    return [horse for runner in runners for starter in runner.children() for horse in starter.children()]


def test_a_run_whose_runner_died_after_another_jobs_work_horse_was_stopped_is_attempted_again(live: LiveEnv) -> None:
    live.start_runners(1)
    job = Queue("default", connection=live.redis).enqueue(time.sleep, 300)
    wait_until(lambda: job.get_status() is JobStatus.STARTED, timeout=SOON, what="its start")
    send_stop_job_command(live.redis, job.id)
    wait_until(lambda: job.get_status() is JobStatus.STOPPED, timeout=SOON, what="a stopped job")
    run = live.hold_now(retry=LATER)

    live.executor_of(run).kill()

    live.wait_for_status(run, "retrying", timeout=SOON)
    live.check()
