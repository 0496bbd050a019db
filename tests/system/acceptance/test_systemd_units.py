"""The units of examples/deployment/systemd: systemd reads them, and each command starts with its unit's options.

No service manager runs here. The tests cover the process that a unit describes, not systemd's sandbox.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rqsched import Every, Scheduler
from rqsched.config import Settings
from rqsched.http import server
from tests.support.env import SECOND
from tests.support.processes import BIN, SOON, Process, Processes, run_to_end, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.system.acceptance.deployment import APPLICATION, TOKENS, seconds
from tests.system.acceptance.test_process_commands import hear

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

UNITS = APPLICATION / "systemd"
SERVICES = ["rqsched-worker", "rqsched-dispatcher", "rqsched-web"]
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="no systemd here (Debian: apt install systemd)")


def options_of(name: str) -> dict[str, list[str]]:
    """Return the options of a unit, with those of the drop-in folder beside it."""
    files = UNITS / f"{name}.service", UNITS / "rqsched-.service.d" / "common.conf"
    found: dict[str, list[str]] = {}
    for line in "\n".join(file.read_text() for file in files).splitlines():
        if (match := re.fullmatch(r"(\w+)=(.*)", line)) is not None:
            found.setdefault(match[1], []).append(match[2].replace("%N", name))
    return found


def analyze(folder: Path, *words: str) -> str:
    """Return the output of `systemd-analyze` for copies of the units whose commands are in this venv."""
    copied = shutil.copytree(UNITS, folder / "units")
    for file in copied.glob("*.service"):
        file.write_text(file.read_text().replace("/opt/app/.venv/bin", str(BIN)))
    files = sorted(copied.glob("*.service"))
    assert ANALYZE is not None
    command = [ANALYZE, "--no-pager", *words]
    asked = [subprocess.run([*command, one], capture_output=True, text=True, check=False) for one in files]
    return "".join(one.stderr + (one.stdout if one.returncode else "") for one in asked)


@needs_systemd
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path: Path) -> None:
    assert analyze(tmp_path, "verify", "--man=no") == ""


@needs_systemd
def test_systemd_rates_each_as_little_exposed(tmp_path: Path) -> None:
    assert analyze(tmp_path, "security", "--offline=yes", "--threshold=20") == "", "of 100: 20 is what it calls 2.0"


def test_a_unit_stops_later_than_its_process_may_take_to_end() -> None:
    stops = {name: seconds(options_of(name)["TimeoutStopSec"][0]) for name in SERVICES}

    assert stops["rqsched-worker"] > Settings().run_timeout.total_seconds()
    assert stops["rqsched-web"] > server._GRACE


def test_a_unit_is_watched_at_an_interval_that_its_process_can_keep() -> None:
    found = {name: options_of(name) for name in SERVICES}

    assert {(*one["Type"], *one["WatchdogSec"], *one["KillMode"]) for one in found.values()} == {
        ("notify", "30", "mixed")
    }
    assert server._TELL_SECONDS * 5 <= 30


class Machine:
    """A replacement of the units' machine: its folders are in the test's folder, and it runs nothing else."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        for name in ("etc", "run", "credentials"):
            (folder / name).mkdir()
        shutil.copytree(APPLICATION, folder / "app")

    def _here(self, text: str) -> str:
        places = {"/etc/rqsched": "etc", "%t": "run", "/opt/app": "app"}
        for there, here in places.items():
            text = text.replace(there, str(self.folder / here))
        return text

    def environment(self, name: str) -> dict[str, str]:
        """The variables that systemd gives to the process of a unit."""
        options = options_of(name)
        lines = [self._here(line) for line in options["Environment"]]
        for file in options["EnvironmentFile"]:
            lines += Path(self._here(file)).read_text().splitlines()
        (credentials := self.folder / "credentials" / name).mkdir(exist_ok=True)
        for credential, _, file in (line.partition(":") for line in options["LoadCredential"]):
            shutil.copy(self._here(file), credentials / credential)
        (self.folder / "run" / options["RuntimeDirectory"][0]).mkdir(mode=0o700, exist_ok=True)
        told = {"CREDENTIALS_DIRECTORY": str(credentials)} | {
            k: v for k, _, v in (line.partition("=") for line in lines)
        }
        if "WatchdogSec" in options:
            told |= {"NOTIFY_SOCKET": str(self.folder / name), "WATCHDOG_USEC": "1000000"}  # sooner than the unit says
        return told

    def command(self, name: str) -> list[str | Path]:
        [line] = options_of(name)["ExecStart"]
        return [*line.replace("/opt/app/.venv/bin", str(BIN)).split()]

    def start(self, name: str, *, port: int | None = None) -> Process:
        words = [str(port) if word == "8000" else word for word in self.command(name)]
        folder = Path(self._here(options_of(name)["WorkingDirectory"][0]))
        return self.processes.start(words, cwd=folder, **self.environment(name))


@pytest.fixture
def machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    short = tmp_path_factory.mktemp("machine")  # the path of a socket has at most 107 bytes
    with closing(Processes(tmp_path, {})) as processes:
        yield Machine(short, processes)


@pytest.mark.postgres
def test_each_command_starts_is_ready_lives_and_ends_with_what_its_unit_gives_it(
    machine: Machine, empty_postgres_url: str, redis_url: str
) -> None:
    files = {"environment": "RQSCHED_IMPORTS=jobs\n", "database_url": empty_postgres_url, "redis_url": redis_url}
    for name, text in {**files, "tokens": TOKENS}.items():
        (machine.folder / "etc" / name).write_text(text)
    upgraded = machine.start("rqsched-upgrade")
    assert upgraded.wait() == 0, upgraded.log()

    with ExitStack() as stack:
        managers = {name: stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for name in SERVICES}
        for name, listening in managers.items():
            listening.bind(str(machine.folder / name))
            listening.settimeout(SOON)
        port = free_port()
        started = {name: machine.start(name, port=port) for name in SERVICES}
        for listening in managers.values():
            hear(listening, "READY=1")

        with closing(Scheduler(database_url=empty_postgres_url, redis_url=redis_url)) as scheduler:
            greeting = scheduler.create("greeting", "greet", Every(SECOND), args=["Ada"])
            wait_until(lambda: greeting.refresh().success_count > 1, timeout=SOON, what="runs of jobs.py")
            greeting.pause()
        for name in SERVICES[:2]:
            run_dir = machine.environment(name)["RQSCHED_RUN_DIR"]
            pinged = run_to_end([BIN / "rqsched", "ping"], {"RQSCHED_RUN_DIR": run_dir})
            assert pinged.stdout.startswith(f"{name.removeprefix('rqsched-')}-{started[name].pid} is alive")
        assert status_of(f"http://127.0.0.1:{port}/readyz") == 200
        assert status_of(f"http://127.0.0.1:{port}/api/v1/schedules/") == 401

        for name, listening in managers.items():
            assert "WATCHDOG=1" in hear(listening, "WATCHDOG=1")
            started[name].signal(signal.SIGTERM)
            hear(listening, "STOPPING=1")
            assert started[name].wait() in {0, -signal.SIGTERM}, started[name].log()
