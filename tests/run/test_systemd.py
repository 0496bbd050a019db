"""The notifications to systemd, over a real datagram socket."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rqsched.run.vital_signs import Systemd
from tests.support.processes import wait_until


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address as systemd writes it, and its end of the socket."""
    name = f"@rqsched-{uuid.uuid4().hex}" if request.param == "abstract" else str(tmp_path / "notify")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.setblocking(False)
        yield name, listening


def heard(listening: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listening.recv(1024).decode())
        except BlockingIOError:
            return found


def test_it_is_told_once_when_a_process_is_ready_and_once_when_it_stops(manager: tuple[str, socket.socket]) -> None:
    name, listening = manager
    systemd = Systemd({"NOTIFY_SOCKET": name})

    systemd.tell()
    assert heard(listening) == []
    for _ in range(3):
        systemd.tell(is_ready=True)
    assert heard(listening) == ["READY=1"]
    for _ in range(3):
        systemd.tell(is_ready=True, is_stopping=True)
    assert heard(listening) == ["STOPPING=1"]


def test_its_watchdog_is_told_twice_an_interval_while_the_loop_turns(manager: tuple[str, socket.socket]) -> None:
    name, listening = manager
    systemd = Systemd({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": str(os.getpid())})

    systemd.tell()
    systemd.tell()
    assert heard(listening) == ["WATCHDOG=1"]

    def is_told_again() -> bool:
        systemd.tell()
        return heard(listening) == ["WATCHDOG=1"]

    wait_until(is_told_again, what="another one")


@pytest.mark.parametrize("differs", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_USEC": "soon"}])
def test_a_watchdog_of_another_process_or_none_is_not_told(
    manager: tuple[str, socket.socket], differs: dict[str, str]
) -> None:
    name, listening = manager
    Systemd({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"} | differs).tell(is_ready=True)
    assert heard(listening) == ["READY=1"]


def test_its_variables_are_taken_so_that_no_child_speaks_in_this_ones_name(manager: tuple[str, socket.socket]) -> None:
    environment = {"NOTIFY_SOCKET": manager[0], "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    Systemd(environment)
    assert environment == {"PATH": "/bin"}


def test_without_systemd_nobody_is_told() -> None:
    Systemd({}).tell(is_ready=True, is_stopping=True)


def test_a_systemd_that_does_not_listen_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Systemd({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).tell(is_ready=True)
    assert "systemd is not told READY=1" in caplog.text
