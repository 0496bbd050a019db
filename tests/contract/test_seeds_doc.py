"""docs/seeds.md: no cell is empty, and every test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "seeds.md"
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
    tree = ast.parse((REPOSITORY / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_all_five_documents_are_there() -> None:
    assert {row[0] for row in ROWS} == DOCUMENTS
    assert len(ROWS) > 150


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_a_row_is_whole_and_its_tests_exist(row: list[str]) -> None:
    assert len(row) == len(COLUMNS)
    assert all(row), "a cell is empty"
    named = _TEST.findall(row[3])
    assert named, "nothing proves it"
    missing = [f"{path}::{name}" for path, name in named if name not in cases_of(path)]
    assert missing == []
    rest = _TEST.sub("", row[3]).replace(",", "").strip()
    assert rest == "", "not a test's name"


def test_no_behaviour_stands_twice() -> None:
    told = [(row[0], row[1]) for row in ROWS]
    assert len(told) == len(set(told))
