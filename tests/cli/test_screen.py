"""What `rqsched dev` says to try next works as it stands."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rqsched import Every
from rqsched.dev.screen import Frame, News, Place, drawn, read_frame
from tests.cli.conftest import HELLO, Cli

PLACE = Place(data_dir=Path("data"), log_path=Path("data/worker.log"), command="bin/rqsched", environment="")


def drawn_commands(frame: Frame) -> list[str]:
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(drawn(frame, PLACE, height=40))
    lines = [line.strip() for line in console.export_text().splitlines()]
    return [line for line in lines if line.startswith(PLACE.command)]


def written_commands(frame: Frame) -> list[str]:
    hint = next(line for line in News(PLACE).lines(frame) if line.startswith("try next"))
    parts = hint.partition(": ")[2].split(", ")
    return [part for part in parts if part.startswith(PLACE.command)]


@pytest.mark.parametrize("commands_of", [drawn_commands, written_commands], ids=["on the screen", "as lines"])
@pytest.mark.parametrize("has_schedule", [False, True], ids=["no schedule yet", "a schedule"])
def test_what_it_says_to_try_next_works(
    cli: Cli, commands_of: Callable[[Frame], list[str]], has_schedule: bool
) -> None:
    if has_schedule:
        cli.scheduler.create("hourly", HELLO, Every("1h"))

    commands = commands_of(read_frame(cli.scheduler, [], is_ending=False))

    assert len(commands) == 2
    for command in commands:
        cli(*shlex.split(command)[1:])
    assert len(cli.ids()) == 1, "whoever has none is told how to make one"
