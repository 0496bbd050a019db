"""Serializers: links and run jobs are written as the workers of their queue read them."""

from __future__ import annotations

import json
import zlib

import pytest
from rq.job import Job
from rq.serializers import DefaultSerializer, JSONSerializer

from rqsched import jobs
from tests.support.env import Env, MakeEnv, link_id, newest, run_job_id, statuses
from tests.support.narrow import present

SERIALIZERS = {"pickle": DefaultSerializer, "json": JSONSerializer, "rq.serializers.JSONSerializer": JSONSerializer}


def chain(env: Env, serializer: str) -> str:
    """A link is performed by a worker of this serializer and then its run; gives the run's status."""
    schedule = env.create(args=["ü", {"a": [1]}])
    env.advance()
    env.redis.zrem(env.transport.scheduled_key, link_id(schedule))
    env.redis.rpush("rq:queue:rqsched", link_id(schedule))
    env.work("rqsched", serializer=serializer)
    env.work(serializer=serializer)
    return newest(schedule).status


@pytest.mark.parametrize("name", SERIALIZERS)
def test_workers_read_what_is_written_with_their_serializer(make_env: MakeEnv, name: str) -> None:
    env = make_env(serializer=name)

    assert chain(env, name) == "succeeded"

    assert env.calls == [(("ü", {"a": [1]}), {})], "what the workflow gets comes from SQL: no serializer touches it"


def test_json_links_hold_json(make_env: MakeEnv) -> None:
    env = make_env(serializer="json")
    schedule = env.create()

    data = env.redis.hget(f"rq:job:{link_id(schedule)}", "data")

    assert isinstance(data, bytes)
    assert json.loads(zlib.decompress(data)) == ["rqsched.jobs.fire", None, [], {}]


def test_each_queue_may_have_a_serializer_of_its_own(make_env: MakeEnv) -> None:
    env = make_env(serializer="json", queue_serializers={"legacy": "pickle"})
    modern, legacy = env.create("modern"), env.create("legacy", queue="legacy")
    env.advance()
    env.deliver(modern, legacy)

    read = {
        "modern": Job.fetch(run_job_id(newest(modern)), connection=env.redis, serializer=JSONSerializer),
        "legacy": Job.fetch(run_job_id(newest(legacy)), connection=env.redis, serializer=DefaultSerializer),
    }
    assert [job.func for job in read.values()] == [jobs.execute, jobs.execute]
    env.work("legacy", serializer="pickle")
    env.work(serializer="json")
    assert (statuses(modern), statuses(legacy)) == (["succeeded"], ["succeeded"])


def test_a_worker_with_the_other_serializer_does_not_lose_the_run(make_env: MakeEnv) -> None:
    """RQ cannot read the job and fails it; SQL still owes the run, so reconcile delivers it to a worker that can."""
    env = make_env(serializer="json")
    schedule = env.create(spec="0 * * * *")
    run = env.fire_next(schedule, present(schedule.next_run_at) - env.clock.now())

    env.work(serializer="pickle")
    assert run.refresh().status == "pending"
    env.advance(env.scheduler.settings.repair_grace)
    env.recover()
    env.work(serializer="json")

    assert (run.refresh().status, run.state.delivery) == ("succeeded", 2)
