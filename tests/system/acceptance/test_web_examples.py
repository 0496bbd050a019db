"""The web applications of `examples/`, started with the commands of their READMEs: requested schedules fire."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from rqsched import Scheduler
from tests.support.processes import BIN, REPOSITORY, Process, Processes, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
SOON = 40.0
Request = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """One application with its requests and answers."""

    folder: str
    create: Callable[[str, int], Request]
    """Return the request that creates an object of a name, once or repeated after so many seconds."""
    path: Callable[[str, httpx.Response], str]
    """Return the path of the object from its name and the answer."""
    effect: tuple[str, str]
    """The pattern of the files that a run of the name `ada` writes, and the content of one of them."""
    refused: tuple[Request, ...]
    """Requests for objects that do not exist."""


def of_fastapi(name: str, seconds: int) -> Request:
    return {"method": "PUT", "url": f"/exports/{name}", "json": {"every": f"{seconds}s"}}


def of_flask(name: str, seconds: int) -> Request:
    return {"method": "POST", "url": "/reminders", "json": {"text": name, "seconds": seconds}}


def of_django(name: str, seconds: int) -> Request:
    form = {"name": name, "to": f"{name}@example.org", "every": f"{seconds}s"}
    return {"method": "POST", "url": "/digests/", "data": form}


EXAMPLES = {
    "fastapi": Example(
        "fastapi_app",
        of_fastapi,
        lambda name, _: f"/exports/{name}",
        ("exports/ada-*.csv", "day,orders"),
        ({"method": "PUT", "url": "/exports/ada", "json": {"every": "soon"}},),
    ),
    "flask": Example(
        "flask_app",
        of_flask,
        lambda _, answer: answer.headers["location"],
        ("reminders.txt", "ada"),
        (
            {"method": "POST", "url": "/reminders", "json": {"seconds": "soon", "text": "x"}},
            {"method": "POST", "url": "/reminders", "json": {"seconds": 10**20, "text": "x"}},
            {"method": "POST", "url": "/reminders", "json": {"seconds": 5}},
            {"method": "POST", "url": "/reminders", "json": []},
        ),
    ),
    "django": Example(
        "django_app",
        of_django,
        lambda name, _: f"/digests/{name}/",
        ("mails/*", "To: ada@example.org"),
        ({"method": "POST", "url": "/digests/", "data": {"name": "ada", "to": "ada@example.org", "every": "soon"}},),
    ),
}


@dataclass
class ExampleApp(Processes):
    """One application and its worker: a folder, a port, and the servers of the tests."""

    example: Example
    port: int = field(default_factory=free_port)

    @property
    def commands(self) -> list[str]:
        """The commands that the README says to run: the application's and the worker's."""
        page = (REPOSITORY / "examples" / self.example.folder / "README.md").read_text()
        return [line.strip() for line in page.splitlines() if line.startswith("    ") and "curl" not in line]

    def run(self, command: str) -> Process:
        words = shlex.split(command.replace("8000", str(self.port)))
        return self.start(["env", *words], cwd=self.folder)

    def start_web(self) -> Process:
        """Start the application; it answers when this returns."""
        web = self.run(self.commands[0])
        wait_until(
            lambda: status_of(f"http://127.0.0.1:{self.port}/") == 404,
            timeout=SOON,
            what=lambda: f"an answer of {self.example.folder}:\n{web.log()}",
        )
        return web

    def start_worker(self, *queues: str) -> Process:
        return self.run(self.commands[1])

    def send(self, request: Request) -> httpx.Response:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10) as client:
            return client.request(**request)

    def ask(self, name: str, seconds: int) -> str:
        """Ask for something; gives the path that shows it."""
        answer = self.send(self.example.create(name, seconds))
        assert answer.status_code in {200, 201}, answer.text
        return self.example.path(name, answer)

    def runs(self, path: str) -> list[dict[str, Any]]:
        answer = self.send({"method": "GET", "url": path})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["runs"]
        return found

    def effects(self) -> list[str]:
        return [path.read_text() for path in self.folder.glob(self.example.effect[0])]


@pytest.fixture
def app(request: pytest.FixtureRequest, redis_url: str, sqlite_url: str, tmp_path: Path) -> Iterator[ExampleApp]:
    environment = {
        "RQSCHED_DATABASE_URL": sqlite_url,
        "RQSCHED_REDIS_URL": redis_url,
        "PYTHONPATH": str(REPOSITORY),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    app = ExampleApp(tmp_path, environment, request.param)
    yield app
    app.close()


def armed(app: ExampleApp) -> int:
    """How many links wait in Redis."""
    database_url, redis_url = (app.environment[f"RQSCHED_{name}_URL"] for name in ("DATABASE", "REDIS"))
    with Scheduler(database_url=database_url, redis_url=redis_url) as scheduler:
        transport = scheduler.runtime.transport
        return transport.redis.zcard(transport.scheduled_key)


of_each = pytest.mark.parametrize("app", EXAMPLES.values(), ids=EXAMPLES.keys(), indirect=True)


@of_each
def test_what_a_web_request_creates_is_fired_by_a_worker(app: ExampleApp) -> None:
    app.start_web()
    path = app.ask("ada", 1)
    worker = app.start_worker()

    wait_until(
        lambda: any(run["status"] == "succeeded" for run in app.runs(path)),
        timeout=SOON,
        what=lambda: f"a run\n{worker.log()}",
    )

    assert any(app.example.effect[1] in text for text in app.effects())
    assert app.send({"method": "DELETE", "url": path}).status_code == 204
    assert app.send({"method": "GET", "url": path}).status_code == 404
    for refused in app.example.refused:
        assert app.send(refused).status_code == 422


@pytest.mark.parametrize("app", [EXAMPLES["fastapi"]], ids=["fastapi"], indirect=True)
def test_a_boot_of_the_application_brings_back_what_redis_lost(app: ExampleApp, redis: Redis) -> None:
    web = app.start_web()
    app.ask("ada", 3_600)
    assert armed(app) == 1
    web.kill_tree()
    redis.flushall()

    app.start_web()

    wait_until(lambda: armed(app) == 1, timeout=SOON, what="the link")


@pytest.mark.parametrize("app", [EXAMPLES["django"]], ids=["django"], indirect=True)
def test_a_deploy_of_the_django_example_brings_about_what_its_code_declares(app: ExampleApp) -> None:
    logs = []
    for command in app.commands[2:]:
        process = app.run(command)
        assert process.wait() == 0, process.log()
        logs.append(process.log())

    assert "1 created, 0 updated" in logs[0]
    assert "at 07:00" in logs[1]


@pytest.mark.parametrize("app", [EXAMPLES["fastapi"]], ids=["fastapi"], indirect=True)
def test_the_mounted_api_serves_what_the_application_created(app: ExampleApp) -> None:
    app.start_web()
    app.ask("ada", 3_600)

    listed = app.send({"method": "GET", "url": "/rqsched/api/v1/schedules/"}).json()["items"]
    paused = app.send({"method": "POST", "url": "/rqsched/api/v1/schedules/export:ada/pause/"})
    missing = app.send({"method": "GET", "url": "/rqsched/api/v1/schedules/other/"})

    assert [(one["id"], one["workflow"], one["status"]) for one in listed] == [
        ("export:ada", "export-orders", "active")
    ]
    assert paused.status_code == 200
    assert app.send({"method": "GET", "url": "/exports/ada"}).json()["next_at"] is None
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    assert app.send({"method": "GET", "url": "/rqsched/openapi.json"}).json()["servers"] == [{"url": "/rqsched"}]
