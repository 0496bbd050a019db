"""The load over HTTP and in the client equals the scheduler's, for the namespace of the token."""

from __future__ import annotations

import asyncio

from rqsched import Cron
from rqsched.types import Load
from tests.support.client import asynchronous, client_of
from tests.support.web import Web, problem


def test_the_client_reads_what_the_scheduler_counts(web: Web) -> None:
    for number in range(3):
        web.env.create(f"nightly-{number}", Cron("0 2 * * *"), queue="reports")
    mine = web.env.scheduler.load(168)
    assert client_of(web).load(168) == mine

    async def awaited() -> Load:
        async with asynchronous(web) as far:
            return await far.load(hours=168)

    assert asyncio.run(awaited()) == mine
    answer = web.get("/api/v1/load").json()
    assert (answer["fires"], answer["end"], len(answer["minutes"])) == (3, "2026-01-16T12:00:00Z", 1440)
    assert answer["queues"] == [
        {"queue": "reports", "fires": 3, "peak_at": "2026-01-16T02:00:00Z", "peak_fires": 3}
    ]  # fmt: skip


def test_only_the_namespace_is_counted(web: Web) -> None:
    web.env.create("theirs", Cron("0 2 * * *"), namespace="other")
    assert web.get("/api/v1/load/").json()["fires"] == 0
    assert web.get("/api/v1/load/", headers={"x-namespace": "other"}).json()["fires"] == 1


def test_hours_beyond_a_month_are_refused(web: Web) -> None:
    assert problem(web.get("/api/v1/load/?hours=745"), 422, "invalid_input")["errors"][0]["field"] == "hours"
