"""`rqsched dev` over `examples/ops`, which is what `make demo` runs: one sees schedules fire, and nothing stays."""

from __future__ import annotations

import csv
import os
import pty
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from rqsched import embedded
from tests.support.narrow import present
from tests.support.processes import (
    BIN,
    REPOSITORY,
    SOON,
    Process,
    is_gone,
    process_tree,
    rqsched_command,
    start,
    wait_until,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
SCHEDULES = {"sample-machine", "deliver-report", "tend-logs", "back-up-database"}


def start_dev(data_dir: Path, *options: str) -> Process:
    data_dir.mkdir(exist_ok=True)
    environment = {"RQSCHED_DATA_DIR": str(data_dir), "RQSCHED_IMPORTS": "examples.ops"}
    log_path = data_dir.parent / f"dev-{len(list(data_dir.parent.glob('dev-*')))}.log"
    return start(rqsched_command("dev", *options), log_path=log_path, env=environment)


@pytest.fixture
def dev(data_dir: Path) -> Iterator[Process]:
    process = start_dev(data_dir)
    yield process
    process.terminate(timeout=SOON)


@pytest.fixture(scope="module")
def shared_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "data"


@pytest.fixture(scope="module")
def shared_dev(shared_data_dir: Path) -> Iterator[Process]:
    """A shared `rqsched dev`, because each start takes seconds."""
    process = start_dev(shared_data_dir)
    process.wait_for_log("sample-machine attempt 1: succeeded")
    yield process
    process.terminate(timeout=SOON)
    embedded.stop(shared_data_dir)


def everything_started(process: Process, data_dir: Path) -> list[psutil.Process]:
    """Its process tree and its Valkey, which is no child of it."""
    valkey = present(embedded.find(data_dir))
    return [*process_tree(process.pid), psutil.Process(valkey.pid)]


def pid_of(role: str, log: str) -> int:
    return int(re.findall(rf"^{role} .* with pid (\d+)$", log, re.MULTILINE)[-1])


def scheduled(data_dir: Path) -> dict[str, int]:
    """The run count of each schedule, as the database has it."""
    with closing(sqlite3.connect(data_dir / "rqsched.db")) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE name LIKE '%schedules'")]
        return dict(database.execute(f"SELECT schedule_id, run_count FROM {names[0]}"))


@pytest.mark.once
def test_the_demo_shows_fires_ends_by_itself_and_goes_on_with_the_same_data(data_dir: Path) -> None:
    first = start_dev(data_dir, "--seconds", "30")
    first.wait_for_log("sample-machine attempt 1: succeeded")
    started = everything_started(first, data_dir)

    assert first.wait() == 0, first.log()
    assert [process for process in started if not is_gone(process)] == []
    assert all(f"schedule {name}" in first.log() for name in SCHEDULES)
    before = scheduled(data_dir)

    second = start_dev(data_dir)
    second.wait_for_log("sample-machine attempt 1: succeeded")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.log()
    assert "sample-machine fired" in second.log()
    after = scheduled(data_dir)
    assert set(after) == set(before) == SCHEDULES
    assert after["sample-machine"] > before["sample-machine"]
    with (data_dir / "ops" / "machine.csv").open(newline="") as samples:
        assert len(list(csv.DictReader(samples))) >= 2


def wait_for_further_runs(process: Process) -> None:
    seen = process.log().count("attempt 1: succeeded")
    wait_until(
        lambda: process.log().count("attempt 1: succeeded") > seen + 1,
        timeout=SOON,
        what=lambda: f"runs\n{process.log()}",
    )


@pytest.mark.parametrize("role", ["dispatcher", "runs"])
def test_what_the_screen_says_to_kill_comes_back(shared_dev: Process, role: str) -> None:
    killed = pid_of(role, shared_dev.log())

    os.kill(killed, signal.SIGKILL)

    wait_until(lambda: pid_of(role, shared_dev.log()) != killed, timeout=SOON, what=f"another {role}")
    wait_for_further_runs(shared_dev)


def test_a_killed_valkey_comes_back(shared_dev: Process, shared_data_dir: Path) -> None:
    killed = present(embedded.find(shared_data_dir))

    os.kill(killed.pid, signal.SIGKILL)

    wait_for_further_runs(shared_dev)


def test_a_second_one_on_the_same_data_is_refused(shared_dev: Process, shared_data_dir: Path) -> None:
    second = start_dev(shared_data_dir)

    assert second.wait() != 0
    assert "runs on" in second.log()
    assert "Traceback" not in second.log()
    assert shared_dev.is_running


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_everything_it_started(dev: Process, data_dir: Path, end: signal.Signals) -> None:
    dev.wait_for_log("sample-machine attempt 1: succeeded")
    started = everything_started(dev, data_dir)

    dev.signal(end)

    dev.wait()
    wait_until(lambda: all(is_gone(process) for process in started), timeout=SOON, what=f"the end of {started}")


def test_a_killed_one_leaves_a_valkey_that_the_next_one_ends(dev: Process, data_dir: Path) -> None:
    dev.wait_for_log("sample-machine fired")
    dev.kill_tree()
    left = present(embedded.find(data_dir))
    process = psutil.Process(left.pid)

    assert start_dev(data_dir, "--seconds", "1").wait() == 0

    assert is_gone(process)
    assert embedded.find(data_dir) is None


@pytest.mark.parametrize("is_made", [False, True], ids=["dev", "make demo"])
def test_in_a_terminal_a_screen_is_drawn_and_ctrl_c_ends_it(data_dir: Path, is_made: bool) -> None:
    venv = BIN.parent
    make = ["make", "-C", REPOSITORY, "-o", f"{venv}/.demo", f"VENV={venv}", f"DATA={data_dir}", "ARGS=", "demo"]
    command = [str(word) for word in (make if is_made else rqsched_command("dev"))]
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"RQSCHED_DATA_DIR": str(data_dir), "RQSCHED_IMPORTS": "examples.ops"}
        os.environ |= {"TERM": "xterm", "COLUMNS": "80"}
        os.execvp(command[0], command)
    shown = bytearray()

    def has(*texts: str) -> bool:
        with suppress(OSError):  # the terminal of a process that has ended
            shown.extend(os.read(terminal, 65_536))
        return all(text.encode() in shown for text in texts)

    wait_until(lambda: has("sample-machine", "succeeded", "Try next", "kill -9"), timeout=SOON, what="the screen")
    os.write(terminal, b"\x03")
    wait_until(lambda: has("Ended."), timeout=SOON, what="the end")
    _, status = os.waitpid(child, 0)
    has()

    # make dies of the signal itself, or, when the command it waits for has ended first, ends as that did.
    assert status in ({0, signal.SIGINT} if is_made else {0}), shown.decode()
    assert b"***" not in shown
    assert embedded.find(data_dir) is None
