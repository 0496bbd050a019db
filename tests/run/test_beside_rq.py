"""Assumptions of applications that come from RQ's own workers: jobs, clients, and bursts that end soon."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import rq
from redis import BlockingConnectionPool, Redis
from redis.sentinel import Sentinel
from rq import Queue, get_current_job
from rq.job import Job

import rqsched.rq
from rqsched import Every
from rqsched.kernel.transport.client import own_client
from rqsched.kernel.transport.telemetry import PASSES, read_passes
from rqsched.run.rq_commands import CommandListener
from rqsched.run.rq_worker import make_run_worker_class
from rqsched.run.runner import make_runner_class
from rqsched.run.runner_slot import Slot
from rqsched.run.supervisor import FORK, Progress
from rqsched.run.work_horse import wait_for_end
from rqsched.run.worker import make_one_pass
from tests.support.children import in_children
from tests.support.env import DAY, HOUR, QUEUE, Env
from tests.support.processes import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class OwnJob(Job):
    """A job class of an application."""


class Forking(make_run_worker_class(rq.Worker)):  # type: ignore[misc]
    """The worker of `rqsched worker` that forks."""


class InProcess(rqsched.rq.SimpleWorker):
    """A worker without its dispatcher."""

    def work(self, *arguments: Any, **options: Any) -> bool:
        return rq.SimpleWorker.work(self, *arguments, **options)


def compare_job() -> tuple[bool, ...]:
    """Compare the job that is performed with the same job as anybody fetches it."""
    current = get_current_job()
    assert current is not None
    fetched = type(current).fetch(current.id, connection=current.connection)
    return (fetched == current, current == fetched, current in {fetched}, fetched in {current}, current in [fetched])


def name_class() -> str:
    return type(get_current_job()).__name__


def name_processes() -> list[str]:
    """Name the processes below this job's worker, beside this one."""
    worker = psutil.Process(os.getppid())
    return [" ".join(one.cmdline()) for one in worker.children(recursive=True) if one.pid != os.getpid()]


def result_of(env: Env, kind: type[Any], function: Callable[[], Any], **options: Any) -> Any:
    """Perform a job of an application in a burst of a worker; returns its result."""
    redis = env.redis
    queue = Queue(QUEUE, connection=redis, job_class=options.get("job_class", Job))
    job = queue.enqueue(function)
    work = {name: options.pop(name) for name in list(options) if name == "with_scheduler"}

    def burst() -> None:
        kind([queue], connection=redis, **options).work(burst=True, logging_level="CRITICAL", **work)

    in_children(1, burst)
    return job.return_value(refresh=True)


@pytest.mark.parametrize("kind", [Forking, InProcess])
@pytest.mark.parametrize("job_class", [Job, OwnJob])
def test_job_is_equal_to_itself_in_its_own_function(env: Env, kind: type[Any], job_class: type[Job]) -> None:
    assert result_of(env, kind, compare_job, job_class=job_class) == (True,) * 5
    assert result_of(env, kind, name_class, job_class=job_class) == job_class.__name__


@pytest.mark.parametrize("base", [make_runner_class(rq.Worker), rqsched.rq.Worker, rqsched.rq.SpawnWorker])
def test_worker_takes_jobs_of_the_class_that_it_was_given(redis: Redis, base: type[Any]) -> None:
    assert base([QUEUE], connection=redis).job_class is Job
    assert base([QUEUE], connection=redis, job_class=OwnJob).job_class is OwnJob


def plain(url: str) -> Redis:
    return Redis.from_url(url, socket_timeout=90)


def blocking(url: str) -> Redis:
    return Redis(connection_pool=BlockingConnectionPool.from_url(url, max_connections=2))


