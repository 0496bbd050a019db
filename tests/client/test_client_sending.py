"""How our client sends: over real sockets, within its timeout, again where that is safe; both senders alike."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from rqsched import Every, errors
from rqsched.client import AsyncClient, Client, Retries
from tests.support.client import AT_ONCE, InProcess, client_of
from tests.support.env import MINUTE
from tests.support.processes import REPOSITORY
from tests.support.servers import ValkeyServer
from tests.support.serving import served
from tests.support.web import MakeWeb, Web, one_token
from tests.system.acceptance.snippets import snippets_of


def test_both_clients_work_over_real_sockets(url: str) -> None:
    async def refresh() -> str:
        async with AsyncClient(url) as client:
            return (await (await client.get("report")).resume()).status

    with Client(url) as client:
        assert client.create("report", "note", Every("1m")).pause().status == "paused"
        assert asyncio.run(refresh()) == "active"
        assert client.get("report").status == "active"


def test_the_documentations_example_runs(make_web: MakeWeb, capsys: pytest.CaptureFixture[str]) -> None:
    token = "a-secret-of-twenty-four-chars"
    web = make_web(tokens=one_token(token, namespaces=["billing"]))
    web.env.register("invoice-sync", lambda region: region)
    (code,) = [
        one.code
        for one in snippets_of((REPOSITORY / "docs" / "http.md").read_text())
        if "from rqsched.client import" in one.code
    ]

    with served(web.app, lifespan="on") as url:
        exec(code.replace("http://127.0.0.1:8000", url).replace('token="..."', f'token="{token}"'), {})

    assert capsys.readouterr().out.splitlines() == [
        "2026-01-16 02:00:00+00:00", "1 ScheduleCreated", "2 SchedulePaused", "3 ScheduleResumed",
    ]  # fmt: skip


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def ask_silence(url: str) -> Any:
    with Client(url, timeout=0.05, retries=Retries(most=1, first=0.0)) as client:
        return client.list()


def ask_silence_asynchronously(url: str) -> Any:
    async def ask() -> Any:
        async with AsyncClient(url, timeout=0.05, retries=Retries(most=1, first=0.0)) as client:
            return await client.list()

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [ask_silence, ask_silence_asynchronously], ids=["sync", "async"])
def test_a_server_that_never_responds_raises_after_the_timeout(silent_url: str, ask: Callable[[str], Any]) -> None:
    with pytest.raises(errors.BackendUnavailableError, match="in time"):
        ask(silent_url)


class Unavailable(InProcess):
    """Answers the first few requests as the application does when SQL is away."""

    times = 2

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if len(self.sent) < self.times:
            self.sent.append((request.method, request.url.path))
            problem = {"code": "database_unavailable", "detail": "the database does not answer."}
            return httpx.Response(503, json=problem, headers={"Retry-After": "0"})
        return super().handle_request(request)


def test_a_repeatable_request_is_sent_again_after_a_503(web: Web) -> None:
    transport = Unavailable(web)
    assert client_of(web, transport, retries=Retries()).create("x", "note", Every("1m")).status == "active"
    assert len(transport.sent) == 3


def test_a_request_that_is_not_repeatable_raises_the_503(web: Web) -> None:
    web.create()
    transport = Unavailable(web)
    with pytest.raises(errors.DatabaseUnavailableError, match="does not answer"):
        client_of(web, transport, retries=Retries()).handle("report").pause()
    assert len(transport.sent) == 1
    assert web.read()["status"] == "active"


def test_a_dry_run_is_sent_again_after_a_503_and_what_it_shows_is_not(web: Web) -> None:
    transport = Unavailable(web)
    assert client_of(web, transport, retries=Retries()).runs.retry_failed("1h", dry_run=True) == []
    assert len(transport.sent) == 3
    transport = Unavailable(web)
    with pytest.raises(errors.DatabaseUnavailableError, match="does not answer"):
        client_of(web, transport, retries=Retries()).runs.retry_failed("1h")
    assert len(transport.sent) == 1


def test_the_asynchronous_client_sends_again_after_a_lost_response(web: Web) -> None:
    inner = InProcess(web, lost=2)

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await asyncio.to_thread(inner.handle_request, request)

    async def create() -> None:
        async with AsyncClient("http://localhost", transport=Transport(), retries=AT_ONCE) as client:
            assert (await client.create("x", "note", Every("1m"))).status == "active"

    asyncio.run(create())
    assert len(inner.sent) == 3
    assert len(web.env.scheduler.newest("x").history()) == 1


def test_a_purge_leaves_nothing(web: Web) -> None:
    client = client_of(web)
    made = client.create("x", "note", Every("1m"))
    made.delete(purge=True)
    with pytest.raises(errors.ScheduleNotFoundError):
        made.history()


@pytest.mark.parametrize("outage", ["stopped", "hanging"])
def test_a_create_that_was_stored_is_never_reported_as_failed_because_redis_is_away(
    make_web: MakeWeb, own_valkey: ValkeyServer, outage: str
) -> None:
    web = make_web(redis_url=own_valkey.url, redis_timeout=1)  # as it is by default
    with served(web.app, lifespan="on") as url, Client(url) as client, ExitStack() as stack:
        client.create("before", "note", Every(MINUTE))
        if outage == "stopped":
            own_valkey.stop()
        else:
            stack.enter_context(own_valkey.hanging())
        made = client.create("report", "note", Every(MINUTE))
        assert (made.status, client.get("report").uid) == ("active", made.uid)
        triggered = made.trigger()
        assert (triggered.outcome, client.get("report").run_count) == ("triggered", 1)
        assert client.upsert("report", "note", Every(MINUTE), note="x")[1] == "updated"
        assert made.pause().status == "paused"
