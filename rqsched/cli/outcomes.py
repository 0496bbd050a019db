"""What a command did to each of many: a row for each, the counts of their outcomes, exit code 4 for a skipped one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import typer

from rqsched.cli.command import CONFLICT
from rqsched.cli.output import Writer


class Row(Protocol):
    """What became of one."""

    @property
    def outcome(self) -> str:
        """In one word."""

    def to_dict(self) -> dict[str, Any]:
        """Every field, named as in JSON."""


def show(writer: Writer, done: str, rows: Sequence[Row], columns: dict[str, str], *, noun: str, dry_run: bool) -> None:
    """Show rows in the writer's form; a skipped one ends the command with exit code 4.

    `done` says what was done ("Retried"), `noun` what the rows are ("runs"), `columns` a table's titles and fields.
    """
    fields = [row.to_dict() for row in rows]
    counts = Counter(row.outcome for row in rows)
    if writer.is_lines:
        writer.lines(fields)
    elif not writer.is_table:
        writer.json({"outcome": "dry_run" if dry_run else done.lower(), "counts": counts, "results": fields})
    else:
        if rows:
            writer.table(tuple(columns), [tuple(getattr(row, field) for field in columns.values()) for row in rows])
        writer.say(f"{'Dry run' if dry_run else done}: {told(counts) or f'no {noun}'}.")
    if "skipped" in counts:
        raise typer.Exit(CONFLICT)


def told(counts: Counter[str]) -> str:
    """Tell counts in words, such as "3 started, 1 skipped"."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())
