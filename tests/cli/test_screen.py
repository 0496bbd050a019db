"""What `rqsched dev` says to try next works as it stands."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rqsched import Every
from rqsched.dev.screen import EventLog, Location, Snapshot, draw, read_snapshot
from tests.support.cli import HELLO, Cli

LOCATION = Location(
    data_dir=Path("data"), log_path=Path("data/worker.log"), command="bin/rqsched", dashboard=None, environment=""
)


def drawn_commands(snapshot: Snapshot) -> list[str]:
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(draw(snapshot, LOCATION, height=40))
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
