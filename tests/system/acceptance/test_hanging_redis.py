"""`rqsched web` while Redis hangs: everything is stored and answered, and Redis follows when it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from rqsched import Scheduler
from tests.support.invariants import check_invariants
from tests.support.processes import rqsched_command, running, wait_until
from tests.support.servers import ValkeyServer, free_port
from tests.support.serving import status_of
from tests.system.acceptance.chores import NOTE

SOON = 45.0
"""Seconds in which everything is answered, also on a busy machine. Without a breaker one create took 61."""
CALLERS = 60


@pytest.fixture
def url(own_valkey: ValkeyServer, sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    """Where `rqsched web` serves."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    environment = {
        "RQSCHED_DATABASE_URL": sqlite_url,
        "RQSCHED_REDIS_URL": own_valkey.url,
        "RQSCHED_IMPORTS": "tests.system.acceptance.chores",
    }
    command = rqsched_command("web", "--port", str(port))
    with running(command, log_path=tmp_path / "web.log", env=environment) as web:
        wait_until(
            lambda: status_of(f"{address}/readyz", timeout=SOON) == 200,
            timeout=60,
            what=lambda: f"rqsched web:\n{web.log()}",
        )
        yield address


def wanted(schedule_id: str) -> dict[str, object]:
    return {"schedule_id": schedule_id, "workflow": NOTE, "interval": "1h", "kwargs": {"log": "unused"}}


async def create_together(url: str) -> tuple[list[httpx.Response], httpx.Response]:
    """Many create at once; when all are under way, somebody reads."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=SOON, limits=limits) as client:
        calls = [client.post("/api/v1/schedules/", json=wanted(f"s{number}")) for number in range(CALLERS)]
        creates = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
        read = await client.get("/api/v1/schedules/before/")
        return await asyncio.gather(*creates), read


@pytest.mark.acceptance
def test_hanging_redis_stops_no_request_and_follows_when_it_goes_on(
    url: str, own_valkey: ValkeyServer, sqlite_url: str
) -> None:
    with httpx.Client(base_url=url, timeout=SOON) as client:
        assert client.post("/api/v1/schedules/", json=wanted("before")).status_code == 201
        assert client.get("/system").status_code == 200, "RQ lists its workers, and changes nothing of our client"
        with own_valkey.hanging():
            answers, read = asyncio.run(create_together(url))
            assert {answer.status_code for answer in answers} == {201}
            assert read.status_code == 200
            assert client.get("/readyz").json() == {
                "status": "unavailable", "database": True, "schema": True, "redis": False
            }  # fmt: skip
            assert 'rqsched_up{backend="redis"} 0.0' in client.get("/metrics").text
            assert client.post("/api/v1/schedules/before/trigger/").json()["outcome"] == "triggered"
        wait_until(lambda: status_of(f"{url}/readyz", timeout=SOON) == 200, what="ready")
    with Scheduler(database_url=sqlite_url, redis_url=own_valkey.url) as scheduler, Redis.from_url(own_valkey.url) as r:
        # No worker runs: it is the web process itself that makes Redis follow.
        key = scheduler.runtime.transport.scheduled_key
        wait_until(lambda: r.zcard(key) == CALLERS + 1, what="the links")
        wait_until(lambda: r.llen("rq:queue:default") == 1, what="the run's job")
        check_invariants(scheduler.runtime)
