"""Secrets in files: processes find their servers by them, and no environment, log or answer contains them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from redis import Redis

from rqsched import Every, Scheduler
from tests.support.env import SECOND
from tests.support.processes import BIN, process_tree, rqsched_command, run_to_end
from tests.support.servers import ValkeyServer
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180), pytest.mark.usefixtures("cold_commands")]
PASSWORD = "hunter2-of-redis"
NAMES = "RQSCHED_DATABASE_URL", "RQSCHED_REDIS_URL"


@pytest.fixture
def closed_redis_url(own_valkey: ValkeyServer) -> str:
    """A Redis that asks for a password."""
    with Redis.from_url(own_valkey.url) as redis:
        redis.config_set("requirepass", PASSWORD)
    return own_valkey.url.replace("//", f"//:{PASSWORD}@")


@pytest.fixture
def live(closed_redis_url: str, sqlite_url: str, tmp_path: Path) -> Iterator[LiveEnv]:
    """A live environment whose processes find SQL and Redis in files, which each test names in its way."""
    (tmp_path / "secrets").mkdir()
    for name, url in zip(NAMES, (sqlite_url, closed_redis_url), strict=True):
        (tmp_path / "secrets" / name).write_text(f"{url}\n")
    environment = {"RQSCHED_IMPORTS": "tests.system.acceptance.chores", "RQSCHED_RUN_DIR": str(tmp_path / "run")}
    scheduler = Scheduler(database_url=sqlite_url, redis_url=closed_redis_url)
    with closing(LiveEnv(tmp_path, environment, scheduler)) as live:
        yield live


def in_files(folder: Path) -> dict[str, str]:
    return {f"{name}_FILE": str(folder / name) for name in NAMES}


def as_credentials(folder: Path) -> dict[str, str]:
    return {"CREDENTIALS_DIRECTORY": str(folder)}


COMMANDS: dict[str, Sequence[str | Path]] = {
    "worker": rqsched_command("worker"),
    "runners": rqsched_command("worker", "--concurrency", "2"),
    "preload": [BIN / "rq", "worker", "-c", "rqsched.preload", "rqsched", "default"],
    "spawn": [BIN / "rq", "worker", "-c", "rqsched.preload", "-w", "rqsched.rq.SpawnWorker", "rqsched", "default"],
    "dev": rqsched_command("dev"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("said", [in_files, as_credentials])
def test_processes_find_sql_and_redis_in_files_and_show_no_password(
    live: LiveEnv, said: Callable[[Path], dict[str, str]], command: str
) -> None:
    live.environment |= said(live.folder / "secrets") | {"RQSCHED_DATA_DIR": str(live.folder / "data")}
    worker = live.start(COMMANDS[command])
    live.wait_for_successes(live.note_every("tick", Every(SECOND)))

    holders = [one for one in process_tree(worker.pid) if PASSWORD in environment_of(one)]

    assert [" ".join(one.cmdline()) for one in holders] == []
    assert PASSWORD not in worker.log()


def environment_of(process: psutil.Process) -> str:
    """The environment that a process was started with; empty when it has ended."""
    try:
        return str(process.environ())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def doctor(live: LiveEnv) -> tuple[int, str]:
    asked = run_to_end(rqsched_command("doctor", "-o", "json"), live.environment)
    return asked.returncode, asked.stdout + asked.stderr


@pytest.mark.parametrize("said", [in_files, as_credentials])
def test_doctor_looks_where_the_files_say_and_shows_no_password(
    live: LiveEnv, said: Callable[[Path], dict[str, str]]
) -> None:
    live.environment |= said(live.folder / "secrets")
    _, told = doctor(live)

    found = {one["check"]: one for one in json.loads(told)["findings"]}
    assert (found["database"]["level"], found["redis"]["level"]) == ("ok", "ok")
    assert PASSWORD not in told


def test_a_file_that_is_gone_ends_a_start_and_is_named_by_doctor(live: LiveEnv) -> None:
    live.environment |= in_files(live.folder / "secrets")
    (gone := live.folder / "secrets" / "RQSCHED_REDIS_URL").unlink()
    message = f"RQSCHED_REDIS_URL_FILE names {gone}, which does not exist; correct the path."

    worker = live.start_worker()

    assert worker.wait() == 2
    assert message in worker.log()
    code, told = doctor(live)
    assert (code, json.loads(told)["findings"][-1]["detail"]) == (1, message)
