"""The commands in this process, against a real SQLite and a real Valkey."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rqsched.api.scheduler import Scheduler
from rqsched.cli import app
from rqsched.testing import ManualClock

FLOWS = "tests.support.cli_flows"
COMMAND = get_command(app)
"""Built once: building every command costs more than most of them."""
HELLO, BOOM, BY_PATH = "cli-hello", "cli-boom", f"{FLOWS}.unregistered"


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON objects on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs commands as a shell would, and fails when one raises."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> Answer:
        with CliRunner().isolation(input=stdin) as (out, err, _):
            found = _exit_code(words)
            answer = Answer(found, out.getvalue().decode(), err.getvalue().decode())
        assert "Traceback" not in answer.out + answer.err
        assert answer.code == code, f"exit {answer.code}, not {code}\n{answer.out}\n{answer.err}"
        return answer

    def ids(self) -> list[str]:
        return [handle.schedule_id for handle in self.scheduler.iter()]

    def past(self, hours: float = 1) -> Scheduler:
        """A scheduler whose clock stands in the past: what it creates is overdue now."""
        clock = ManualClock(datetime.now(UTC) - timedelta(hours=hours))
        return Scheduler(settings=self.scheduler.settings, clock=clock)


def _exit_code(words: Sequence[str]) -> int:
    """Act in this process, streams kept; what is not an exit is a bug and goes through."""
    try:
        COMMAND.main([*words], prog_name="rqsched")
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        return int(end.code or 0)
    raise AssertionError("a command always exits")


@pytest.fixture
def cli(sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RQSCHED_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("RQSCHED_REDIS_URL", redis_url)
    monkeypatch.setenv("RQSCHED_IMPORTS", FLOWS)
    monkeypatch.setenv("COLUMNS", "200")
    assert not os.environ.get("FORCE_COLOR")
    with closing(Scheduler.from_env()) as scheduler:
        yield Cli(scheduler)
