"""RQ's own tools show our jobs with a description, `meta`, and a function for each workflow."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from rq.job import Job
from rq.utils import import_attribute

from rqsched import jobs
from rqsched.features.fan_out.dispatch import fan_out
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.decide.ids import derived_uid, iso_utc, new_uid
from rqsched.kernel.transport.job_label import function_of
from tests.support.env import MINUTE, ONCE, Env, MakeEnv, link_id, run_job_id
from tests.support.narrow import present

NAMES = {
    "invoice-sync": "invoice-sync",
    "billing.jobs.sync": "billing.jobs.sync",
    "billing.jobs:Sync": "billing.jobs:Sync",
    "_private": "_private",
    "Rechnungsläufe.abgleich": "Rechnungsläufe.abgleich",
    "請求書": "請求書",
    "two words": "two%20words",
    "100%": "100%25",
    "a\nb": "a%0Ab",
    "a/b?c#d": "a%2Fb%3Fc%23d",
    ".hidden": "%2Ehidden",
    "end.": "end%2E",
    "a..b": "a.%2Eb",
    "...": "%2E%2E%2E",
    "€ 5": "%E2%82%AC%205",
    "\ud800": "%ED%A0%80",
}


def test_the_function_of_a_workflow_is_its_name_below_one_prefix() -> None:
    assert {name: function_of(name).removeprefix("rqsched.jobs.workflow.") for name in NAMES} == NAMES


def test_rq_imports_the_function_of_every_workflow_as_the_one_that_executes() -> None:
    found = {name: import_attribute(function_of(name)) for name in NAMES}
    assert [name for name, function in found.items() if function is not jobs.execute] == []


def test_nothing_else_in_the_module_is_made_up() -> None:
    for name in ("workflow", "workflow.", "workflows.a", "perform"):
        with pytest.raises(AttributeError, match=name):
            getattr(jobs, name)


def test_a_run_job_says_what_it_is(env: Env) -> None:
    env.register("invoice-sync", lambda *_: None)
    run = env.fire_next(env.create("nightly", workflow="invoice-sync", args=["secret"]))

    job = env.job(run_job_id(run))

    assert (job.description, job.func_name) == ("nightly: invoice-sync", "rqsched.jobs.workflow.invoice-sync")
    assert job.meta == {
        "schedule": "nightly",
        "namespace": "default",
        "occurrence": iso_utc(run.occurrence_at),
        "attempt": 1,
        "run": run.uid,
        "database": env.runtime.ownership.database_id(),
    }
    assert job.args == []
    stored: Any = env.redis.hgetall(f"rq:job:{job.id}")
    assert b"secret" not in b"".join(stored.values()), "only names travel"


def test_the_job_of_a_retry_names_its_attempt(env: Env) -> None:
    env.failing = True
    run = env.run_next(env.create())
    assert run.status == "retrying"
    env.advance(10 * MINUTE)
    while env.dispatch():
        pass

    assert env.job(run_job_id(run.refresh())).meta["attempt"] == 2


def test_a_job_that_is_delivered_again_is_named_as_the_first_one_was(env: Env) -> None:
    run = env.fire_next(env.create("nightly"))
    before = env.job(run_job_id(run)).meta
    env.redis.delete("rq:queue:default", f"rq:job:{run_job_id(run)}")
    env.advance()

    assert recover(env.runtime).deliveries == 1

    job = env.job(run_job_id(run.refresh()))
    assert (job.description, job.meta) == ("nightly: note", before)


def test_a_link_has_neither_and_costs_what_it_cost(env: Env) -> None:
    schedule = env.create("nightly")
    hash_key = f"rq:job:{link_id(schedule)}"

    assert env.redis.hget(hash_key, "description") == b"rqsched.jobs.fire"
    assert not env.redis.hexists(hash_key, "meta")
    assert present(env.redis.memory_usage(hash_key, samples=0)) <= 450
    assert env.redis.object("encoding", hash_key) in {b"listpack", b"ziplist"}


@pytest.mark.parametrize(
    ("schedule_id", "workflow"),
    [("nightly", "invoice-sync"), ("daily-invoice-sync-eu-central-1", "billing.jobs.synchronise_invoices")],
)
def test_a_run_job_with_all_of_it_costs_less_than_a_kibibyte(env: Env, schedule_id: str, workflow: str) -> None:
    """The hash is a table, whose size differs by 64 bytes from server to server: its seed is drawn at the start."""
    env.register(workflow, lambda: None)
    run = env.fire_next(env.create(schedule_id, workflow=workflow))

    assert present(env.redis.memory_usage(f"rq:job:{run_job_id(run)}", samples=0)) < 1_024


def test_the_job_of_a_target_is_named_as_its_run(env: Env) -> None:
    schedule = env.create("nightly")
    run = env.fire_next(schedule)
    env.work()
    batch = Batch(run.uid, "note", run.occurrence_at, timeout=60, schedule_uid=schedule.uid)

    fan_out(env.runtime, batch, [["a"]])

    job = env.job(f"target-{derived_uid(run.occurrence_at, run.uid, 'a')}")
    assert (job.description, job.func_name) == ("nightly: note", "rqsched.jobs.workflow.note")
    assert job.meta == {
        "schedule": "nightly",
        "namespace": "default",
        "occurrence": iso_utc(run.occurrence_at),
        "attempt": 1,
        "run": run.uid,
        "database": env.runtime.ownership.database_id(),
    }


def test_the_job_of_a_target_that_is_enqueued_again_is_named_too(env: Env) -> None:
    schedule = env.create("nightly")
    run = env.fire_next(schedule)
    env.work()
    fan_out(env.runtime, Batch(run.uid, "note", run.occurrence_at, timeout=60, schedule_uid=schedule.uid), [["a"]])
    env.redis.flushall()
    env.advance()

    recover(env.runtime)

    assert env.job(f"target-{derived_uid(run.occurrence_at, run.uid, 'a')}").meta["schedule"] == "nightly"


def test_the_job_of_a_target_of_a_fan_out_by_hand_names_its_workflow(env: Env) -> None:
    run_uid, now = new_uid(env.clock.now()), env.clock.now()

    fan_out(env.runtime, Batch(run_uid, "note", now, timeout=60), [["a"]])

    job = env.job(f"target-{derived_uid(now, run_uid, 'a')}")
    assert (job.description, job.func_name) == ("note", "rqsched.jobs.workflow.note")
    assert job.meta == {"run": run_uid, "database": env.runtime.ownership.database_id()}


def test_what_is_shown_is_written_with_the_serializer_of_the_queue(make_env: MakeEnv) -> None:
    env = make_env(serializer="json")
    run = env.fire_next(env.create("nightly"))

    stored: Any = env.redis.hgetall(f"rq:job:{run_job_id(run)}")

    assert json.loads(zlib.decompress(stored[b"data"])) == ["rqsched.jobs.workflow.note", None, [], {}]
    assert json.loads(stored[b"meta"])["schedule"] == "nightly"


def test_a_job_as_earlier_builds_wrote_it_is_executed(env: Env) -> None:
    """Such a job has only the function `rqsched.jobs.execute`, without a label."""
    run = env.fire_next(env.create())
    job = env.job(run_job_id(run))
    plain = env.runtime.transport.control.create_job("rqsched.jobs.execute", job_id=job.id)
    env.redis.hset(f"rq:job:{job.id}", "data", plain.to_dict()["data"])
    env.redis.hdel(f"rq:job:{job.id}", "meta", "description")

    env.work()

    assert run.refresh().status == "succeeded"


def test_a_worker_that_does_not_know_the_function_fails_the_job_alone_and_the_run_is_delivered_again(env: Env) -> None:
    """A build from before workflows had their own functions does so during a rolling deploy."""
    run = env.fire_next(env.create())
    key = f"rq:job:{run_job_id(run)}"
    unknown = env.runtime.transport.control.create_job("rqsched.jobs.unknown_function", job_id="x")
    env.redis.hset(key, "data", unknown.to_dict()["data"])
    env.work()
    assert (run.refresh().status, run.attempt) == ("pending", 1)
    assert "unknown_function" in present(present(env.job(run_job_id(run)).latest_result()).exc_string)
    env.advance()

    env.recover()
    env.work()

    assert (run.refresh().status, run.attempt, run.state.delivery) == ("succeeded", 1, 2)


def test_rq_keeps_the_result_of_a_run_where_the_setting_asks(make_env: MakeEnv) -> None:
    env = make_env(rq_result_ttl=60)
    env.register("sum", lambda: {"rows": 3, "names": ("a", "b")})
    run = env.run_next(env.create(workflow="sum"))

    job = env.job(run_job_id(run))

    assert job.return_value() == run.result == {"rows": 3, "names": ["a", "b"]}


@pytest.mark.parametrize("serializer", ["pickle", "json"])
def test_a_result_that_no_serializer_writes_is_kept_as_sql_shows_it(make_env: MakeEnv, serializer: str) -> None:
    env = make_env(rq_result_ttl=60, serializer=serializer)
    env.register("odd", lambda: {1, 2} | {(lambda: None).__name__})
    run = env.fire_next(env.create(workflow="odd"))

    env.work(serializer=serializer)

    assert run.refresh().status == "succeeded"
    assert env.job(run_job_id(run)).return_value() == run.result
    assert isinstance(run.result, str)


def test_rq_keeps_no_result_by_default(env: Env) -> None:
    run = env.run_next(env.create())

    assert run.result == 1
    assert env.redis.keys(f"rq:*{run_job_id(run)}*") == []


def test_the_exception_of_a_run_that_failed_is_where_rq_keeps_them(env: Env) -> None:
    env.failing = True
    run = env.run_next(env.create(retry=ONCE))
    assert run.status == "failed"

    job: Job = env.job(run_job_id(run))

    assert "RuntimeError: as the test wants it" in present(present(job.latest_result()).exc_string)
    assert job.is_failed
