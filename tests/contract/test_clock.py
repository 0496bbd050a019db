"""Clocks: what they return, and that the wall clock is read in one place: everything else is given a time."""

from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta

import pytest

from rqsched.clock import DatabaseClock, SystemClock, offset_of
from rqsched.testing import ManualClock
from tests.contract.sources import imports_of, modules

READS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
}


def is_read(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name | ast.Attribute):
        return False
    base = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
    return (base, node.attr) in READS


def test_the_wall_clock_is_read_in_one_place() -> None:
    reads = [
        f"{module}:{node.lineno}"
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and is_read(node)
    ]
    assert [read.partition(":")[0] for read in reads] == ["rqsched.clock"], reads


def test_no_module_imports_time_time_under_a_bare_name() -> None:
    hidden = [
        i.source for m, p in modules().items() for i in imports_of(m, p) if i.target in {"time.time", "time.time_ns"}
    ]
    assert hidden == []


def test_the_system_clock_returns_aware_utc() -> None:
    assert SystemClock().now().tzinfo is UTC


def test_the_database_clock_is_the_base_clock_plus_the_offset() -> None:
    base = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock = DatabaseClock(base)
    assert clock.now() == base.now()

    clock.set_offset(timedelta(milliseconds=-250))
    base.advance(timedelta(seconds=1))

    assert clock.now() == datetime(2026, 1, 1, 0, 0, 0, 750_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("theirs", "offset"),
    [
        pytest.param(0, 0, id="read as we asked"),
        pytest.param(30, 0, id="read on the way"),
        pytest.param(40, 0, id="read as the answer came"),
        pytest.param(290, 250, id="surely ahead"),
        pytest.param(-250, -250, id="surely behind"),
    ],
)
def test_an_offset_within_the_round_trip_counts_as_none(theirs: int, offset: int) -> None:
    before = datetime(2026, 1, 1, tzinfo=UTC)
    read, after = before + timedelta(milliseconds=theirs), before + timedelta(milliseconds=40)
    assert offset_of(before, read, after) == timedelta(milliseconds=offset)


def test_a_manual_clock_refuses_a_naive_instant() -> None:
    with pytest.raises(ValueError, match="naive"):
        ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001 - the point of the test
