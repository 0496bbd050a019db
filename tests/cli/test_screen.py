"""The commands that `rqsched dev` suggests work as printed."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rqsched import Cron, Every
from rqsched.dev.screen import EventLog, Location, Snapshot, draw, read_snapshot
from rqsched.run.supervisor import Child
from rqsched.testing import run_schedule
from tests.support.cli import HELLO, Cli

LOCATION = Location(
    data_dir=Path("data"), log_path=Path("data/worker.log"), command="bin/rqsched", dashboard=None, environment=""
)


def drawn_commands(snapshot: Snapshot) -> list[str]:
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(draw(snapshot, LOCATION, width=200, height=40))
    lines = [line.strip() for line in console.export_text().splitlines()]
    return [line for line in lines if line.startswith(LOCATION.command)]


def written_commands(snapshot: Snapshot) -> list[str]:
    hint = next(line for line in EventLog(LOCATION).lines(snapshot) if line.startswith("try next"))
    parts = hint.partition(": ")[2].split(", ")
    return [part for part in parts if part.startswith(LOCATION.command)]


@pytest.mark.parametrize("commands_of", [drawn_commands, written_commands], ids=["on the screen", "as lines"])
@pytest.mark.parametrize("has_schedule", [False, True], ids=["no schedule yet", "a schedule"])
def test_the_commands_it_suggests_work(
    cli: Cli, commands_of: Callable[[Snapshot], list[str]], has_schedule: bool
) -> None:
    if has_schedule:
        cli.scheduler.create("hourly", HELLO, Every("1h"))

    commands = commands_of(read_snapshot(cli.scheduler, [], is_ending=False))

    assert len(commands) == 2
    for command in commands:
        cli(*shlex.split(command)[1:])
    assert len(cli.ids()) == 1, "whoever has none is told how to make one"


CHILDREN = [Child(role, 4_194_304, 0, has_begun=True) for role in ("dispatcher", "runs", "web")]
HEADINGS = ["SCHEDULE WHEN NEXT RUNS LAST OUTCOME", "FIRED SCHEDULE LATE ATTEMPT STATUS TOOK RESULT"]


@pytest.mark.parametrize("count", [4, 12])
def test_a_terminal_of_80_columns_and_24_lines_shows_everything_in_words(cli: Cli, count: int) -> None:
    names = [f"back-up-database-{number}" for number in range(count)]
    for name in names:
        cli.scheduler.create(name, HELLO, Cron("* * * * *"), args=["x" * 500])
    cli.scheduler.get(names[1]).pause()
    for _ in range(3):
        run_schedule(cli.scheduler, names[0])
    console = Console(file=io.StringIO(), width=80, height=24, record=True)
    location = replace(LOCATION, dashboard="http://127.0.0.1:8000/", environment="RQSCHED_DATA_DIR=/tmp/data ")

    console.print(draw(read_snapshot(cli.scheduler, CHILDREN, is_ending=True), location, width=80, height=24))

    lines = console.export_text().splitlines()
    text = "\n".join(lines)
    assert len(lines) < 24
    assert [heading for heading in HEADINGS if heading not in [" ".join(line.split()) for line in lines]] == []
    assert f"{names[0]}  every minute  in " in text
    assert f"{names[1]}  every minute  paused " in text
    assert len([line for line in lines if f"  {names[0][:12]}" in line and "  succeeded  " in line]) == 3
    assert "* * * * *" not in text
    assert [child.role for child in CHILDREN if f"# {child.role}: " not in text] == []


def test_only_a_run_of_the_schedule_itself_is_called_late(cli: Cli) -> None:
    schedule, log = cli.scheduler.create("hourly", HELLO, Every("1h")), EventLog(LOCATION)
    log.lines(read_snapshot(cli.scheduler, [], is_ending=False))
    schedule.trigger()
    (line,) = [one for one in log.lines(read_snapshot(cli.scheduler, [], is_ending=False)) if " fired" in one]
    assert line.endswith("hourly fired (manual)")
