"""The application: what `rqsched --help` shows without importing what only commands need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from rqsched.cli.app import ENTRIES, Deferred, Entry
from tests.support.cli import COMMAND

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
