"""The bank of `examples/applications`: one command, and applications are reminded of, expire and are billed."""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from rqsched import Scheduler, embedded
from tests.support.narrow import present
from tests.support.processes import REPOSITORY, Process, is_gone, process_tree, start, wait_until
from tests.support.sizes import sized

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]
APPLICATIONS = sized(160, 2_000)
SOON = 240.0
NO_REDIS = "redis://127.0.0.1:1/0"
OPEN = {"pending", "running", "retrying", "waiting"}
COLUMNS = ("waiting", "reminded", "warned", "granted", "repaid", "expired", "reminders", "warnings", "invoices")


class Bank:
    """The command, and a look into the bank's tables."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._folder = folder
        self.processes: list[Process] = []

    def begin(self) -> Process:
        """Start the command with a day of one second."""
        options = ["--day", "1", "--applications", str(APPLICATIONS)]
        command = [sys.executable, "-m", "examples.applications", *options]
        environment = {"RQSCHED_DATA_DIR": str(self.data), "PYTHONPATH": str(REPOSITORY)}
        log_path = self._folder / f"command-{len(self.processes)}.log"
        self.processes.append(start(command, log_path=log_path, env=environment))
        return self.processes[-1]

    def everything(self) -> list[psutil.Process]:
        """The processes of the command, and its Valkey."""
        valkey = present(embedded.find(self.data))
        return [*process_tree(self.processes[-1].pid), psutil.Process(valkey.pid)]

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.data / "applications.db", timeout=30)) as connection:
            return connection.execute(statement).fetchall()

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        embedded.stop(self.data)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    bank = Bank(tmp_path)
    yield bank
    bank.close()


def shown(process: Process) -> list[dict[str, float]]:
    """The lines that were printed, by column."""
    words = [line.split() for line in process.log().splitlines()]
    lines = [line for line in words if len(line) == 1 + len(COLUMNS) and line[0] != "day"]
    return [dict(zip(COLUMNS, map(float, line[1:]), strict=True)) for line in lines]


def test_applications_are_reminded_of_expire_and_are_billed_while_one_looks(bank: Bank) -> None:
    command = bank.begin()
    wait_until(lambda: shown(command), timeout=SOON, what=lambda: f"a first line\n{command.log()}")
    first = shown(command)[0]
    assert sum(first[state] for state in COLUMNS[:6]) == APPLICATIONS
    assert (first["granted"], first["expired"], first["repaid"], first["invoices"]) == (APPLICATIONS / 2, 0, 0, 0)

    def has_moved() -> bool:
        last = shown(command)[-1]
        return all(last[name] for name in ("expired", "repaid", "reminders", "warnings", "invoices"))

    wait_until(has_moved, timeout=SOON, what="a reminder, a warning, an expiry and an invoice", interval=0.5)
    started = bank.everything()
    command.signal(signal.SIGINT)
    assert command.wait() == 0, command.log()
    assert "Traceback" not in command.log()
    assert [process for process in started if not is_gone(process)] == []
    _check_letters(bank)
    _check_sweeps(bank)


def _check_letters(bank: Bank) -> None:
    """No customer got a letter twice, or too early, and each loan has one invoice a month."""
    assert bank.rows("SELECT application FROM letters GROUP BY application, kind HAVING count(*) > 1") == []
    joined = "letters JOIN applications ON id = application"
    early = f"SELECT id FROM {joined} WHERE sent_at - submitted_at < CASE kind WHEN 'reminders' THEN 2 ELSE 5 END"
    assert bank.rows(early) == []
    months = bank.rows("SELECT month, count(*) FROM invoices GROUP BY month")
    assert all(isinstance(count, int) and count >= APPLICATIONS // 4 for _, count in months[:-1]), months


def _check_sweeps(bank: Bank) -> None:
    """Every target of a sweep that has ended was handled, whatever customers did meanwhile."""
    with Scheduler(database_url=f"sqlite:///{bank.data}/rqsched.db", redis_url=NO_REDIS) as scheduler:
        ids = [one.schedule_id for one in scheduler.list().items]
        assert len(ids) == 4
        for run in (run for one in ids for run in scheduler.get(one).runs().items if run.status not in OPEN):
            assert run.status == "succeeded", (run.instance_id, run.error, run.target_counts)


def test_the_same_command_continues_with_the_same_data(bank: Bank) -> None:
    first = bank.begin()
    wait_until(lambda: shown(first), timeout=SOON, what=lambda: f"a first line\n{first.log()}")
    first.kill_tree()
    known = bank.rows("SELECT count(*) FROM applications")

    second = bank.begin()
    wait_until(lambda: shown(second), timeout=SOON, what=lambda: f"a first line\n{second.log()}")

    total = sum(shown(second)[0][state] for state in COLUMNS[:6])
    assert [(total,)] == known
    wait_until(lambda: shown(second)[-1]["expired"], timeout=SOON, what=lambda: f"what has become due\n{second.log()}")
