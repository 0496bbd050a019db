"""A FastAPI application gets one scheduler from start-up to shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rqsched import Cron, Every, Scheduler
from rqsched.contrib.fastapi import CurrentAsyncScheduler, CurrentScheduler, add_error_handlers, lifespan
from rqsched.errors import (
    BackendUnavailableError,
    ConfigError,
    NotFoundError,
    QuotaExceededError,
    RqschedError,
    VersionConflictError,
)
from rqsched.features.declarations.declarations import of_process
from rqsched.http import create_app
from tests.support.env import Env
from tests.support.processes import wait_until


@pytest.fixture
def settings(sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the application, from the environment."""
    monkeypatch.setenv("RQSCHED_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("RQSCHED_REDIS_URL", redis_url)


def make_app(**options: object) -> FastAPI:
    app = FastAPI(**options)  # type: ignore[arg-type]

    @app.put("/{name}")
    def create(name: str, scheduler: CurrentScheduler) -> str:
        return scheduler.create(name, "tests.support.env.module_level", Every("1h")).status

    @app.get("/{name}")
    async def show(name: str, scheduler: CurrentAsyncScheduler) -> str:
        return (await scheduler.get(name)).status

    return app


def send(app: FastAPI, *requests: tuple[str, str]) -> list[httpx.Response]:
    """Start the application, send requests to it, and shut it down."""

    async def act() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            return [await client.request(*request) for request in requests]

    return asyncio.run(act())


def test_endpoints_receive_the_scheduler_that_the_lifespan_opened(settings: None) -> None:
    answers = send(make_app(lifespan=lifespan()), ("PUT", "/nightly"), ("GET", "/nightly"))
    assert [answer.json() for answer in answers] == ["active", "active"]
    with Scheduler.from_env() as scheduler:
        assert scheduler.get("nightly").status == "active"


def test_a_given_scheduler_is_used_and_stays_open(env: Env) -> None:
    send(make_app(lifespan=lifespan(env.scheduler)), ("PUT", "/nightly"))
    assert env.scheduler.get("nightly").status == "active"


def test_the_start_repairs_what_redis_lost(env: Env) -> None:
    env.create("nightly")
    env.redis.flushall()
    send(make_app(lifespan=lifespan(env.scheduler)))
    wait_until(lambda: len(env.armed()) == 1, what="the link")


def test_with_sync_the_declared_schedules_are_there_before_the_first_request(env: Env) -> None:
    @env.scheduler.every("1h", schedule_id="declared", name="declared")
    def declared() -> None: ...

    (shown,) = send(make_app(lifespan=lifespan(env.scheduler, sync=True)), ("GET", "/declared"))
    assert shown.json() == "active"


def test_a_lifespan_of_the_applications_own_enters_it(env: Env) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan(env.scheduler)(app):
            seen.append("begin")
            yield
        seen.append("end")

    (answer,) = send(make_app(lifespan=own), ("PUT", "/nightly"))
    assert (answer.json(), seen) == ("active", ["begin", "end"])


def test_without_the_lifespan_the_error_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"lifespan=rqsched\.contrib\.fastapi\.lifespan"):
        send(make_app(), ("PUT", "/nightly"))


def test_wrong_settings_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", "localhost")
    with pytest.raises(ConfigError, match="RQSCHED_REDIS_URL"):
        send(make_app(lifespan=lifespan()))


def test_with_sync_what_the_application_itself_declares_is_there(
    settings: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(of_process, "_declared", {})
    monkeypatch.setenv("RQSCHED_IMPORTS", "no_such_module")
    with Scheduler.from_env() as scheduler:

        @scheduler.every("1h", schedule_id="own", name="own")
        def own() -> None: ...

        (shown,) = send(make_app(lifespan=lifespan(sync=True)), ("GET", "/own"))

    assert shown.json() == "active"
    assert "RQSCHED_IMPORTS names 'no_such_module'" in caplog.text


def make_host(env: Env) -> FastAPI:
    """An application with endpoints equivalent to those of the mounted HTTP API."""
    app = FastAPI(lifespan=lifespan(env.scheduler))
    add_error_handlers(app)
    app.mount("/rqsched", create_app(env.scheduler))

    @app.get("/schedules/{name}")
    async def show(name: str, scheduler: CurrentAsyncScheduler) -> str:
        return (await scheduler.get(name)).status

    @app.post("/schedules")
    def create(body: dict[str, str], scheduler: CurrentScheduler) -> str:
        return scheduler.create(body["schedule_id"], body["workflow"], Cron(body["cron"])).status

    @app.post("/schedules/{name}/pause")
    def pause(name: str, scheduler: CurrentScheduler) -> str:
        return scheduler.get(name).pause().status

    return app


NIGHTLY = {"schedule_id": "nightly", "workflow": "note", "cron": "0 2 * * *"}
SAME: dict[str, tuple[str, str, dict[str, str] | None, int]] = {
    "what is not there": ("GET", "/schedules/nope", None, 404),
    "what is there already": ("POST", "/schedules", NIGHTLY, 409),
    "a field that is refused": ("POST", "/schedules", {**NIGHTLY, "schedule_id": "b", "cron": "61 2 * * *"}, 422),
    "a workflow that nobody knows": ("POST", "/schedules", {**NIGHTLY, "schedule_id": "b", "workflow": "nope"}, 422),
    "a wrong status": ("POST", "/schedules/nightly/pause", None, 400),
}


def test_errors_are_answered_as_the_http_api_answers_them(env: Env) -> None:
    env.create("nightly").pause()
    app = make_host(env)

    async def answer(method: str, path: str, body: dict[str, str] | None) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return await client.request(method, path, json=body, headers={"X-Request-Id": "of-caller"})

    for case, (method, path, body, status) in SAME.items():
        own = asyncio.run(answer(method, path, body))
        native = asyncio.run(answer(method, f"/rqsched/api/v1{path}/", body))
        assert (own.status_code, native.status_code) == (status, status), case
        assert own.json().keys() == native.json().keys()
        assert {**own.json(), "detail": "", "errors": []} == {**native.json(), "detail": "", "errors": []}
        assert own.headers["content-type"] == native.headers["content-type"]


STATUSES: list[tuple[RqschedError, int]] = [
    (VersionConflictError("nightly", 1, 2), 412),
    (QuotaExceededError("acme", "schedules", limit=1, used=1, wanted=2), 403),
    (BackendUnavailableError("the database at db.internal does not answer"), 503),
    (ConfigError("RQSCHED_REDIS_URL holds hunter2"), 500),
]


@pytest.mark.parametrize(("error", "status"), STATUSES, ids=lambda value: getattr(type(value), "__name__", ""))
def test_error_that_an_endpoint_raises_has_its_status(env: Env, error: RqschedError, status: int) -> None:
    app = make_host(env)

    @app.get("/raise")
    def fail() -> None:
        raise error

    (answer,) = send(app, ("GET", "/raise"))
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == ("5" if status == 503 else None)
    assert "hunter2" not in answer.text


def test_handler_of_the_application_wins_for_its_class(env: Env) -> None:
    app = make_host(env)

    @app.exception_handler(NotFoundError)
    def own(request: Request, error: NotFoundError) -> JSONResponse:
        return JSONResponse({"mine": str(error)}, status_code=410)

    (answer,) = send(app, ("GET", "/schedules/nope"))
    assert (answer.status_code, list(answer.json())) == (410, ["mine"])
