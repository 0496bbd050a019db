"""Progress bars of long commands: only in a terminal, apart from the answer, and they end with the work."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rqsched import Cron, Every
from tests.support.cli import HELLO, Cli

LONG: dict[str, tuple[Sequence[str], str, str]] = {
    "backfill": (
        ["backfill", "a", "--start", "2025-01-01T00:00:00Z", "--end", "2025-01-01T10:00:00Z"],
        "Backfilling a",
        "600/600",
    ),
    "bulk": (["bulk", "pause"], "Changing schedules", "2/2"),
    "sync": (["sync", "file.json"], "Synchronising", "3/3"),
    "deep recover": (["recover", "--deep"], "Comparing", "2/2"),
}


@pytest.fixture
def world(cli: Cli, tmp_path: Path) -> Cli:
    cli.scheduler.create("a", HELLO, Cron("* * * * *"), overlap="allow_all")
    cli.scheduler.create("b", HELLO, Every("1h"))
    declared = [{"schedule_id": name, "workflow": HELLO, "interval": "1h"} for name in "xyz"]
    (tmp_path / "file.json").write_text(json.dumps(declared))
    return cli


@pytest.mark.parametrize(("words", "title", "end"), LONG.values(), ids=LONG.keys())
def test_a_terminal_shows_a_progress_bar(
    world: Cli, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], title: str, end: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    answer = world(*words, "-o", "json")
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", answer.err)
    assert title in told
    assert end in told
    assert answer.json


@pytest.mark.parametrize(("words", "title"), [row[:2] for row in LONG.values()], ids=LONG.keys())
def test_a_log_file_gets_no_progress_bar(world: Cli, words: Sequence[str], title: str) -> None:
    assert title not in world(*words).err
