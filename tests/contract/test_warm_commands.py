"""A command that the harness forks is, to a test, one that was started from nothing: only its imports are done."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.support import warm
from tests.support.processes import Process, rqsched_command, start, wait_until
from tests.support.sizes import IS_NIGHTLY

pytestmark = pytest.mark.skipif(IS_NIGHTLY, reason="`make nightly` starts every command from nothing")


@pytest.fixture
def environment(sqlite_url: str, redis_url: str) -> dict[str, str]:
    return {"RQSCHED_DATABASE_URL": sqlite_url, "RQSCHED_REDIS_URL": redis_url}


def _start(folder: Path, environment: dict[str, str], *words: str) -> Process:
    return start(rqsched_command(*words), log_path=folder / "log", env=environment, cwd=folder)


def _is_forked(process: Process) -> bool:
    return isinstance(process.popen, warm.ForkedCommand)


@pytest.mark.parametrize(
    ("words", "code"), [(("list",), 0), (("describe", "nope"), 3), (("worker", "--concurrency", "0"), 2)]
)
def test_it_writes_and_ends_as_one_started_from_nothing(
    words: tuple[str, ...], code: int, environment: dict[str, str], tmp_path: Path
) -> None:
    for name in ("forked", "started"):
        (tmp_path / name).mkdir()
    forked = _start(tmp_path / "forked", environment, *words)
    with warm.cold():
        started = _start(tmp_path / "started", environment, *words)

    assert [forked.wait(), started.wait()] == [code, code]
    assert forked.log() == started.log()
    assert (_is_forked(forked), _is_forked(started)) == (warm.CAN_FORK, False)


def test_it_hears_signals_and_leads_a_session_of_its_own(
    environment: dict[str, str], tmp_path: Path, redis: Redis
) -> None:
    worker = _start(tmp_path, environment, "worker")
    try:
        wait_until(lambda: redis.scard("rq:workers"), what="a worker")
        assert os.getsid(worker.pid) == worker.pid
        assert worker.is_running
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.kill_tree()
    assert not worker.is_running


def test_one_that_is_killed_has_the_code_of_its_signal(environment: dict[str, str], tmp_path: Path) -> None:
    worker = _start(tmp_path, environment, "worker")
    assert worker.kill_tree() == -signal.SIGKILL


def test_one_whose_environment_differs_otherwise_is_started_from_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    listing = _start(tmp_path, {**environment, "TZ": "Asia/Tokyo"}, "list")
    assert listing.wait() == 0
    assert not _is_forked(listing)


@pytest.mark.skipif(not warm.CAN_FORK, reason="nothing is forked here")
def test_without_the_process_that_commands_are_forked_from_they_are_started_from_nothing(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_parents", {})
    worker = _start(tmp_path, environment, "worker")
    assert _is_forked(worker)
    psutil.Process(worker.pid).parent().kill()

    assert worker.wait() == -signal.SIGKILL
    listing = _start(tmp_path, environment, "list")
    assert listing.wait() == 0
    assert not _is_forked(listing)


class TakesTooLongError(Exception):
    """The exception that ends a hanging test."""


class Interrupted:
    """A socket on which one waits too long."""

    def __init__(self, control: socket.socket) -> None:
        self.sendall = control.sendall
        self.close = control.close

    def recv(self, _: int) -> bytes:
        raise TakesTooLongError


@pytest.mark.skipif(not warm.CAN_FORK, reason="nothing is forked here")
def test_after_an_answer_that_was_not_awaited_no_other_is_taken_for_it(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = warm._Parent(())
    monkeypatch.setattr(warm, "_parents", {(): parent})
    monkeypatch.setattr(parent, "_control", Interrupted(parent._control))
    with pytest.raises(TakesTooLongError):
        _start(tmp_path, environment, "list")

    listing = _start(tmp_path, environment, "describe", "nope")
    assert listing.wait() == 3
    assert not _is_forked(listing)
