"""The promise of --output: nothing but JSON on standard output, of every command, whatever user modules print."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rqsched import Every
from rqsched.api.scheduler import Scheduler
from rqsched.cli.output import Output, Writer, dump, shown
from tests.support.cli import COMMAND, HELLO, Answer, Cli

RANGE = ["--start", "2025-01-01T00:00:00Z", "--end", "2025-01-01T03:00:00Z"]
ANSWERS: dict[str, Sequence[str]] = {
    "create": ["create", "new", HELLO, "--every", "1h"],
    "upsert": ["upsert", "a", HELLO, "--every", "1h"],
    "update": ["update", "a", "--queue", "q"],
    "list": ["list"],
    "describe": ["describe", "a"],
    "history": ["history", "a"],
    "run deliveries": ["run", "deliveries", "a"],
    "runs": ["runs", "a"],
    "run show": ["run", "show", "1", "--schedule", "a"],
    "run targets": ["run", "targets", "1", "--schedule", "a"],
    "cancel": ["cancel", "a", "1"],
    "terminate": ["terminate", "a", "1"],
    "retry": ["retry", "--failed", "--since", "1h", "--dry-run"],
    "bulk pause": ["bulk", "pause", "--text", "a", "--dry-run"],
    "pause": ["pause", "a"],
    "skip": ["skip", "a", "1"],
    "resume": ["resume", "paused"],
    "restart": ["restart", "done"],
    "delete": ["delete", "a"],
    "trigger": ["trigger", "paused", "--force"],
    "backfill": ["backfill", "paused", *RANGE],
    "sync": ["sync", "file.json"],
    "forecast upcoming": ["forecast", "upcoming"],
    "why": ["why", "a"],
    "tick": ["tick"],
    "recover": ["recover"],
    "prune": ["prune", "--retention", "1d", "--yes"],
    "db upgrade": ["db", "upgrade"],
    "db status": ["db", "status"],
    "db adopt": ["db", "adopt", "--yes"],
    "doctor": ["doctor"],
    "namespace usage": ["namespace", "usage"],
    "limits list": ["limits", "list"],
    "forecast load": ["forecast", "load"],
    "forecast simulate": ["forecast", "simulate", "--until", "1h"],
}
WITHOUT = {
    "worker",
    "dispatcher",
    "web",
    "dev",
    "ping",
    "db",
    "machine",
    "calendar",
    "export",
    "import",
    "freeze",
    "thaw",
    "namespace",
}
"""Processes and their probe, a group that is there by its commands, and those that files of their own try."""


@dataclass(frozen=True)
class Tried:
    """The output of one command in its own namespace."""

    name: str
    output: str
    answer: Answer


@pytest.fixture
def tried(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Tried]:
    """Each command of the table in each form of output, each in a namespace where nothing was done before it."""
    (tmp_path / "file.json").write_text(json.dumps([{"schedule_id": "s", "workflow": HELLO, "interval": "1h"}]))
    found = []
    for output in ("json", "jsonl", "table"):
        for name, words in ANSWERS.items():
            monkeypatch.setenv("RQSCHED_NAMESPACE", f"{output}-{name.replace(' ', '-')}")
            with closing(Scheduler.from_env()) as scheduler:
                scheduler.create("a", HELLO, Every("1h")).trigger()
                scheduler.create("paused", HELLO, Every("1h"), paused=True)
                scheduler.create("done", HELLO, Every("1h"), max_runs=1).trigger()
            code = 1 if name == "doctor" else 0  # no worker runs here
            found.append(Tried(name, output, cli(*words, "--output", output, code=code)))
    return found


def test_every_command_is_in_the_table_below() -> None:
    commands = set(COMMAND.commands)  # type: ignore[attr-defined]
    assert {name.split()[0] for name in ANSWERS} | WITHOUT == commands


def test_a_command_answers_with_json_and_nothing_else_or_a_table_without_colours(tried: list[Tried]) -> None:
    assert len(tried) == 3 * len(ANSWERS)
    assert [(each.name, each.output) for each in tried if "\x1b" in each.answer.out] == []
    assert [each.name for each in tried if each.output != "jsonl" and not each.answer.out] == []
    assert [(each.name, each.output) for each in tried if each.output != "table" and not is_json(each)] == []


def is_json(each: Tried) -> bool:
    try:
        values = [each.answer.json] if each.output == "json" else each.answer.lines
    except json.JSONDecodeError:
        return False
    return all(isinstance(value, dict | list) for value in values)


def test_what_a_user_module_prints_goes_to_standard_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path.cwd() / "chatty.py").write_text("print('loud')")
    monkeypatch.setenv("RQSCHED_IMPORTS", "chatty")
    answer = cli("runs", "-o", "json")
    assert answer.json["runs"] == []
    assert "loud" in answer.err


def test_verbose_logs_go_to_standard_error(cli: Cli) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"))
    cli.scheduler.runtime.transport.redis.flushall()
    answer = cli("recover", "-v", "-o", "json")
    assert "INFO rqsched.kernel.chain.reconcile.passes: recovered" in answer.err
    assert answer.json["links"] == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_rules_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    Writer(Output.TABLE, terminal).table(("Schedule ID", "Status"), [("a", "active")])
    assert "\x1b[32mactive" in terminal.getvalue()
    assert "───" in terminal.getvalue()


def test_a_value_is_shown_on_one_line() -> None:
    at = datetime(2026, 1, 1, 12, 30, 0, 999, UTC)
    assert [shown(value) for value in (None, "", 0, at, {"a": 1}, "x\ny")] == [
        "-",
        "-",
        "0",
        "2026-01-01T12:30:00Z",
        '{"a": 1}',
        "x\N{REPLACEMENT CHARACTER}y",
    ]


def test_json_has_instants_in_utc_and_spans_in_seconds() -> None:
    assert dump({"at": datetime(2026, 1, 1, tzinfo=UTC), "for": timedelta(minutes=1)}) == (
        '{"at": "2026-01-01T00:00:00Z", "for": 60.0}'
    )
    with pytest.raises(TypeError, match="object is not JSON-native"):
        dump(object())
