"""The layouts that docs/flask.md shows, as they are there: web process, workers and commands with one environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest

from rqsched import Scheduler
from tests.support.processes import (
    BIN,
    REPOSITORY,
    SOON,
    Process,
    Processes,
    rq_worker_command,
    rqsched_command,
    wait_until,
)
from tests.support.servers import free_port
from tests.support.serving import status_of

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
PAGE = REPOSITORY / "docs" / "flask.md"
MODULE = re.compile(r"^```python\n# (?P<path>\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SERVER = "import {module}, werkzeug; werkzeug.run_simple('127.0.0.1', {port}, {module}.{made})"


@dataclass
class Layout(Processes):
    """A folder with the modules of the page, and processes in it that have one environment."""

    port: int = field(default_factory=free_port)

    def write(self) -> None:
        for found in MODULE.finditer(PAGE.read_text()):
            path = self.folder / found["path"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(found["text"])

    def run(self, *words: str) -> str:
        """Run a command to its end, and return its output."""
        command = self.start(rqsched_command(*words), cwd=self.folder)
        assert command.wait() == 0, command.log()
        return command.log()

    def serve(self, *command: str | Path) -> Process:
        web = self.start(command, cwd=self.folder)
        wait_until(lambda: not web.is_running or status_of(self.url) == 404, timeout=SOON, what="an answer")
        assert web.is_running, web.log()
        return web

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def remind(self, user_id: int) -> None:
        # On a busy machine the first request takes more than a second, and the time may not have passed by then.
        at = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
        answer = httpx.post(f"{self.url}reminders", json={"id": user_id, "at": at}, timeout=20)
        assert answer.status_code == 201, answer.text

    def mail(self, user_id: int) -> str | None:
        """Return the result of the reminder's run, None before it ends."""
        database_url, redis_url = (self.environment[f"RQSCHED_{name}_URL"] for name in ("DATABASE", "REDIS"))
        with Scheduler(database_url=database_url, redis_url=redis_url) as scheduler:
            runs = scheduler.get(f"reminder:{user_id}").runs().items
        return next((run.result for run in runs if run.status == "succeeded"), None)


@pytest.fixture
def layout(sqlite_url: str, redis_url: str, tmp_path: Path) -> Iterator[Layout]:
    environment = {
        "RQSCHED_DATABASE_URL": sqlite_url,
        "RQSCHED_REDIS_URL": redis_url,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    layout = Layout(tmp_path, environment)
    layout.write()
    yield layout
    layout.close()


LAYOUTS = {"module": ("app", "app:app"), "factory": ("shop.worker", "shop:create_app()")}
DECLARED = {"app": "hello", "shop.worker": "tidy_up"}
"""The schedule that the modules of `RQSCHED_IMPORTS` declare."""
of_each = pytest.mark.parametrize(("imports", "application"), LAYOUTS.values(), ids=LAYOUTS.keys())


@of_each
def test_every_process_of_a_layout_has_the_same_imports(layout: Layout, imports: str, application: str) -> None:
    layout.environment["RQSCHED_IMPORTS"] = imports

    assert "1 created" in layout.run("sync"), "the application's own scheduler declares it"
    assert DECLARED[imports] in layout.run("list")
    layout.serve(BIN / "flask", "--app", application, "run", "--port", str(layout.port))
    worker = layout.start(rqsched_command("worker"), cwd=layout.folder)
    layout.remind(1)
    later = "2099-01-01T00:00:00Z"
    wrong = [{"id": 2, "at": "* * * * * *"}, {"id": 2, "at": "2099-01-01T00:00:00"}, {"id": 2}, {"at": later}]
    answers = [httpx.post(f"{layout.url}reminders", json=body, timeout=20).status_code for body in wrong]
    assert answers == [422, 422, 422, 422]
    wait_until(lambda: layout.mail(1), timeout=SOON, what=lambda: f"a mail\n{worker.log()}")
    again = httpx.post(f"{layout.url}reminders", json={"id": 1, "at": later}, timeout=20)
    assert (again.status_code, parsedate_to_datetime(again.json()["next_at"]).year) == (201, 2099)
    worker.terminate()
    queues = rq_worker_command(layout.environment["RQSCHED_REDIS_URL"], "rqsched", "default")
    plain = layout.start(queues, cwd=layout.folder)
    layout.remind(2)
    wait_until(lambda: layout.mail(2), timeout=SOON, what=lambda: f"a mail\n{plain.log()}")

    assert layout.mail(1) == "a mail to user 1 from shop@example.org"
    assert "1 unchanged" in layout.run("sync", "--delete-removed")


def test_users_of_the_factory_change_and_cancel_reminders(layout: Layout) -> None:
    layout.environment["RQSCHED_IMPORTS"] = "shop.worker"
    layout.serve(BIN / "flask", "--app", "shop:create_app()", "run", "--port", str(layout.port))
    httpx.post(f"{layout.url}reminders", json={"id": 7, "at": "2099-01-01T00:00:00Z"}, timeout=20).raise_for_status()

    for time in ("noon", "*:*"):
        odd = httpx.put(f"{layout.url}reminders/7", json={"time": time, "zone": "America/New_York"}, timeout=20)
        assert odd.status_code == 422
    unknown = httpx.delete(f"{layout.url}reminders/8", timeout=20)
    assert unknown.status_code == 404
    changed = httpx.put(f"{layout.url}reminders/7", json={"time": "08:30", "zone": "America/New_York"}, timeout=20)
    listed = layout.run("list")
    cancelled = httpx.delete(f"{layout.url}reminders/7", timeout=20)

    assert parsedate_to_datetime(changed.json()["next_at"]).astimezone(ZoneInfo("America/New_York")).hour == 8
    assert "at 08:30, every day, New York time" in listed
    assert cancelled.status_code == 204
    assert "reminder:7" not in layout.run("list")


@of_each
def test_a_wrong_import_is_logged_by_the_web_process_and_ends_workers_and_commands(
    layout: Layout, imports: str, application: str
) -> None:
    layout.environment["RQSCHED_IMPORTS"] = f"{imports},no_such_module"
    message = "RQSCHED_IMPORTS names 'no_such_module', which cannot be imported: No module named 'no_such_module'"
    module, _, made = application.partition(":")

    web = layout.serve(sys.executable, "-c", SERVER.format(module=module, made=made, port=layout.port))
    answer = httpx.post(f"{layout.url}reminders", json={"id": 1, "at": "2099-01-01T00:00:00Z"}, timeout=20)
    ended = [
        layout.start(command, cwd=layout.folder)
        for command in (
            rqsched_command("worker"),
            rqsched_command("sync"),
            rqsched_command("runs"),
            rqsched_command("web", "--port", "0"),
            rq_worker_command(layout.environment["RQSCHED_REDIS_URL"], "rqsched", "default"),
        )
    ]

    assert answer.status_code == 201
    assert message in web.log()
    for process in ended:
        assert process.wait() != 0, process.log()
        assert message in process.log()
