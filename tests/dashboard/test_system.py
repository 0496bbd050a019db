"""Workers and queues: rates, latencies and repairs, and the view of some namespaces."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import pytest
from rq import Queue, Worker
from rq.job import Job
from rq.version import VERSION

import rqsched
from rqsched import Cron
from rqsched.dashboard.rendering import NOTHING
from rqsched.kernel.decide.ids import RunJobId
from rqsched.kernel.transport import telemetry
from tests.support.env import HOUR, MINUTE, SECOND, run_job_id
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.web import MakeWeb, one_token

SECRET = "tenant-secret-0123456789"
TOKENS = one_token(SECRET, "read", namespaces=["tenant"])


def cells(page: str, name: str) -> list[str]:
    """The texts of the table row whose first cell is `name`."""
    (row,) = [
        row
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
        if re.match(rf"\s*<td[^>]*>{re.escape(name)}</td>", row)
    ]
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]


@pytest.mark.every_database
def test_each_queue_shows_the_rate_and_latency_of_its_last_hour(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("letters", queue="letters", overlap="allow_all")
    for _ in range(3):
        env.tick(MINUTE)
        env.advance(2 * SECOND)
        env.execute_pending()
    env.create("old", queue="old").trigger()
    env.execute_pending()
    env.advance(HOUR // 2)
    env.create("later", queue="letters").trigger()
    name, waiting, _, arriving, done, median, _, failed, enough, workers = cells(any_pages.get("/system"), "letters")
    assert (name, waiting, median, failed, workers) == ("letters", "1", "4.0 s", "0", "none")
    assert (arriving, done, enough) == ("4 / h", "3 / h", "too few: no worker listens")
    env.advance(HOUR + SECOND)
    assert cells(any_pages.get("/system"), "letters")[3] == NOTHING


def test_repairs_are_told_in_words_and_dispatchers_with_version_and_heartbeat(pages: Pages) -> None:
    env = pages.env
    shown = pages.get("/system")
    assert "Nothing had to be repaired." in shown
    env.create("nightly")
    env.redis.flushall()
    env.recover()
    telemetry.DispatcherHeartbeat(env.redis, env.transport.control.name, env.runtime.now).send()
    shown = pages.get("/system")
    assert "<dt>Fires put into redis again</dt><dd>1</dd>" in shown
    assert cells(shown, env.transport.control.name)[-1] == "dispatchers"
    (live,) = telemetry.live_dispatchers(env.redis, env.transport.control.name)
    assert cells(shown, live.name)[3] == live.version != ""
    assert live.silent_for < telemetry.EXPIRY


def busy_worker(pages: Pages, name: str, queues: list[str], job_id: str) -> None:
    """A worker that is registered in Redis, and its executions."""
    worker = Worker(queues, connection=pages.env.redis, name=name)
    worker.register_birth()
    worker.set_state("busy")
    job = Job.fetch(job_id, connection=worker.connection)
    worker.prepare_execution(job)
    worker.prepare_job_execution(job)  # RQ 2 shows the job of a worker only then


def test_workers_show_the_version_of_rqsched_or_that_they_are_of_rq_alone(pages: Pages) -> None:
    redis = pages.env.redis
    for name in ("ours", "plain"):
        Worker(["letters"], connection=redis, name=name).register_birth()
    telemetry.show_worker_version(redis, "rq:worker:ours")
    shown = pages.get("/system")
    assert cells(shown, "ours")[-1] == f"{rqsched.__version__} RQ {VERSION}"
    assert cells(shown, "plain")[-1] == f"RQ {VERSION}"


@pytest.mark.every_database
def test_workers_show_host_process_and_what_they_execute_with_a_link_targets_too(any_pages: Pages) -> None:
    env = any_pages.env
    env.register("mail", print)
    env.register("customers", lambda: ["ada@example.org", "bob@example.org"])
    run = present(env.create("letters", workflow="mail", targets="customers").trigger().run)
    env.perform(run_job_id(run))
    plain = present(env.create("nightly").trigger().run)
    (target, *_) = [id_ for id_ in env.queued() if id_.startswith("target-")]
    busy_worker(any_pages, "host-1", ["default"], run_job_id(plain))
    busy_worker(any_pages, "host-2", ["default"], target)
    shown = any_pages.get("/system")
    assert f"{socket.gethostname()} pid {os.getpid()}" in " ".join(cells(shown, "host-1"))
    assert cells(shown, "default")[3:5] == ["4 / h", "0 / h"], "two runs and two targets came"
    assert re.search(rf'href="/runs/{plain.uid}">nightly #1</a>', shown)
    assert re.search(rf'href="/runs/{run.uid}">ada@example.org of letters</a>', shown)


def test_a_viewer_of_one_namespace_sees_its_queues_and_runs_alone(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS))
    env = pages.env
    others = env.create("secret-plan", queue="shared").trigger().run
    env.create("hidden", queue="elsewhere").trigger()
    own = env.create("mine", queue="shared", namespace="tenant").trigger().run
    assert others is not None
    assert own is not None
    Queue("elsewhere", connection=env.redis).enqueue("time.time", job_id="a-job-of-somebody")
    busy_worker(pages, "host-1", ["shared", "private"], str(RunJobId(others.uid, 1, 1)))
    busy_worker(pages, "host-2", ["shared"], str(RunJobId(own.uid, 1, 1)))
    busy_worker(pages, "host-3", ["elsewhere"], "a-job-of-somebody")
    tenant = pages.web
    tenant.headers["authorization"] = f"Bearer {SECRET}"
    shown = pages.get("/system?namespace=tenant")
    assert cells(shown, "shared")[:2] == ["shared", "1"]
    assert cells(shown, "host-1")[2:5:2] == ["shared", "something else"]
    assert cells(shown, "host-2")[4] == "mine #1"
    assert f"pid {os.getpid()}" not in shown
    for secret in ("secret-plan", "elsewhere", "private", "host-3", "a-job-of-somebody", others.uid, "Repairs made"):
        assert secret not in shown
    front = pages.get("/?namespace=tenant")
    assert "elsewhere" not in front


def test_a_viewer_of_one_namespace_is_told_of_its_own_waits_and_long_runs_alone(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS))
    env = pages.env
    waits = env.create("secret-plan", queue="elsewhere", spec=Cron("0 2 1 * *"), overlap="allow_all")
    for _ in range(3):
        waits.trigger()
    env.claim(present(env.create("secret-long").trigger().run))
    Worker(["shared"], connection=env.redis, name="host-1").register_birth()
    env.advance(HOUR)
    pages.web.headers["authorization"] = f"Bearer {SECRET}"
    for path in ("/?namespace=tenant", "/runs?namespace=tenant&status=running", "/audit?namespace=tenant"):
        shown = pages.get(path)
        for secret in ("secret", "elsewhere", "Jobs wait for a worker", "running for too long"):
            assert secret not in shown, (path, secret)
    env.create("mine", queue="ours", spec=Cron("0 2 1 * *"), namespace="tenant").trigger()
    env.claim(present(env.create("my-long", namespace="tenant").trigger().run))
    env.advance(HOUR)
    shown = pages.get("/?namespace=tenant")
    assert "Jobs wait for a worker" in shown
    assert "1 schedule is running for too long" in shown
    for secret in ("secret", "elsewhere"):
        assert secret not in shown


def test_a_viewer_of_one_namespace_is_told_that_redis_is_full_for_its_schedules_do_not_fire(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS))
    redis: Any = pages.env.redis
    pages.env.create("mine", namespace="tenant")
    pages.web.headers["authorization"] = f"Bearer {SECRET}"
    policy, limit = (redis.config_get(name)[name] for name in ("maxmemory-policy", "maxmemory"))
    try:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 1)
        assert "Redis refuses what it is asked (OOM)" in pages.get("/?namespace=tenant")
    finally:
        redis.config_set("maxmemory", limit)
        redis.config_set("maxmemory-policy", policy)
    assert "Redis refuses" not in pages.get("/?namespace=tenant")
