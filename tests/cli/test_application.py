"""The application: what `rqsched --help` shows without importing what only commands need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from rqsched.cli.app import ENTRIES, Deferred, Entry, app
from rqsched.kernel.decide.options import OPTIONS, PARTS
from tests.support.cli import COMMAND, every_command

COMMANDS: dict[str, Any] = COMMAND.commands  # type: ignore[attr-defined]
HEAVY = {"sqlalchemy", "alembic", "redis", "rq", "pydantic", "pydantic_settings", "croniter", "uvicorn"}
PROBE = """
import sys
from rqsched.cli import main
sys.argv = ["rqsched", {word!r}]
try:
    main()
finally:
    print("imported", *{heavy!r} & set(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_do_not_import_what_only_commands_need(word: str) -> None:
    asked = [sys.executable, "-c", PROBE.format(word=word, heavy=HEAVY)]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert "rqsched" in answer.stdout
    assert answer.stderr == "imported\n"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_each_line_of_the_help_begins_the_help_of_its_command(entry: Entry) -> None:
    own = " ".join(COMMANDS[entry.name].loaded.help.split())
    assert own.startswith(entry.line)
    assert entry.line.endswith(".")


def _registered() -> Iterator[str]:
    """The names the modules themselves give; a module of a group is known by its entry."""
    for module in {entry.module for entry in ENTRIES}:
        found = typer.main.get_command(import_module(f"rqsched.{module}").app)
        groups = [entry.name for entry in ENTRIES if entry.module == module and entry.name not in _names(found)]
        yield from groups or _names(found)


def _names(command: Any) -> list[str]:
    return list(command.commands) if isinstance(command, TyperGroup) else [command.name]


def test_every_command_is_listed_in_the_help() -> None:
    assert sorted(_registered()) == sorted(COMMANDS) == sorted(entry.name for entry in ENTRIES)
    assert all(isinstance(one, Deferred) for one in COMMANDS.values())


LINES, COLUMNS = 40, 80
"""What a small terminal shows."""


def _help(path: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", COLUMNS)
    return CliRunner().invoke(app, [*path, "--help"]).output.rstrip()


def test_there_are_thirty_two_commands_and_eight_groups() -> None:
    groups = [name for name, one in COMMANDS.items() if isinstance(one.loaded, TyperGroup)]
    assert sorted(groups) == ["bulk", "calendar", "db", "forecast", "limits", "machine", "namespace", "run"]
    assert len(COMMANDS) - len(groups) <= 32


@pytest.mark.parametrize("path", [path for path, _ in every_command() if path], ids=" ".join)
def test_the_help_of_a_command_fits_on_a_small_screen(path: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _help(path, monkeypatch).splitlines()
    assert " ".join(path) in shown[1]
    assert len(shown) <= LINES
    assert max(map(len, shown)) <= COLUMNS


def test_the_help_of_all_has_a_line_for_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _help((), monkeypatch)
    assert [entry.name for entry in ENTRIES if f"{entry.name:<10}  {entry.line}" not in shown] == []


def test_common_options_are_explained_once_and_named_by_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--namespace NAME" in _help((), monkeypatch)
    shown = _help(("describe",), monkeypatch)
    assert "--namespace" not in shown
    assert "Also -n NAMESPACE, -o table|json|jsonl, --reason WHY, -v: see rqsched --help." in shown


def test_the_help_of_create_names_what_set_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = " ".join(_help(("create",), monkeypatch).split())
    without = {name for name, option in OPTIONS.items() if name not in PARTS and not option.flags}
    assert {"jitter", "max_runs"} <= without
    assert [name for name in without if f" {name}," not in shown and f" {name}." not in shown] == []
