"""The command as PID 1 of a container: in a PID namespace of its own, where that is allowed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.env import ONCE
from tests.support.processes import BIN, REPOSITORY, wait_until
from tests.system.acceptance.chores import LEAVE_ORPHANS
from tests.system.acceptance.live import LiveEnv

CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
BEGIN = "import os, signal, sys, time; from rqsched.run.pid_one import leave_first_process; leave_first_process(); "


def _is_allowed() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(not _is_allowed(), reason="unshare may make no PID namespace here"),
]


def run_as_first(code: str) -> int:
    return subprocess.run([*CONTAINER, sys.executable, "-c", BEGIN + code], check=False, timeout=60).returncode


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit(7)", 7),
        ("pass", 0),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9)); os.kill(1, signal.SIGUSR1); time.sleep(60)", 9),
        ("os.kill(1, signal.SIGTERM); time.sleep(60)", 128 + signal.SIGTERM),
        ("sys.exit(3 if os.getpid() != 1 and os.getppid() == 1 and os.getpgrp() == os.getpid() else 4)", 3),
    ],
)
def test_first_process_forwards_signals_and_ends_as_its_child_does(code: str, status: int) -> None:
    assert run_as_first(code) == status


def test_command_that_is_not_the_first_process_stays_as_it_is() -> None:
    code = f"import os; before = os.getpid(); {BEGIN} sys.exit(5 if os.getpid() == before else 6)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 5


@pytest.mark.parametrize(
    "command",
    [
        [BIN / "rqsched", "worker"],
        [sys.executable, "-m", "rqsched", "worker"],
        [sys.executable, REPOSITORY / "worker.py"],
    ],
    ids=["rqsched", "module", "worker.py"],
)
def test_worker_that_is_the_first_process_leaves_no_zombies_of_what_runs_started(
    live: LiveEnv, command: list[str | Path]
) -> None:
    container = live.start([*CONTAINER, *command])
    for number in range(3):
        live.wait_for_status(live.run_now(f"orphan-{number}", LEAVE_ORPHANS, retry=ONCE), "succeeded")
    (first,) = psutil.Process(container.pid).children()

    wait_until(lambda: not _zombies(first), what=lambda: f"an end of {_zombies(first)}")
    first.send_signal(signal.SIGTERM)

    assert container.wait() == 0
    live.check()


def _zombies(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if child.status() == psutil.STATUS_ZOMBIE]
