"""The Redis commands of a forking worker for a run, compared with those of RQ's own worker for a job."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
from rq import Queue, Worker
from rq.job import Job

from rqsched.kernel.chain.runtime import using
from rqsched.kernel.decide.ids import new_uid
from rqsched.run.rq_worker import PatientWorker, make_run_worker_class, make_worker
from tests.support.children import in_children
from tests.support.env import ONCE, Env

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class JobOfApplication(Job):
    """A job class that an application gives to RQ."""


class WorkerOfApplication(Worker):
    """A worker class of an application, which takes its own jobs."""

    job_class = JobOfApplication


def work(env: Env) -> None:
    """Execute the jobs of the queue with a worker that forks."""
    worker = open_worker(env)
    cast("PatientWorker", worker).runtime = env.runtime
    with using(env.runtime):
        worker.work(burst=True, logging_level="CRITICAL")


def open_worker(env: Env, base: type[Worker] = Worker) -> Worker:
    return make_worker(make_run_worker_class(base), env.runtime, [env.runtime.settings.default_queue])


def work_as_rq(env: Env) -> None:
    redis = env.redis
    queue = Queue(env.runtime.settings.default_queue, connection=redis)
    Worker([queue], connection=redis).work(burst=True, logging_level="CRITICAL")


def put_runs(env: Env, count: int) -> None:
    for _ in range(count):
        env.create(new_uid(env.runtime.now())).trigger()


def put_jobs(env: Env, count: int) -> None:
    queue = Queue(env.runtime.settings.default_queue, connection=env.redis)
    for _ in range(count):
        queue.enqueue("time.time", result_ttl=0)


def requests_each(env: Env, put: Any, do: Any) -> float:
    """Return how many requests one more of them sends to Redis."""
    asked = []
    for count in (1, 6):
        put(env, count)
        before = int(env.redis.info("stats")["total_reads_processed"])
        in_children(1, partial(do, env))
        asked.append(int(env.redis.info("stats")["total_reads_processed"]) - before)
    return (asked[1] - asked[0]) / 5


def test_run_of_a_worker_that_forks_sends_fewer_than_two_thirds_of_the_requests_of_rqs_own_job(any_env: Env) -> None:
    ours, theirs = requests_each(any_env, put_runs, work), requests_each(any_env, put_jobs, work_as_rq)

    assert ours < theirs * 2 / 3, (ours, theirs)


def test_job_of_a_run_that_succeeded_leaves_nothing_in_redis(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    in_children(1, partial(work, any_env))

    assert run.refresh().status == "succeeded"
    assert list(any_env.redis.scan_iter(f"*{run.state.uid}*")) == []


@pytest.mark.parametrize(("base", "given"), [(Worker, Job), (WorkerOfApplication, JobOfApplication)])
def test_job_class_of_a_worker_is_the_one_that_was_given(env: Env, base: type[Worker], given: type[Job]) -> None:
    assert open_worker(env, base).job_class is given


def test_failed_job_of_a_run_that_failed_stays_where_rq_keeps_failed_jobs(any_env: Env) -> None:
    any_env.failing = True
    run = any_env.fire_next(any_env.create(retry=ONCE))
    in_children(1, partial(work, any_env))

    queue = Queue(any_env.runtime.settings.default_queue, connection=any_env.redis)
    assert run.refresh().status == "failed"
    assert [run.state.uid in name for name in queue.failed_job_registry.get_job_ids()] == [True]
