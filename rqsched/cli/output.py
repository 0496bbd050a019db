"""The output of commands: tables and sentences for people, JSON for programs. Only results go to standard output.

In a terminal tables have rules and colours; elsewhere they are bare columns for pipes. Nothing a user stored (a note,
an error) can move the cursor or colour the screen: control characters are shown as a replacement character.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rqsched.core.ids import iso_utc

_WIDE = 100_000
"""Columns of an output that is not a terminal: no line is wrapped."""
_COLOURS = {
    "active": "green",
    "succeeded": "green",
    "created": "green",
    "ok": "green",
    "paused": "yellow",
    "warning": "yellow",
    "retrying": "yellow",
    "dead": "bold red",
    "failed": "bold red",
    "lost": "bold red",
    "problem": "bold red",
    "running": "cyan",
    "pending": "cyan",
}


class Output(StrEnum):
    """The form of a command's output."""

    TABLE = "table"
    """Tables and sentences for people."""
    JSON = "json"
    """One JSON document."""
    JSONL = "jsonl"
    """One JSON object per line, without an envelope."""


def shown(value: Any) -> str:
    """Return one value as people read it; `-` when there is none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return iso_utc(value.replace(microsecond=0))
    if isinstance(value, (dict, list, tuple)):
        value = dump(value)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(value))


def dump(value: Any, *, indent: int | None = None) -> str:
    """Return JSON; instants are ISO 8601 UTC, spans are seconds."""
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_utc(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} is not JSON-native")


class Writer:
    """Writes the output of a command to what was standard output when the writer was made."""

    def __init__(self, output: Output, stdout: IO[str] | None = None) -> None:
        self.output = output
        self._stdout = stdout or sys.stdout
        is_terminal = self._stdout.isatty()
        self.console = Console(
            file=self._stdout, markup=False, highlight=False, emoji=False, width=None if is_terminal else _WIDE
        )

    @property
    def is_table(self) -> bool:
        """Whether the output is for people."""
        return self.output is Output.TABLE

    @property
    def is_lines(self) -> bool:
        """Whether the output is one JSON object per line."""
        return self.output is Output.JSONL

    def say(self, text: str) -> None:
        """Write a sentence; under `json` and `jsonl` nothing."""
        if self.is_table:
            self.console.print(text, soft_wrap=True)

    def json(self, value: Any) -> None:
        """Write one JSON document: indented, or on a line of its own."""
        self._stdout.write(dump(value, indent=2 if self.output is Output.JSON else None) + "\n")

    def record(self, fields: Mapping[str, Any], text: str) -> None:
        """Write one result: the text for people, the fields for programs."""
        if self.is_table:
            self.say(text)
        else:
            self.json(fields)

    def lines(self, rows: Iterable[Any]) -> None:
        """Write each row as a line of JSON."""
        for row in rows:
            self.json(row)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a table; for people only."""
        if not self.console.is_terminal:
            self._stdout.writelines(_bare(columns, rows))
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        self.console.print(table)


def _bare(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield a table's lines as columns two blanks apart, as wide as they need to be."""
    texts = [columns, *([shown(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        yield "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() + "\n"


def _cell(value: Any) -> Text:
    text = shown(value)
    return Text(text, style=_COLOURS.get(text, ""))


def notice(text: str) -> None:
    """Write a sentence to standard error, beside the output."""
    Console(stderr=True, markup=False, highlight=False, emoji=False).print(text, soft_wrap=True)


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the block runs, in a terminal only; yields what advances it."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda steps: progress.advance(task, steps)
