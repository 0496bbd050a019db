"""Unknown clients: unread bodies, guessed tokens, the default rights of a token, and the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Message

from rqsched.http.limits import Limits
from tests.support.rows import every_row
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, one_token, problem

SECRET = "admin-secret-0123456789"
TOKENS = one_token(SECRET)
Receive = Callable[[], Awaitable[Message]]


def send(web: Web, path: str, receive: Receive, **given: Any) -> int:
    """Send a POST with the body of `receive`, and return the status."""
    return asyncio.run(sending(web, path, receive, **given))


async def sending(
    web: Web,
    path: str,
    receive: Receive,
    *,
    token: str = "",
    size: int | None = 10,
    peer: str = "127.0.0.1",
    version: str = "1.1",
    **more: str,
) -> int:
    headers = {"host": "localhost", "content-type": "application/json", **more}
    headers |= {"content-length": str(size)} if size is not None else {}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    scope = {
        "type": "http", "http_version": version, "method": "POST", "path": path, "query_string": b"", "scheme": "http",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": (peer, 5000), "server": ("localhost", 80),
    }  # fmt: skip
    statuses: list[int] = []

    async def answer(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await web.app(scope, receive, answer)
    return statuses[0]


async def never_read() -> Message:
    raise AssertionError("the body was asked for")


async def silent() -> Message:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


def dropped(*parts: bytes) -> Receive:
    """Return the receiver of a client that sends parts of a body and goes."""
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Message:
        return left.pop(0) if left else {"type": "http.disconnect"}

    return receive


ROUTES_WITH_A_BODY = [
    "/login", "/logout", "/theme", "/schedules/nightly/do", "/preview", "/freeze", SCHEDULES, f"{SCHEDULES}x/pause/",
    "/api/v1/sync/", "/ojs/v1/cron", "/ojs/v1/workers/fetch", "/api/schedules", "/api/schedules/x/pause",
]  # fmt: skip


@pytest.mark.parametrize("path", ROUTES_WITH_A_BODY)
def test_client_that_drops_a_body_is_no_error_of_the_server(
    make_web: MakeWeb, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    web = make_web(tokens=TOKENS)
    with every_row() as row:
        for token in ("", SECRET):
            for size in (10, None):
                for parts in ((), (b"csrf",)):
                    with row((token, size, parts)):
                        status = send(web, path, dropped(*parts), token=token, size=size)
                        assert 300 <= status < 500
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_body_without_a_length_is_bounded_where_the_protocol_allows_one(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(stranger_bytes=100, body_bytes=200)})
    for path, token, most in (("/login", "", 100), (SCHEDULES, SECRET, 200)):
        sent = dropped(b"x" * most, b"x")
        assert send(web, path, sent, token=token, size=None, version="2") == 413
    assert send(web, SCHEDULES, never_read, size=None, version="2") == 401


def test_chunks_without_end_are_given_up(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(body_seconds=0.05)})

    async def endless() -> Message:
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b"", "more_body": True}

    assert send(web, "/login", endless, size=None, transfer_encoding="chunked") == 408
    assert send(web, SCHEDULES, endless, token=SECRET, size=None, transfer_encoding="chunked") == 408


@pytest.mark.parametrize("path", ROUTES_WITH_A_BODY)
def test_compressed_body_is_refused(make_web: MakeWeb, path: str) -> None:
    web = make_web(tokens=TOKENS)
    assert send(web, path, never_read, token=SECRET, content_encoding="gzip") == 415


def test_slow_bodies_of_one_address_keep_nobody_from_logging_in(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(strangers=5)})

    async def scene() -> None:
        statuses = list[int]()
        waiting = 0

        async def slow() -> Message:
            nonlocal waiting
            waiting += 1
            return await silent()

        async def hold() -> None:
            statuses.append(await sending(web, "/login", slow))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
            assert (waiting, statuses) == (5, [])
            whole = [{"type": "http.request", "body": b"token=x", "more_body": False}]

            async def quick() -> Message:
                return whole[0]

            form = "application/x-www-form-urlencoded"
            # A form that was read, and has no CSRF value.
            assert await sending(web, "/login", quick, peer="127.0.0.2", content_type=form) == 403
            assert statuses == []
            assert await sending(web, "/login", quick, content_type=form) == 403
            await anyio.wait_all_tasks_blocked()
            assert statuses == [503]  # the oldest of this address made room
            group.cancel_scope.cancel()

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/api/v1/schedules/", "/ojs/v1/cron", "/api/schedules"])
def test_no_body_of_a_stranger_is_read_by_an_api(make_web: MakeWeb, path: str) -> None:
    web = make_web(tokens=TOKENS)
    assert send(web, path, never_read) == 401
    assert send(web, path, never_read, token="wrong-secret-0123456789") == 401


def test_body_that_does_not_arrive_is_given_up(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(body_seconds=0.05)})
    assert send(web, SCHEDULES, silent, token=SECRET) == 408
    assert send(web, "/login", silent) == 408


def test_stranger_sends_the_pages_a_small_body_only(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(stranger_bytes=100)})
    assert send(web, "/login", never_read, size=101) == 413
    login = {"content-type": "application/x-www-form-urlencoded"}
    assert web.post("/login", content="token=x", headers=login).status_code != 413


def test_no_more_strangers_are_read_at_once_than_the_limit(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(strangers=0)})
    assert send(web, "/login", never_read) == 503
    assert send(web, SCHEDULES, never_read) == 401


def test_address_that_tries_tokens_is_slowed_down_and_a_known_token_is_not(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS, app={"limits": Limits(failures=3, failure_rate=0.001)})
    wrong = web.acting_as("wrong-secret-0123456789")
    for _ in range(3):
        problem(wrong.get(SCHEDULES), 401, "unauthorized")
    refused = wrong.get(SCHEDULES)
    problem(refused, 429, "rate_limited")
    assert int(refused.headers["retry-after"]) > 0
    assert web.acting_as(SECRET).get(SCHEDULES).status_code == 200
    wrong.peer = "127.0.0.2"
    problem(wrong.get(SCHEDULES), 401, "unauthorized")


def test_token_without_namespaces_sees_the_default_one_alone(make_web: MakeWeb) -> None:
    both = [
        {"name": "plain", "role": "admin", "token": SECRET},
        {"name": "root", "role": "admin", "token": f"{SECRET}-root", "namespaces": "*"},
    ]
    web = make_web(tokens=json.dumps(both))
    plain, root = web.acting_as(SECRET), web.acting_as(f"{SECRET}-root")
    elsewhere = {"x-namespace": "billing"}
    assert root.post(SCHEDULES, {"schedule_id": "a", **MINUTELY}, headers=elsewhere).status_code == 201
    assert plain.post(SCHEDULES, {"schedule_id": "a", **MINUTELY}).status_code == 201
    problem(plain.get(SCHEDULES, headers=elsewhere), 404, "namespace_not_found")


def test_request_is_logged_without_its_query(make_web: MakeWeb, caplog: pytest.LogCaptureFixture) -> None:
    web = make_web(tokens=TOKENS)
    with caplog.at_level(logging.INFO, logger="rqsched.http.access"):
        web.acting_as(SECRET).get(SCHEDULES, params={"owner": "hidden"})
        web.get("/no%0Asuch/page")
    known, unknown = caplog.messages
    assert known.startswith("127.0.0.1 ada GET /api/v1/schedules/ 200 ")
    assert unknown.startswith("127.0.0.1 - GET /no%0Asuch/page 404 ")
    assert "hidden" not in caplog.text


def test_page_of_the_api_loads_nothing_of_other_hosts(web: Web) -> None:
    page = web.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in page.text
    assert "http" not in page.text.replace("HTTP", "").replace("https://rqsched", "")[:2000]
    assert "/api/v1/schedules/{schedule_id}/" in page.text
    assert 'id="ScheduleResponse"' in page.text or "Schemas" in page.text
