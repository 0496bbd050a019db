"""The output of commands: tables and sentences for people, JSON for programs. Only results go to standard output.

In a terminal, tables have rules and colours; elsewhere they are plain columns for pipes. Control characters in stored
texts (a note, an error) are replaced, so that the texts cannot move the cursor or colour the screen. The library that
draws tables (rich) is imported only in a terminal, so that scripts do not wait for the import.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any

from rqsched.api.states import tone_of
from rqsched.api.values import iso_utc

if TYPE_CHECKING:
    from rich.console import Console

    from rqsched.types import BulkRow, RetryRow

_WIDE = 100_000
"""The width of an output that is not a terminal. It is so large that no line is wrapped."""
_MAKES_TERMINALS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""The environment variables with which rich treats any output as a terminal."""
_MOVES = dict.fromkeys(b"\a\b\v\f\r")
"""Control characters of terminals. They are dropped in plain output, because rich drops them, too."""
_COLOURS = {"ok": "green", "info": "cyan", "warn": "yellow", "bad": "bold red", "idle": ""}
"""The colour of each tone."""
_TONES = {"created": "ok", "ok": "ok", "warning": "warn", "problem": "bad"}
"""The tones of words that are neither the status of a schedule nor of a run."""


class Output(StrEnum):
    """The form of a command's output."""

    TABLE = "table"
    """Tables and sentences for people."""
    JSON = "json"
    """One JSON document."""
    JSONL = "jsonl"
    """One JSON object per line, without an envelope."""


def shown(value: Any) -> str:
    """Return the text of a value for people. The text of no value is `-`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return iso_utc(value.replace(microsecond=0))
    if isinstance(value, (dict, list, tuple)):
        value = dump(value)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(value))


def dump(value: Any, *, indent: int | None = None) -> str:
    """Return JSON. Instants are ISO 8601 UTC, and lengths are seconds."""
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_utc(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} is not JSON-native")


def _console(stream: IO[str]) -> Console | None:
    """Return the console that draws on a stream; None if the stream is not a terminal."""
    is_terminal = stream.isatty()
    if not is_terminal and not any(name in os.environ for name in _MAKES_TERMINALS):
        return None
    from rich.console import Console  # noqa: PLC0415 - most commands are called by scripts, which it would delay

    width = None if is_terminal else _WIDE
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def _write_line(stream: IO[str], text: str) -> None:
    """Write a text of one or more lines without colours, and without wrapping or cutting lines."""
    console = _console(stream)
    if console is None:
        stream.write(text.translate(_MOVES).expandtabs() + "\n")
    else:
        console.print(text, soft_wrap=True)


class Writer:
    """Writes the output of a command. The stream is the standard output at the time when the writer was made."""

    def __init__(self, output: Output, stdout: IO[str] | None = None) -> None:
        self.output = output
        self._stdout = stdout or sys.stdout

    @property
    def is_table(self) -> bool:
        """Whether the output is for people."""
        return self.output is Output.TABLE

    @property
    def is_lines(self) -> bool:
        """Whether the output is one JSON object per line."""
        return self.output is Output.JSONL

    def say(self, text: str) -> None:
        """Write a sentence, unless the output is `json` or `jsonl`."""
        if self.is_table:
            _write_line(self._stdout, text)

    def document(self, text: str) -> None:
        """Write the text of a file as it is."""
        self._stdout.write(text)

    def json(self, value: Any) -> None:
        """Write one JSON document: indented, or for `jsonl` as a single line."""
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

    def for_programs(self, rows: Iterable[Any], document: Any) -> bool:
        """Write `rows` as lines of JSON (`jsonl`), or `document` (`json`). Return False if a table is wanted."""
        if self.is_lines:
            self.lines(rows)
        elif not self.is_table:
            self.json(document)
        return not self.is_table

    def say_next_page(self, token: str | None) -> None:
        """Write the token with which the next page is read, if there is a next page."""
        if token:
            self.say(f"Next page token: {token}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a table; for people only."""
        console = _console(self._stdout)
        if console is None or not console.is_terminal:
            self._stdout.writelines(_bare(columns, rows))
        else:
            _draw(console, columns, rows)


def _bare(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table. Each column is as wide as its longest cell. Two blanks separate columns."""
    texts = [columns, *([shown(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        yield "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() + "\n"


def _draw(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Draw a table with a rule below its head. Statuses have colours."""
    from rich import box  # noqa: PLC0415 - for terminals only
    from rich.table import Table  # noqa: PLC0415 - for terminals only
    from rich.text import Text  # noqa: PLC0415 - for terminals only

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style=_COLOURS[_TONES.get(text) or tone_of(text)]) for text in map(shown, row)))
    console.print(table)


def notice(text: str) -> None:
    """Write a sentence to standard error, so that it does not become a part of the output."""
    _write_line(sys.stderr, text)


def show_outcomes(
    writer: Writer,
    done: str,
    rows: Sequence[BulkRow | RetryRow],
    columns: Mapping[str, str],
    *,
    noun: str,
    dry_run: bool,
    following: str | None = None,
) -> Counter[str]:
    """Show rows in the writer's form. Return how many rows had each outcome.

    `done` is the operation ("Retried"), and `noun` is the kind of rows ("runs"). `columns` maps the titles of the table
    to fields. `following` is the cursor at which a stopped command continues.
    """
    fields = [row.to_dict() for row in rows]
    counts = Counter(row.outcome for row in rows)
    document = {"outcome": "dry_run" if dry_run else done.lower(), "counts": counts, "results": fields}
    document |= {} if following is None else {"next_page_token": following}
    if not writer.for_programs(fields, document):
        if rows:
            writer.table(tuple(columns), [tuple(getattr(row, field) for field in columns.values()) for row in rows])
        writer.say(f"{'Dry run' if dry_run else done}: {in_words(counts) or f'no {noun}'}.")
    return counts


def in_words(counts: Counter[str]) -> str:
    """Return counts in words, such as "3 started, 1 skipped"."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the block runs, if this is a terminal. Yield the function that advances it."""
    console = _console(sys.stderr)
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    from rich import progress  # noqa: PLC0415 - for terminals only

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)
