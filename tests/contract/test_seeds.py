"""docs/proofs/seeds.md: no cell is empty, and every test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs/proofs/seeds.md"
DOCUMENTS = {"Durable Workflow", "Open Job Spec", "Pipelit", "Waymark", "event-machine"}
COLUMNS = ["document", "behaviour", "our name for it", "proved by", "decided otherwise, and why"]
_CELL = re.compile(r"(?<!\\)\|")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def table() -> list[list[str]]:
    """Every row of every table, header rows and rules apart."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in lines]
    return [row for row in rows if row != COLUMNS and set(row[0]) != {"-"}]


ROWS = table()


@cache
def cases_of(path: str) -> frozenset[str]:
    if not (REPOSITORY / path).exists():
        return frozenset()
    tree = ast.parse((REPOSITORY / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_all_five_documents_are_there() -> None:
    assert {row[0] for row in ROWS} == DOCUMENTS
    assert len(ROWS) > 150


def fault_of(row: list[str]) -> str | None:
    """Return the fault of a row, None if it is complete and its tests exist."""
    if len(row) != len(COLUMNS) or not all(row):
        return "a cell is missing or empty"
    named = _TEST.findall(row[3])
    missing = [f"{path}::{name}" for path, name in named if name not in cases_of(path)]
    if missing or not named:
        return f"no such test: {missing}"
    rest = _TEST.sub("", row[3]).replace(",", "").strip()
    return f"not the name of a test: {rest}" if rest else None


def test_every_row_is_whole_and_its_tests_exist() -> None:
    assert {row[1]: fault for row in ROWS if (fault := fault_of(row)) is not None} == {}


def test_no_behaviour_is_listed_twice() -> None:
    listed = [(row[0], row[1]) for row in ROWS]
    assert len(listed) == len(set(listed))
