"""docs/cli.md describes the commands correctly. acceptance/ runs their snippets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.core import TyperGroup

from tests.support.cli import Cli, every_command
from tests.support.processes import REPOSITORY

CLI_DOC = (REPOSITORY / "docs" / "cli.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def documented(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The workflows the documents name."""
    (tmp_path / "reports.py").write_text(
        "from rqsched import workflow\ndef refresh(): pass\n@workflow('invoice-sync')\ndef invoice_sync(region): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RQSCHED_IMPORTS", "reports")
    return cli


def test_the_document_names_every_command() -> None:
    commands = {" ".join(path) for path, command in every_command() if not isinstance(command, TyperGroup)}
    first_column = re.findall(r"^\| (`.*) \|", CLI_DOC, re.MULTILINE)
    assert [name for name in commands if not any(f"`{name}" in row for row in first_column)] == []


def test_the_document_names_every_exit_code() -> None:
    assert re.findall(r"^\| (\d) \|", CLI_DOC, re.MULTILINE) == list("0123456")


def test_the_shown_file_syncs(documented: Cli, tmp_path: Path) -> None:
    (text,) = blocks(CLI_DOC, "toml")
    (tmp_path / "schedules.toml").write_text(text)
    assert documented("sync", "schedules.toml", "-o", "json").json["created"] == ["nightly", "refresh"]
    assert documented.scheduler.get("nightly").describe().policies["retry"]["base"] == 30.0