@pytest.mark.parametrize("make", [plain, blocking])
@pytest.mark.parametrize("is_given_queues", [True, False])
def test_worker_leaves_the_client_of_an_application_as_it_is(
    redis_url: str, make: Callable[[str], Redis], is_given_queues: bool
) -> None:
    with make(redis_url) as redis:
        redis.ping()
        pool: Any = redis.connection_pool
        open_before, before = pool.get_connection(), dict(pool.connection_kwargs)
        pool.release(open_before)
        queues = [Queue(QUEUE, connection=redis)] if is_given_queues else [QUEUE]

        worker = rqsched.rq.Worker(queues, connection=redis)
        worker.register_birth()  # type: ignore[no-untyped-call]
        worker.register_death()  # type: ignore[no-untyped-call]

        assert pool.connection_kwargs == before
        assert pool.get_connection() is open_before, "a connection that was open stays open"
        assert {queue.connection is worker.connection for queue in worker.queues} == {True}
        assert worker.connection.connection_pool is not pool
        assert worker.connection.ping()


def test_options_of_a_client_that_can_be_pickled_can_be_pickled_after_a_worker_had_it(redis_url: str) -> None:
    with plain(redis_url) as redis:
        options = redis.connection_pool.connection_kwargs
        for name in list(options):  # what this version of redis-py itself puts there
            try:
                pickle.dumps(options[name])
            except TypeError:
                del options[name]

        rqsched.rq.Worker([QUEUE], connection=redis)

        assert pickle.loads(pickle.dumps(options)).keys() == options.keys()


def test_client_behind_sentinels_is_copied_with_its_sentinels() -> None:
    sentinels = Sentinel([("one", 26379)], sentinel_kwargs={"password": "p"}, password="secret", db=2)
    given: Any = sentinels.master_for("mymaster").connection_pool
    asked = sentinels.sentinels[0].connection_pool
    before, asked_before = dict(given.connection_kwargs), dict(asked.connection_kwargs)

    own: Any = own_client(Redis(connection_pool=given)).connection_pool

    assert (given.connection_kwargs, asked.connection_kwargs) == (before, asked_before)
    assert own.connection_kwargs["connection_pool"] is not given.connection_kwargs["connection_pool"]
    assert (own.service_name, own.connection_kwargs["db"], own.connection_kwargs["password"]) == (
        "mymaster",
        2,
        "secret",
    )
    (copied,) = own.sentinel_manager.sentinels
    assert copied.connection_pool is not asked
    assert copied.connection_pool.connection_kwargs["password"] == "p"


def test_burst_starts_no_process_of_rqs_scheduler(env: Env) -> None:
    assert result_of(env, Forking, name_processes, with_scheduler=True) == []


@pytest.mark.parametrize("keeps_scheduler", [True, False])
def test_listener_of_a_burst_starts_no_process_of_rqs_scheduler(env: Env, *, keeps_scheduler: bool) -> None:
    progress, queues = Progress(), [Queue(QUEUE, connection=env.redis)]
    listener = CommandListener(env.redis, queues, [Slot("one")], progress, keeps_scheduler=keeps_scheduler)
    process = FORK.Process(target=listener.run)
    process.start()
    assert process.pid is not None
    try:
        wait_until(lambda: progress.turns > 1, what="its second turn")
        assert len(psutil.Process(process.pid).children()) == keeps_scheduler
    finally:
        process.terminate()
        process.join()


def test_burst_makes_a_pass_only_where_something_can_be_due(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", env.runtime.settings.database_url or "")
    monkeypatch.setenv("RQSCHED_REDIS_URL", env.runtime.redis_url)

    def passes_after_burst() -> float:
        make_one_pass(env.runtime)
        return read_passes(env.redis, env.transport.control.name).get(PASSES, 0)

    assert passes_after_burst() == 0, "there is no schedule"
    env.create(spec=Every(HOUR))
    assert passes_after_burst() == 1, "no pass was made before"
    assert passes_after_burst() == 1, "one was made just now"
    env.advance(365 * DAY)
    assert passes_after_burst() == 2, "a link is due"
    env.transport.ask_for_pass()
    assert passes_after_burst() == 3, "the last pass is old"


def test_worker_waits_for_no_process_but_its_own_children() -> None:
    wait_for_end(os.getppid(), dict, lambda: pytest.fail("it waits"))
