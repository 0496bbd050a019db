"""A backend that is away: 503 with Retry-After, or done where SQL is enough, and all is well when it is back."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import httpx
import psycopg
import pytest
import sqlalchemy as sa

from rqsched.errors import DatabaseUnavailableError
from rqsched.kernel.store.database import Patience
from tests.support.invariants import check_invariants
from tests.support.processes import wait_until
from tests.support.proxy import proxy_to
from tests.support.servers import PostgresServer, ValkeyServer
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at, problem

SHORT = Patience(total=timedelta(milliseconds=100))


@pytest.fixture
def redis_web(make_web: MakeWeb, own_valkey: ValkeyServer) -> Web:
    """An application over a Redis of its own."""
    return make_web(redis_url=own_valkey.url)


def test_while_redis_is_unavailable_requests_succeed_and_links_follow_later(
    redis_web: Web, own_valkey: ValkeyServer
) -> None:
    own_valkey.stop()
    answer = redis_web.get("/readyz")
    assert (answer.status_code, answer.json()["redis"], answer.json()["database"]) == (503, False, True)
    assert answer.headers["retry-after"]
    redis_web.create()
    assert redis_web.post(at(operation="trigger/")).json()["outcome"] == "triggered"
    assert 'rqsched_up{backend="redis"} 0.0' in redis_web.get("/metrics").text
    own_valkey.start()
    wait_until(lambda: redis_web.get("/readyz").status_code == 200, what="ready")
    redis_web.env.recover()
    check_invariants(redis_web.env.runtime)
    redis_web.env.work()
    assert redis_web.read()["success_count"] == 1


def test_what_redis_refuses_for_good_is_counted_by_a_process_that_did_not_meet_it(
    redis_web: Web, make_web: MakeWeb
) -> None:
    other = make_web(
        redis_url=redis_web.env.runtime.redis_url, database_url=redis_web.env.runtime.settings.database_url
    )
    redis_web.env.redis.set("rq:queue:default", "somebody's")
    redis_web.create()
    redis_web.post(at(operation="trigger/"))
    other.app.state.rqsched.meter.refresh(force=True)
    told = other.get("/metrics").text
    assert "rqsched_refused 1.0" in told
    assert "rqsched_refusals_total 1.0" in told
    redis_web.env.redis.delete("rq:queue:default")
    redis_web.env.advance(timedelta(minutes=1))
    redis_web.env.recover()
    other.app.state.rqsched.meter.refresh(force=True)
    assert "rqsched_refused 0.0" in other.get("/metrics").text


@pytest.mark.postgres
def test_while_sql_is_unavailable_requests_are_503_and_recover_by_themselves(
    make_web: MakeWeb, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    web = make_web(database_url=own_postgres_url)
    web.create()
    web.env.runtime.database.patience = SHORT
    own_postgres.stop()
    for method, path, body in [
        ("GET", SCHEDULES, None),
        ("POST", SCHEDULES, {"schedule_id": "x", **MINUTELY}),
        ("POST", at(operation="pause/"), None),
        ("POST", at(operation="trigger/"), None),
    ]:
        answer = web(method, path, body)
        problem(answer, 503, "database_unavailable")
        assert answer.headers["retry-after"]
    assert web.get("/healthz").status_code == 200
    assert web.get("/readyz").json()["database"] is False
    assert 'rqsched_up{backend="database"} 0.0' in web.get("/metrics").text
    with pytest.raises(DatabaseUnavailableError, match="does not answer"):
        web.env.scheduler.recover()
    own_postgres.start()
    wait_until(lambda: web.get("/readyz").status_code == 200, what="ready", timeout=30)
    assert web.read()["status"] == "active"
    web.create("x")
    check_invariants(web.env.runtime)


@pytest.mark.postgres
def test_readiness_is_answered_while_postgresql_still_keeps_silent(make_web: MakeWeb, own_postgres_url: str) -> None:
    with proxy_to(own_postgres_url) as proxy:
        web = make_web(database_url=proxy.url(own_postgres_url))
        assert web.get("/readyz").status_code == 200
        proxy.is_silent = True
        proxy.swallow()

        answer = web.get("/readyz")

        is_asking = any(thread.name == "rqsched-ready-database" for thread in threading.enumerate())
        assert is_asking, "the probe waited for PostgreSQL"
        assert (answer.status_code, answer.json()["database"], answer.json()["redis"]) == (503, False, True)
        proxy.is_silent = False
        wait_until(lambda: web.get("/readyz").status_code == 200, what="ready", timeout=60)


@pytest.mark.postgres
def test_readiness_is_answered_while_every_other_request_waits_for_postgresql(
    make_web: MakeWeb, own_postgres_url: str
) -> None:
    with proxy_to(own_postgres_url) as proxy:
        web = make_web(database_url=proxy.url(own_postgres_url))
        web.create()
        proxy.is_silent = True
        proxy.swallow()

        first = asyncio.run(first_answer(web, [at()] * READERS, "/readyz"))

        assert (first.url.path, first.status_code) == ("/readyz", 503)


READERS = 60
"""More than the threads that serve requests."""


async def first_answer(web: Web, paths: list[str], last: str) -> httpx.Response:
    """Send all at once, and one more while they run, and return the first answer."""
    transport = httpx.ASGITransport(web.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        calls = [asyncio.create_task(client.get(path)) for path in paths]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(client.get(last)))
        answered, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in waiting:
            call.cancel()
        return answered.pop().result()


@pytest.mark.postgres
def test_request_that_the_database_stops_is_503_with_what_to_do(make_web: MakeWeb, own_postgres_url: str) -> None:
    web = make_web(database_url=f"{own_postgres_url}?options=-c%20statement_timeout=2s")
    web.create()
    plain = sa.make_url(own_postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as holder:
        holder.execute("LOCK TABLE rqsched_schedules")
        answer = web.get(at())

    assert "ask for less" in problem(answer, 503, "database_limit")["detail"]
    assert answer.headers["retry-after"]
