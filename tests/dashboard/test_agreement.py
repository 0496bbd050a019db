"""Every surface shows the same faults: doctor, the first page, the page of workers, metrics and readiness.

Each fault is set up once beside a dispatcher and a worker that live. Doctor reads the real clock, so that of the
environment begins in the past and ends at the present.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from typing import Any, NamedTuple

import pytest
from rq import Queue, Worker

from rqsched import Every, RetryPolicy
from rqsched.features.notifications import store as deliveries
from rqsched.features.notifications.decide import Delivery, DeliveryKind, DeliveryStatus
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.rollback_marks import Mark, parse_mark
from rqsched.kernel.store import metadata
from rqsched.kernel.transport import telemetry
from rqsched.kernel.transport.telemetry import DispatcherHeartbeat
from rqsched.kernel.transport.transport import job_id_of
from rqsched.testing import ManualClock
from tests.support.cli import Cli
from tests.support.env import HOUR, MINUTE, ONCE, SECOND, Env, block
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.servers import ValkeyServer
from tests.support.web import MakeWeb, one_token

QUOTAS = json.dumps({"full": {"schedules": 1}})
SERVERS = {"eviction", "persistence", "links", "failed links", "depth", "events", "versions", "imports", "connections"}
"""Checks of doctor alone: they find causes, and every surface shows the effects."""
RARELY = Every(9 * HOUR)
MARK = metadata.of_queue(metadata.MARK, "rqsched")


class Fault(NamedTuple):
    """A fault, and the report of each surface about it."""

    make: Callable[[Env], object]
    check: str
    """The check of doctor that finds it."""
    level: str
    title: str
    """The card of the first page; empty where none speaks of it."""
    metric: tuple[str, float] | None = None
    """The sample that counts it."""
    namespace: str = "default"


def late(env: Env) -> None:
    env.create("late", Every(MINUTE))


def dead(env: Env) -> None:
    env.failing = True
    env.create("crm", RARELY, retry=RetryPolicy(max_retries=0, then="dead")).trigger()
    env.execute_pending()


def failing(env: Env) -> None:
    env.failing = True
    schedule = env.create("crm", RARELY, retry=ONCE)
    for _ in range(3):
        schedule.trigger()
        env.execute_pending()


def blocked(env: Env) -> None:
    block(env.runtime, present(env.create("billing", RARELY).trigger().run))
    Queue("default", connection=env.redis).empty()  # a worker took its job


def silent(env: Env) -> None:
    env.create("quiet", RARELY, expect_success_within=HOUR)
    env.advance(2 * HOUR)
    env.recover()


def undelivered(env: Env, status: DeliveryStatus) -> None:
    now, uid = env.clock.now(), env.create("told", RARELY).uid
    ended_at = now if status is DeliveryStatus.FAILED else None
    hook, url = DeliveryKind.WEBHOOK, "https://receiver.example/secret"
    one = Delivery(
        new_uid(now), uid, None, hook, url, "RunFailed", "{}", now, now, status, ended_at=ended_at, error="gone"
    )
    env.runtime.database.transact(lambda connection: deliveries.record(connection, [one]))


def waiting_for_sql(env: Env) -> None:
    of_dispatcher = heartbeat(env)
    of_dispatcher.waits_for = "the database does not answer (database or disk is full)"
    of_dispatcher.send()


def deserted(env: Env) -> None:
    env.create("nightly", RARELY, queue="letters").trigger()


def crowded(env: Env) -> None:
    env.create("nightly", RARELY).trigger()
    env.advance(10 * MINUTE)


def endless(env: Env) -> None:
    run = present(env.create("slow", Every(HOUR)).trigger().run)
    present(claim_run(env.runtime, job_id_of(run.state)))
    Queue("default", connection=env.redis).empty()
    env.advance(2.5 * HOUR)
    env.scheduler.tick()


def slow(env: Env) -> None:
    env.claim(present(env.create("slow", RARELY, expect_duration=HOUR).trigger().run))
    env.advance(2 * HOUR)
    env.recover()


def without_dispatcher(env: Env) -> None:
    env.create("nightly", RARELY)
    heartbeat(env).stop()


def foreign_redis(env: Env) -> None:
    env.redis.set(env.transport.database_id_key, "somebody-else")


def foreign_worker(env: Env) -> None:
    now = datetime.now(UTC)
    telemetry.record_foreign_worker(env.redis, env.runtime.ownership.database_id(), "host-7 (rq-1)", now=now)


def restored(env: Env) -> None:
    """SQL is put back to its first mark."""
    known = env.runtime.database.read(lambda connection: metadata.find_value(connection, MARK))
    env.advance(MINUTE)
    env.recover()
    env.runtime.database.transact(lambda connection: metadata.set_value(connection, MARK, present(known)))
    env.advance(MINUTE)
    env.recover()


def copied(env: Env) -> None:
    """A copy of the database goes on from its first mark until now, beside it."""
    known = env.runtime.database.read(lambda connection: metadata.find_value(connection, MARK))
    env.advance(MINUTE)
    env.recover()
    owner, first = env.runtime.ownership.database_id(), parse_mark(present(known))
    ours = present(env.transport.newest_mark(owner))
    assert env.transport.push_mark(owner, str(Mark(new_uid(env.clock.now()), first.uid)), follows=ours)
    env.advance(datetime.now(UTC) - env.clock.now())
    env.recover()


FAULTS = {
    "nothing": Fault(lambda env: env.create("fine", RARELY), "", "ok", "", ("rqsched_late", 0)),
    "a schedule is late": Fault(late, "late", "problem", "1 schedule is late", ("rqsched_late", 1)),
    "a schedule is dead": Fault(
        dead, "dead", "warning", "1 schedule is dead", ('rqsched_schedules{namespace="default",status="dead"}', 1)
    ),
    "a schedule fails repeatedly": Fault(failing, "failing", "warning", "1 schedule is failing repeatedly"),
    "a run is blocked": Fault(
        blocked, "blocked", "problem", "1 schedule is blocked", ('rqsched_runs_blocked{namespace="default"}', 1)
    ),
    "no success in time": Fault(
        silent,
        "successes",
        "warning",
        "1 schedule is without a success in time",
        ('rqsched_schedules_without_success{namespace="default"}', 1),
    ),
    "a notification was given up": Fault(
        lambda env: undelivered(env, DeliveryStatus.FAILED),
        "notifications",
        "warning",
        "Notifications do not arrive",
        ('rqsched_notifications{namespace="default",status="failed"}', 1),
    ),
    "a notification waits too long": Fault(
        lambda env: undelivered(env, DeliveryStatus.PENDING),
        "notifications",
        "warning",
        "Notifications do not arrive",
        ('rqsched_notifications{namespace="default",status="pending"}', 1),
    ),
    "a namespace is out of room": Fault(
        lambda env: env.create("last", RARELY, namespace="full"),
        "quotas",
        "warning",
        "The namespace is nearly full",
        ('rqsched_quota_used{namespace="full",resource="schedules"}', 1),
        "full",
    ),
    "a queue without a worker": Fault(
        deserted,
        "workers",
        "problem",
        "Jobs wait for a worker",
        ('rqsched_runs_open{namespace="default",status="pending"}', 1),
    ),
    "runs wait longer than they may": Fault(
        crowded,
        "workers",
        "problem",
        "Jobs wait for a worker",
        ('rqsched_runs_open{namespace="default",status="pending"}', 1),
    ),
    "a run takes longer than the time to the next fire": Fault(
        endless, "long", "warning", "1 schedule is running for too long"
    ),
    "a run takes longer than expected": Fault(
        slow,
        "long",
        "warning",
        "1 schedule is running for too long",
        ('rqsched_runs_long{namespace="default"}', 1),
    ),
    "dispatchers wait for SQL": Fault(
        waiting_for_sql,
        "waits",
        "problem",
        "Dispatchers wait for SQL",
    ),
    "no dispatcher": Fault(
        without_dispatcher, "dispatchers", "problem", "No dispatcher is alive", ("rqsched_dispatchers", 0)
    ),
    "Redis of another database": Fault(foreign_redis, "ownership", "problem", "Redis belongs to another database"),
    "SQL is restored": Fault(
        restored,
        "went back",
        "warning",
        "SQL or Redis went back to an older state, or was replaced",
        ('rqsched_went_back{what="sql"}', 1),
    ),
    "two databases write": Fault(
        copied, "went back", "problem", "Two databases write", ('rqsched_went_back{what="two_databases"}', 1)
    ),
    "a worker with another database": Fault(
        foreign_worker, "foreign workers", "problem", "Workers with another database take jobs of this one"
    ),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC) - 3 * HOUR)


def heartbeat(env: Env) -> DispatcherHeartbeat:
    return DispatcherHeartbeat(env.redis, env.transport.control.name, env.runtime.now)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, pages: Pages) -> Cli:
    """Commands on the servers of the pages."""
    settings = pages.env.runtime.settings
    monkeypatch.setenv("RQSCHED_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("RQSCHED_REDIS_URL", str(settings.redis_url))
    monkeypatch.setenv("RQSCHED_QUOTAS", QUOTAS)
    return Cli(pages.env.scheduler)


@pytest.fixture
def pages(make_web: MakeWeb) -> Pages:
    """Pages beside a dispatcher and a worker that live."""
    pages = Pages(make_web(quotas=QUOTAS))
    env = pages.env
    env.recover()
    heartbeat(env).send()
    Worker([Queue("default", connection=env.redis)], connection=env.redis, name="alive").register_birth()
    return pages


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_surface_says_the_same_of(fault: Fault, pages: Pages, cli: Cli) -> None:
    env = pages.env
    fault.make(env)
    env.advance(datetime.now(UTC) - env.clock.now())

    told = cli("doctor", "-o", "json", code=int(fault.level == "problem")).json["findings"]
    wrong = {one["check"]: one["level"] for one in told if one["level"] != "ok" and one["check"] not in SERVERS}
    assert wrong == ({fault.check: fault.level} if fault.check else {})

    front = pages.get(f"/?namespace={fault.namespace}")
    cards = re.findall(r'<article class="problem (\w+)">\s*<h3>(.*?)</h3>', front)
    tone = {"problem": "bad", "warning": "warn"}.get(fault.level)
    assert cards == ([(tone, fault.title)] if fault.title else [])
    assert ("Everything is as it should be" in front) is (fault.check == "")
    card = re.sub(r"<[^>]*>|\s", "", unescape(front))
    for said in (one[part] for one in told if one["check"] == fault.check for part in ("detail", "advice")):
        assert said[0].isupper() or said[0].isdigit(), said
        assert said[-1] == ".", said
        words = re.split(r": |\d{4}-\d\d-\d\dT", said)[0]  # a card has the time by the viewer's clock
        assert re.sub(r"[`\s]", "", words.removesuffix(".")) in card, said

    system = pages.get("/system")
    assert ("None is alive." in system) is (fault.check == "dispatchers")
    is_marked = '<span class="error-line">none</span>' in system or '<td class="nowrap error-line"' in system
    assert is_marked is (fault.check in {"workers", "dispatchers"})

    pages.web.app.state.rqsched.meter.refresh(force=True)
    samples = pages.web.get("/metrics").text
    if fault.metric is not None:
        name, value = fault.metric
        found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", samples, re.MULTILINE)
        assert [float(one) for one in found] == ([value] if value or name == "rqsched_dispatchers" else [])
    assert ("\nrqsched_late{" in samples) is (fault.check == "late")

    ready = pages.web.get("/readyz")  # a probe asks no more than whether the backends respond
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")


def test_schedule_is_late_after_grace_and_lease_on_every_surface(pages: Pages) -> None:
    env, settings = pages.env, pages.env.runtime.settings
    env.create("late", Every(MINUTE))
    for span, is_late in ((MINUTE + settings.repair_grace + settings.link_lease - SECOND, False), (SECOND, True)):
        env.advance(span)
        pages.web.app.state.rqsched.meter.refresh(force=True)
        assert ("\nrqsched_late{" in pages.web.get("/metrics").text) is is_late
        assert ("1 schedule is late" in pages.get("/")) is is_late


OF_OTHERS = {
    name: fault
    for name, fault in FAULTS.items()
    if fault.check not in {"dispatchers", "waits", "ownership", "went back"}
}
SECRET = "tenant-secret-0123456789"
TENANT = one_token(SECRET, "read", namespaces=["tenant"])


@pytest.mark.parametrize("fault", OF_OTHERS.values(), ids=OF_OTHERS)
def test_viewer_of_one_namespace_is_told_nothing_of_others(fault: Fault, make_web: MakeWeb) -> None:
    pages = Pages(make_web(quotas=QUOTAS, tokens=TENANT))
    pages.web.headers["authorization"] = f"Bearer {SECRET}"
    env = pages.env
    env.recover()
    heartbeat(env).send()
    Worker([Queue("default", connection=env.redis)], connection=env.redis).register_birth()
    fault.make(env)
    env.advance(datetime.now(UTC) - env.clock.now())
    front = pages.get("/?namespace=tenant")
    if fault.check == "foreign workers":
        assert "Workers of another database take jobs of this one, and cannot execute them." in front
        assert "host-7" not in front
    else:
        assert "Everything is as it should be" in front


def test_run_of_an_external_worker_waits_for_no_worker_of_rq(pages: Pages, cli: Cli) -> None:
    env = pages.env
    env.create("theirs", RARELY, executor="external", queue="theirs").trigger()
    env.advance(datetime.now(UTC) - env.clock.now())
    found = {one["check"]: one["level"] for one in cli("doctor", "-o", "json").json["findings"]}
    assert found["workers"] == "ok"
    assert "Jobs wait" not in pages.get("/")


def test_every_surface_says_that_redis_is_away(
    make_web: MakeWeb, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(make_web(redis_url=own_valkey.url))
    monkeypatch.setenv("RQSCHED_DATABASE_URL", str(pages.env.runtime.settings.database_url))
    monkeypatch.setenv("RQSCHED_REDIS_URL", own_valkey.url)
    own_valkey.kill()
    told = Cli(pages.env.scheduler)("doctor", "-o", "json", code=1).json["findings"]
    assert [one["check"] for one in told if one["level"] == "problem"] == ["redis"]
    assert "Redis does not answer" in pages.get("/")
    pages.web.app.state.rqsched.meter.refresh(force=True)
    assert 'rqsched_up{backend="redis"} 0.0' in pages.web.get("/metrics").text
    ready = pages.web.get("/readyz")
    assert (ready.status_code, ready.json()["redis"], ready.json()["database"]) == (503, False, True)


@pytest.mark.parametrize(
    ("share", "title", "check", "level"),
    [
        (0.95, "Redis is nearly full", "memory", "warning"),
        (2.0, "Redis refuses what it is asked (OOM)", "redis", "problem"),
    ],
)
def test_every_surface_says_that_redis_is_full(
    share: float,
    title: str,
    check: str,
    level: str,
    make_web: MakeWeb,
    own_valkey: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = Pages(make_web(redis_url=own_valkey.url))
    env = pages.env
    monkeypatch.setenv("RQSCHED_DATABASE_URL", str(env.runtime.settings.database_url))
    monkeypatch.setenv("RQSCHED_REDIS_URL", own_valkey.url)
    env.recover()
    assert title not in pages.get("/")
    for number in range(1_000):  # in small pieces: Redis would free the memory of one large command only later
        env.redis.set(f"of others: {number}", bytes(32 * 1024))
    used: Any = env.redis.info("memory")
    env.redis.config_set("maxmemory", int(used["used_memory"] / share))
    told = Cli(env.scheduler)("doctor", "-o", "json", code=int(level == "problem")).json["findings"]
    found = {one["check"]: one["level"] for one in told}
    assert found[check] == level
    assert title in pages.get("/")
