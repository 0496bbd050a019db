"""The commands, each run in this process as a shell would run it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from rqsched.api.scheduler import Scheduler
from rqsched.cli.app import app
from rqsched.testing import ManualClock

FLOWS = "tests.support.cli_flows"
COMMAND = get_command(app)
"""Built once: building every command costs more than most of them."""


def every_command(path: tuple[str, ...] = (), command: Any = COMMAND) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command and group, loaded, with the words that name it; the first is `rqsched` itself."""
    command = getattr(command, "loaded", command)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command((*path, name), inner)


HELLO, BOOM, LONG, BY_PATH = "cli-hello", "cli-boom", "cli-long", f"{FLOWS}.unregistered"


@dataclass(frozen=True)
class Answer:
    """The answer of a command."""

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
        is_whole = words[:1] == ("run",) or {"-o", "--output"} & {*words}  # a run's own is shown there
        shown = "" if is_whole else answer.out
        assert "Traceback" not in answer.err + shown
        assert answer.code == code, f"exit {answer.code}, not {code}\n{answer.out}\n{answer.err}"
        return answer

    def findings(self, code: int) -> dict[str, dict[str, Any]]:
        """Return doctor's findings by check. `code` is the expected exit status."""
        answer = self("doctor", "-o", "json", code=code).json
        assert answer["ok"] is (code == 0)
        return {finding["check"]: finding for finding in answer["findings"]}

    def ids(self) -> list[str]:
        return [handle.schedule_id for handle in self.scheduler.iter()]

    def past(self, hours: float = 1) -> Scheduler:
        """A scheduler whose clock stands in the past: its new schedules are late now."""
        clock = ManualClock(datetime.now(UTC) - timedelta(hours=hours))
        return Scheduler(settings=self.scheduler.settings, clock=clock)


def _exit_code(words: Sequence[str]) -> int:
    """Act in this process and keep its streams. An exception other than an exit is a bug, and is raised."""
    try:
        COMMAND.main([*words], prog_name="rqsched")
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        return int(end.code or 0)
    raise AssertionError("a command always exits")
