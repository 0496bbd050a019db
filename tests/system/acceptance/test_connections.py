"""How Redis is reached: a UNIX socket, TLS with certificates on both sides, a user with limited rights."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from rqsched import Every
from tests.support.cli import Cli
from tests.support.processes import BIN, rqsched_command, wait_until
from tests.support.rights import RIGHTS
from tests.support.servers import ValkeyServer
from tests.support.tls import tls_before
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
SECOND = timedelta(seconds=1)
SOON = 60.0


@contextmanager
def over_a_socket(server: ValkeyServer) -> Iterator[str]:
    server.options += ("--unixsocket", str(server.folder / "valkey.sock"))
    server.stop()
    server.start()
    yield f"unix://{server.folder}/valkey.sock?db=0"


@contextmanager
def over_tls(server: ValkeyServer) -> Iterator[str]:
    with tls_before(server.port, server.folder) as proxy:
        yield proxy.url


@contextmanager
def as_a_user(server: ValkeyServer) -> Iterator[str]:
    with Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">p@ss/word", *RIGHTS)
        admin.execute_command("ACL", "SETUSER", "default", "off")
    yield f"redis://app:p%40ss%2Fword@127.0.0.1:{server.port}/0"


WAYS = {"socket": over_a_socket, "tls": over_tls, "user": as_a_user}
WORKERS: dict[str, list[str]] = {
    "rqsched": [],
    "rq": ["rqsched.rq.Worker"],
    "simple": ["rqsched.rq.SimpleWorker"],
    "spawn": ["rqsched.rq.SpawnWorker"],
}


@pytest.fixture(params=WAYS)
def url(request: pytest.FixtureRequest, own_valkey: ValkeyServer) -> Iterator[str]:
    """A Redis that is reached this way alone."""
    with WAYS[request.param](own_valkey) as url:
        yield url


@pytest.fixture
def live(make_live: MakeLive, sqlite_url: str, url: str) -> LiveEnv:
    return make_live(sqlite_url, redis_url=url)


def start_worker(live: LiveEnv, worker: list[str]) -> None:
    """RQ's workers are told their Redis by RQ's own option alone."""
    if not worker:
        live.start(rqsched_command("worker"))
        return
    url = live.environment["RQSCHED_REDIS_URL"]
    command: list[str | Path] = [BIN / "rq", "worker", "-w", *worker, "--url", url, "rqsched", "default"]
    live.start(command, RQSCHED_REDIS_URL="")


def _case(way: str, kind: str) -> Any:
    is_tried = way == "tls" or kind in {"rqsched", "rq"} or (way, kind) == ("socket", "spawn")
    return pytest.param(way, WORKERS[kind], id=f"{way}-{kind}", marks=[] if is_tried else [pytest.mark.proof])


@pytest.mark.parametrize(("url", "worker"), [_case(way, kind) for way in WAYS for kind in WORKERS], indirect=["url"])
def test_schedules_fire_and_runs_succeed(live: LiveEnv, worker: list[str]) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    start_worker(live, worker)

    wait_until(lambda: schedule.refresh().state.success_count >= 2, timeout=SOON, what="two runs")
    schedule.pause()
    live.check()


def test_every_command_and_the_web_reach_it(live: LiveEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = live.note_every("nightly", Every("1h"))
    command = [str(word) for word in rqsched_command("trigger", "nightly")]
    environment = {**os.environ, **live.environment}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name, value in live.environment.items():
        monkeypatch.setenv(name, value)
    for words in (["recover", "--deep"], ["tick"], ["list"], ["upcoming"], ["pause", "nightly"]):
        assert Cli(live.scheduler)(*words).err == "", words
    assert schedule.refresh().run_count == 1
    web = live.start(rqsched_command("web", "--port", "0"))
    web.wait_for_log("Uvicorn running on", timeout=SOON)
    found = re.search(r"http://127\.0\.0\.1:\d+", web.log())
    assert found is not None
    with urllib.request.urlopen(f"{found[0]}/readyz", timeout=SOON) as answer:
        assert answer.status == 200


def test_a_run_is_ended_by_a_command_over_it(live: LiveEnv) -> None:
    """Commands of RQ are published: a user needs a right for that."""
    run = live.hold_now(timeout=300)
    start_worker(live, [])
    live.wait_for_execution(run)

    run.terminate()

    live.wait_for_status(run, "terminated", timeout=SOON)


def test_a_client_without_a_certificate_is_away_and_the_reason_is_told(
    own_valkey: ValkeyServer, make_live: MakeLive, sqlite_url: str
) -> None:
    with tls_before(own_valkey.port, own_valkey.folder) as proxy:
        live = make_live(sqlite_url, redis_url=f"{proxy.bare_url}?{proxy.shown}")
        doctor = live.start(rqsched_command("doctor"))
        assert doctor.popen.wait(SOON) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in doctor.log()
