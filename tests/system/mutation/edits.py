"""Mutations: a precise edit of one source file, and the tests that must fail after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One text of one file in place of another; the text must be there exactly once."""

    path: str
    before: str
    after: str

    def apply(self, root: Path) -> None:
        """Edit the file below `root`; raises ValueError when the code has moved on from under the edit."""
        file = root / self.path
        source = file.read_text()
        found = source.count(self.before)
        if found != 1:
            raise ValueError(f"{self.path} has {found} times in place of once: {self.before!r}")
        file.write_text(source.replace(self.before, self.after))


@dataclass(frozen=True)
class Mutation:
    """A safety taken out of the code."""

    name: str
    edits: tuple[Edit, ...]
    noticed_by: tuple[str, ...]
    """Every one of these tests must fail, and each must pass when nothing is mutated."""


def as_markdown(mutations: Iterable[Mutation]) -> str:
    """Write the table of docs/proofs/guarantees.md."""
    rows = ["| mutation | tests that fail |", "|---|---|"]
    for mutation in mutations:
        names = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in mutation.noticed_by)
        rows.append(f"| {mutation.name} | {names} |")
    return "\n".join(rows)
