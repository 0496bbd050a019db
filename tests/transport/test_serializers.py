"""Serializers: links and run jobs are written as the workers of their queue read them."""

from __future__ import annotations

import json
import zlib

import pytest
from rq.job import Job
from rq.serializers import DefaultSerializer, JSONSerializer

from rqsched import jobs
from tests.chain.conftest import MakeRig
from tests.support.narrow import present
from tests.support.rig import Rig, link_id, newest, run_job_id, statuses

SERIALIZERS = {"pickle": DefaultSerializer, "json": JSONSerializer, "rq.serializers.JSONSerializer": JSONSerializer}


def chain(rig: Rig, serializer: str) -> str:
    """A link is performed by a worker of this serializer and then its run; gives the run's status."""
    schedule = rig.create(args=["ü", {"a": [1]}])
    rig.advance()
    rig.redis.zrem(rig.transport.scheduled_key, link_id(schedule))
    rig.redis.rpush("rq:queue:rqsched", link_id(schedule))
    rig.work("rqsched", serializer=serializer)
    rig.work(serializer=serializer)
    return newest(schedule).status


@pytest.mark.parametrize("name", SERIALIZERS)
def test_workers_read_what_is_written_with_their_serializer(make_rig: MakeRig, name: str) -> None:
    rig = make_rig(serializer=name)

    assert chain(rig, name) == "succeeded"

    assert rig.calls == [(("ü", {"a": [1]}), {})], "what the workflow gets comes from SQL: no serializer touches it"


def test_json_links_hold_json(make_rig: MakeRig) -> None:
    rig = make_rig(serializer="json")
    schedule = rig.create()

    data = rig.redis.hget(f"rq:job:{link_id(schedule)}", "data")

    assert isinstance(data, bytes)
    assert json.loads(zlib.decompress(data)) == ["rqsched.jobs.fire", None, [], {}]


def test_each_queue_may_have_a_serializer_of_its_own(make_rig: MakeRig) -> None:
    rig = make_rig(serializer="json", queue_serializers={"legacy": "pickle"})
    modern, legacy = rig.create("modern"), rig.create("legacy", queue="legacy")
    rig.advance()
    rig.fire(modern, legacy)

    read = {
        "modern": Job.fetch(run_job_id(newest(modern)), connection=rig.redis, serializer=JSONSerializer),
        "legacy": Job.fetch(run_job_id(newest(legacy)), connection=rig.redis, serializer=DefaultSerializer),
    }
    assert [job.func for job in read.values()] == [jobs.execute, jobs.execute]
    rig.work("legacy", serializer="pickle")
    rig.work(serializer="json")
    assert (statuses(modern), statuses(legacy)) == (["succeeded"], ["succeeded"])


def test_a_worker_with_the_other_serializer_does_not_lose_the_run(make_rig: MakeRig) -> None:
    """RQ cannot read the job and fails it; SQL still owes the run, so reconcile delivers it to a worker that can."""
    rig = make_rig(serializer="json")
    schedule = rig.create(spec="0 * * * *")
    run = rig.occur(schedule, present(schedule.next_run_at) - rig.clock.now())

    rig.work(serializer="pickle")
    assert run.refresh().status == "pending"
    rig.advance(rig.scheduler.settings.grace)
    rig.recover()
    rig.work(serializer="json")

    assert (run.refresh().status, run.state.delivery) == ("succeeded", 2)
