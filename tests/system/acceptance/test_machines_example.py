"""The library of `examples/machines`, with a real worker: one command reminds of every loan that is due."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.processes import BIN, REPOSITORY, rqsched_command, running, wait_until
from tests.support.servers import ValkeyServer

# Eleven processes start one after the other; on a crowded machine each takes its time.
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
LOAN = "examples.machines.loans.LoanMachine"


class Library:
    """The library's commands in one environment, and a look into its table."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self.environment = {
            "RQSCHED_DATABASE_URL": database_url,
            "RQSCHED_REDIS_URL": redis_url,
            "RQSCHED_IMPORTS": "examples.machines.loans",
            "LOANS": str(folder / "loans.db"),
        }

    def __call__(self, *command: str) -> str:
        env = {**os.environ, **self.environment, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def desk(self, *words: str) -> str:
        return self(sys.executable, "-m", "examples.machines.desk", *words)

    def check_due(self) -> str:
        return self(str(BIN / "rqsched"), "machine", "run", LOAN, "CHECK_DUE")

    def wait_for(self, state: str, reminders: int) -> None:
        wait_until(
            lambda: self._loans() == {("dune", state, reminders), ("emma", "lent", 0), ("kim", "returned", 0)},
            timeout=60,
            what=f"dune {state} after {reminders} reminders, and nothing else touched",
        )

    def _loans(self) -> set[tuple[str, str, int]]:
        with closing(sqlite3.connect(self.environment["LOANS"])) as connection:
            return set(connection.execute("SELECT id, state, reminders FROM loans"))


def test_one_event_reaches_every_loan_that_is_due(database_url: str, own_valkey: ValkeyServer, tmp_path: Path) -> None:
    library = Library(tmp_path, database_url, own_valkey.url)
    for book, due in (("dune", "2020-01-01"), ("emma", "2999-01-01"), ("kim", "2020-01-01")):
        library.desk("lend", book, due)
    assert "kim: returned, due 2020-01-01, reminded 0 time(s)" in library.desk("return", "kim")

    with running(rqsched_command("worker"), log_path=tmp_path / "worker.log", env=library.environment):
        assert library.check_due() == f"Dispatched CHECK_DUE to 1 instance of {LOAN}.\n"
        library.wait_for("overdue", 1)
        library.check_due()
        library.wait_for("overdue", 2)
        library.check_due()
        library.wait_for("lost", 2)
