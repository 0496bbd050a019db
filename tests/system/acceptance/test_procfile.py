"""The Procfile of examples/deployment: its commands start with the platform's variables, and end as it ends a dyno."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from rqsched import Every, Scheduler
from tests.support.env import SECOND
from tests.support.processes import BIN, SOON, Process, process_tree, run_to_end, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.system.acceptance.deployment import APPLICATION, TOKEN, TOKENS
from tests.system.acceptance.live import LATER, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240), pytest.mark.postgres]

COMMANDS = dict(line.split(": ", 1) for line in (APPLICATION / "Procfile").read_text().splitlines())


@pytest.fixture
def live(tmp_path: Path, empty_postgres_url: str, redis_url: str) -> Iterator[LiveEnv]:
    """The platform's environment for each dyno, after the release command."""
    environment = {
        "DATABASE_URL": empty_postgres_url.replace("postgresql+psycopg://", "postgres://"),
        "REDIS_URL": redis_url,
        "PORT": str(free_port()),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RQSCHED_IMPORTS": "jobs,tests.system.acceptance.chores",
        "RQSCHED_TOKENS": TOKENS,
    }
    released = run_to_end(["sh", "-c", COMMANDS["release"]], environment)
    assert released.returncode == 0, released.stderr
    scheduler = Scheduler(database_url=empty_postgres_url, redis_url=redis_url)
    with closing(LiveEnv(tmp_path, environment, scheduler)) as live:
        yield live


def start(live: LiveEnv, name: str) -> Process:
    """Start a dyno, which has a file system of its own."""
    (own := live.folder / name).mkdir()
    return live.start(["sh", "-c", COMMANDS[name]], cwd=APPLICATION, RQSCHED_RUN_DIR=str(own))


def test_each_command_starts_with_the_variables_of_a_platform(live: LiveEnv) -> None:
    assert list(COMMANDS) == ["release", "web", "worker", "dispatcher"]
    for name in COMMANDS.keys() - {"release"}:
        start(live, name)

    url = f"http://127.0.0.1:{live.environment['PORT']}/api/v1/workflows/"
    wait_until(lambda: status_of(url) == 401, timeout=SOON, what="web, which knows its tokens")
    known = {"Authorization": f"Bearer {TOKEN}"}
    wait_until(lambda: "greet" in httpx.get(url, headers=known).text, timeout=SOON, what="a worker that knows jobs.py")
    live.wait_for_successes(live.scheduler.create("greeting", "greet", Every(SECOND), args=["Ada"]))


def test_a_run_in_a_dyno_that_is_ended_is_settled_although_each_of_its_processes_is_told(live: LiveEnv) -> None:
    """Heroku sends SIGTERM to every process of a dyno, so no run can end in order there."""
    worker = start(live, "worker")
    held = live.hold_now(retry=LATER)
    live.wait_for_execution(held)

    for process in process_tree(worker.pid):
        process.send_signal(signal.SIGTERM)

    worker.wait()
    live.wait_for_status(held, "retrying")
    live.check()
