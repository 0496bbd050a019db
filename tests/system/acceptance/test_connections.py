"""How Redis is reached: a UNIX socket, TLS with certificates on both sides, a user with limited rights."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from rqsched import Every
from tests.support.cli import Cli
from tests.support.env import SECOND
from tests.support.narrow import present
from tests.support.processes import SOON, rqsched_command, run_to_end
from tests.support.rights import RIGHTS
from tests.support.servers import ValkeyServer
from tests.support.tls import tls_before
from tests.system.acceptance.live import RQ_KINDS, LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


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
WORKERS = {"rqsched": "", "rq": "fork", "simple": "simple", "spawn": "spawn"}
"""RQ's own kind of each; the first is ours."""


@pytest.fixture(params=WAYS)
def url(request: pytest.FixtureRequest, own_valkey: ValkeyServer) -> Iterator[str]:
    """A Redis that is reached this way alone."""
    with WAYS[request.param](own_valkey) as url:
        yield url


@pytest.fixture
def live(make_live: MakeLive, sqlite_url: str, url: str) -> LiveEnv:
    return make_live(sqlite_url, redis_url=url)


def _case(way: str, kind: str) -> Any:
    is_tried = way == "tls" or kind in {"rqsched", "rq"} or (way, kind) == ("socket", "spawn")
    return pytest.param(way, WORKERS[kind], id=f"{way}-{kind}", marks=[] if is_tried else [pytest.mark.nightly])


@pytest.mark.parametrize(("url", "worker"), [_case(way, kind) for way in WAYS for kind in WORKERS], indirect=["url"])
def test_schedules_fire_and_runs_succeed(live: LiveEnv, worker: str) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    if worker:
        live.start_rq(*RQ_KINDS[worker], RQSCHED_REDIS_URL="")
    else:
        live.start_worker()

    live.wait_for_successes(schedule, more=2)
    schedule.pause()
    live.check()


def test_every_command_and_the_web_reach_it(live: LiveEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = live.note_every("nightly", Every("1h"))
    ended = run_to_end(rqsched_command("trigger", "nightly"), live.environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name, value in live.environment.items():
        monkeypatch.setenv(name, value)
    for words in (["recover", "--deep"], ["tick"], ["list"], ["forecast", "upcoming"], ["pause", "nightly"]):
        assert Cli(live.scheduler)(*words).err == "", words
    assert schedule.refresh().run_count == 1
    web = live.start(rqsched_command("web", "--port", "0"))
    web.wait_for_log("Uvicorn running on")
    found = present(re.search(r"http://127\.0\.0\.1:\d+", web.log()))
    with urllib.request.urlopen(f"{found[0]}/readyz", timeout=SOON) as answer:
        assert answer.status == 200


def test_a_run_is_ended_by_a_command_over_it(live: LiveEnv) -> None:
    """RQ publishes its commands, for which a user needs a right."""
    run = live.hold_now(timeout=300)
    live.start_worker()
    live.wait_for_execution(run)

    run.terminate()

    live.wait_for_status(run, "terminated")


def test_a_client_without_a_certificate_is_away_and_the_reason_is_told(
    own_valkey: ValkeyServer, make_live: MakeLive, sqlite_url: str
) -> None:
    with tls_before(own_valkey.port, own_valkey.folder) as proxy:
        live = make_live(sqlite_url, redis_url=f"{proxy.bare_url}?{proxy.shown}")
        doctor = live.start(rqsched_command("doctor"))
        assert doctor.wait() == 1
        assert "CERTIFICATE_VERIFY_FAILED" in doctor.log()
