"""The library of `examples/machines`, with a real worker: one command reminds of every loan that is due."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import BIN, REPOSITORY, rqsched_command, running, wait_until
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]
LOAN = "examples.machines.loans.LoanMachine"


class Library:
    """The library's commands, in one environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def __call__(self, *command: str) -> str:
        env = {**os.environ, **self.environment, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def desk(self, *words: str) -> str:
        return self(sys.executable, "-m", "examples.machines.desk", *words)

    def check_due(self) -> str:
        return self(str(BIN / "rqsched"), "machine", "run", LOAN, "CHECK_DUE")


def test_one_event_reaches_every_loan_that_is_due(database_url: str, own_valkey: ValkeyServer, tmp_path: Path) -> None:
    library = Library(
        {
            "RQSCHED_DATABASE_URL": database_url,
            "RQSCHED_REDIS_URL": own_valkey.url,
            "RQSCHED_IMPORTS": "examples.machines.loans",
            "LOANS": str(tmp_path / "loans.db"),
        }
    )
    for book, due in (("dune", "2020-01-01"), ("emma", "2020-01-01"), ("ilium", "2999-01-01"), ("kim", "2020-01-01")):
        library.desk("lend", book, due)
    library.desk("return", "kim")

    with running(rqsched_command("worker"), log_path=tmp_path / "worker.log", env=library.environment):
        assert library.check_due() == f"Dispatched CHECK_DUE to 2 instance(s) of {LOAN}.\n"
        wait_until(lambda: library.desk().count("overdue") == 2, timeout=60, interval=0.2, what="two are overdue")
        library.check_due()
        wait_until(
            lambda: library.desk().count("reminded 2 time") == 2, timeout=60, interval=0.2, what="reminded again"
        )
        library.check_due()
        wait_until(lambda: library.desk().count(": lost") == 2, timeout=60, interval=0.2, what="two are lost")

    shown = library.desk()
    assert "ilium: lent, due 2999-01-01, reminded 0 time(s)" in shown
    assert "kim: returned, due 2020-01-01, reminded 0 time(s)" in shown
