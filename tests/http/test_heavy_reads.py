"""Heavy reads: a quarter of the threads, one at a time of each principal, and only while somebody waits."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from anyio import to_thread
from starlette.requests import Request

from rqsched import Cron
from rqsched.errors import WorkCancelledError
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.heavy_reads import HeavyReads
from rqsched.when.steps import POLL_EVERY, spend
from tests.support.processes import wait_until
from tests.support.serving import PATIENCE, served
from tests.support.web import SCHEDULES, MakeWeb, Web, at, problem

ADA, BOB = "a" * 32, "b" * 32
TOKENS = json.dumps(
    [{"name": name, "role": "admin", "token": token, "namespaces": "*"} for name, token in (("ada", ADA), ("bob", BOB))]
)
HEAVY: dict[str, tuple[str, str, Any]] = {
    "load": ("GET", "/api/v1/load/", None),
    "why": ("GET", at("report", "why/"), None),
    "the usage": ("GET", "/api/v1/usage/", None),
    "a dry backfill": (
        "POST",
        at("report", "backfill/"),
        {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z", "dry_run": True},
    ),
    "a dry bulk": ("POST", "/api/v1/bulk/pause/", {"dry_run": True, "bound": 10, "status": ["active"]}),
    "the count of a bulk": ("POST", "/api/v1/bulk/pause/", {"labels": {"team": "billing"}}),
    "a dry sync": ("POST", "/api/v1/sync/", {"dry_run": True, "schedules": []}),
    "what a thaw would do": ("GET", "/api/v1/thaw/preview/", None),
    "what a deletion would delete": ("GET", "/api/v1/namespace/", None),
}
PAGES = [
    "/timeline",
    "/schedules/report",
    "/preview?cron=*+*+*+*+*",
    "/thaw?everything=yes",
    "/thaw",
    "/namespace/delete",
]


class Disconnectable:
    """The receive channel of a request: it waits until the client leaves."""

    def __init__(self) -> None:
        self.has_left = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    @property
    def request(self) -> Request:
        return Request({"type": "http", "headers": []}, self)


def while_ada_reads(web: Web, act: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> None:
    """Act in an event loop in which a heavy read of `ada` is under way."""

    async def run() -> None:
        transport = httpx.ASGITransport(web.app, raise_app_exceptions=False, client=(web.peer, 50_000))
        async with (
            httpx.AsyncClient(transport=transport, base_url=f"http://{web.host}") as client,
            web.app.state.rqsched.heavy_reads.admit(Disconnectable().request, "ada"),
        ):
            await act(client)

    asyncio.run(run())


@pytest.mark.parametrize(("method", "path", "body"), HEAVY.values(), ids=HEAVY.keys())
def test_second_heavy_read_of_a_principal_is_refused_and_that_of_another_is_not(
    make_web: MakeWeb, method: str, path: str, body: Any
) -> None:
    web = make_web(tokens=TOKENS)
    web.env.create("report", Cron("0 2 * * *"))

    async def act(client: httpx.AsyncClient) -> None:
        refused = await client.request(method, path, json=body, headers={"authorization": f"Bearer {ADA}"})
        problem(refused, 503, "too_many_heavy_reads")
        assert int(refused.headers["retry-after"]) > 0
        light = await client.get(SCHEDULES, headers={"authorization": f"Bearer {ADA}"})
        assert light.status_code == 200
        others = await client.request(method, path, json=body, headers={"authorization": f"Bearer {BOB}"})
        assert others.status_code == 200, others.text

    while_ada_reads(web, act)
    after = web.acting_as(ADA)(method, path, body)
    assert after.status_code == 200, after.text


def test_request_that_is_no_dry_run_is_not_refused(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    web.env.create("report", Cron("0 2 * * *"))
    counted = web.acting_as(ADA)("POST", "/api/v1/bulk/pause/", {}).json()
    light = [
        (HEAVY["a dry backfill"][1], {**HEAVY["a dry backfill"][2], "dry_run": False}),
        ("/api/v1/bulk/pause/", {"cursor": counted["next_cursor"]}),
    ]

    async def act(client: httpx.AsyncClient) -> None:
        for path, body in light:
            done = await client.post(path, json=body, headers={"authorization": f"Bearer {ADA}"})
            assert done.status_code == 200, done.text

    while_ada_reads(web, act)


@pytest.mark.parametrize("path", PAGES)
def test_second_heavy_page_is_an_error_page_that_loads_again(make_web: MakeWeb, path: str) -> None:
    web = make_web()  # without tokens every viewer of this machine is one principal
    web.env.create("report", Cron("0 2 * * *"))
    heavy = web.app.state.rqsched.heavy_reads

    async def run() -> None:
        transport = httpx.ASGITransport(web.app, raise_app_exceptions=False, client=(web.peer, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{web.host}") as client:
            async with heavy.admit(Disconnectable().request, "local"):
                refused = await client.get(path)
            assert refused.status_code == 503, refused.text
            assert refused.headers["content-type"].startswith("text/html")
            assert refused.headers["retry-after"] == refused.headers["refresh"]
            assert (await client.get(path)).status_code in {200, 303, 422}

    asyncio.run(run())


@pytest.mark.parametrize(("threads", "most"), [(1, 1), (3, 1), (8, 2), (40, 10)])
def test_heavy_reads_take_a_quarter_of_the_threads(threads: int, most: int) -> None:
    async def run() -> None:
        to_thread.current_default_thread_limiter().total_tokens = threads
        heavy, entered = HeavyReads(), []
        for number in range(most):
            reading = heavy.admit(Disconnectable().request, f"principal-{number}")
            await reading.__aenter__()
            entered.append(reading)
        with pytest.raises(TooManyHeavyReadsError):
            async with heavy.admit(Disconnectable().request, "one more"):
                pass
        await entered.pop().__aexit__(None, None, None)
        async with heavy.admit(Disconnectable().request, "one more"):
            pass
        for reading in entered:
            await reading.__aexit__(None, None, None)

    asyncio.run(run())


def test_work_ends_when_the_client_has_left() -> None:
    async def run() -> None:
        client = Disconnectable()

        def work() -> None:
            while True:
                spend(POLL_EVERY)

        async with HeavyReads().admit(client.request, "ada"):
            working = asyncio.create_task(to_thread.run_sync(work))
            await asyncio.sleep(0)
            client.has_left.set()
            with pytest.raises(WorkCancelledError):
                await working

    asyncio.run(run())


def test_heavy_read_of_a_client_that_disconnects_ends_at_the_server(
    make_web: MakeWeb, caplog: pytest.LogCaptureFixture
) -> None:
    web = make_web(tokens=TOKENS)
    for number in range(12):  # half a million times are computed for a month of these
        web.env.create(f"often-{number}", Cron("* * * * *"), jitter=timedelta(seconds=1))
    heavy = web.app.state.rqsched.heavy_reads

    def logged() -> list[int]:
        seen = [record.__dict__ for record in caplog.records]
        return [fields["status"] for fields in seen if "load" in fields.get("path", "")]

    with served(web.app) as url, caplog.at_level(logging.INFO, "rqsched.http.access"):
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port)) as client:
            request = f"GET /api/v1/load/?hours=744 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADA}\r\n\r\n"
            client.sendall(request.encode())
            wait_until(lambda: heavy.count == 1, timeout=PATIENCE, what="the load is computed")
            again = httpx.get(f"{url}/api/v1/load/", headers={"authorization": f"Bearer {ADA}"})
            assert again.status_code == 503
            assert httpx.get(f"{url}{SCHEDULES}", headers={"authorization": f"Bearer {BOB}"}).status_code == 200
            assert heavy.count == 1, "the first request was over too soon to be disconnected"
        wait_until(lambda: heavy.count == 0, timeout=PATIENCE, what="its computation has ended")
        wait_until(lambda: len(logged()) == 2, timeout=PATIENCE, what="both requests for the load are logged")
    assert logged() == [503, 503], "the load was computed to its end although nobody waited"
