"""Clocks and their results. The wall clock is read in one place, and all other code is given a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from rqsched.clock import DatabaseClock, SystemClock, offset_of
from rqsched.testing import ManualClock
from tests.contract.sources import imports_of, modules, nodes_in

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
        for node in nodes_in(path, *(name for _, name in READS))
        if isinstance(node, ast.Attribute) and is_read(node)
    ]
    assert [read.partition(":")[0] for read in reads] == ["rqsched.clock"], reads


def test_no_module_imports_time_time_under_a_bare_name() -> None:
    hidden = [
        i.source for m, p in modules().items() for i in imports_of(m, p) if i.target in {"time.time", "time.time_ns"}
    ]
    assert hidden == []


TRANSACTIONS = {"transact", "transact_alone", "change", "commit"}
"""Functions that run a given function in one transaction."""
OF_BEFORE = {
    "rqsched.kernel.chain.reconcile.lost_attempts:redeliver_runs": "jobs were looked for then; no instant is written",
    "rqsched.features.hours.chain:count_ended": "a bound: what ended after it is counted by a later pass",
    "rqsched.kernel.chain.runtime:record_workflows": "they were registered before they are recorded",
    "rqsched.kernel.chain.settle:write_end": "its statement writes only where the schedule is as it was at the claim",
    "rqsched.features.backfill.chain:open_backfill": "the range is the request's; its begin is read under the lock",
}
"""Functions that pass an earlier instant into a transaction, and why that is right."""


def is_instant(node: ast.AST) -> bool:
    """Say whether a clock is read here."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "now"


def instants_in(node: ast.AST, known: set[str], *, is_later: bool = False) -> Iterator[ast.AST]:
    """Yield the instants of before in an expression: clock reads outside its functions, and the names in `known`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"new_uid", "new_uids"}:
        return
    if (is_instant(node) and not is_later) or (isinstance(node, ast.Name) and node.id in known):
        yield node
    is_function = isinstance(node, ast.Lambda | ast.FunctionDef)
    if isinstance(node, ast.Lambda | ast.FunctionDef):
        known = known - {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        known -= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for child in ast.iter_child_nodes(node):
        yield from instants_in(child, known, is_later=is_later or is_function)


def read_before(function: ast.FunctionDef) -> bool:
    """Return whether a function passes an instant that it read earlier into a transaction."""
    known, calls = set[str](), list[ast.Call]()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            calls += [node] if name in TRANSACTIONS else []
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef) and any(instants_in(node, known)):
                known.add(node.name)
            if isinstance(node, ast.Assign) and any(instants_in(node.value, known)):
                known |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return any(any(instants_in(argument, known)) for call in calls for argument in (*call.args, *call.keywords))


def test_no_transaction_gets_an_instant_that_was_read_before_it() -> None:
    """Instants that are stored or decided on under a lock are read there, and again on each retry."""
    found = {
        f"{module}:{node.name}"
        for module, path in modules().items()
        if not module.startswith(("rqsched.importers", "rqsched.kernel.store"))
        for node in nodes_in(path, ".now(")
        if isinstance(node, ast.FunctionDef) and read_before(node)
    }
    assert found == {*OF_BEFORE}


def test_the_system_clock_returns_aware_utc() -> None:
    assert SystemClock().now().tzinfo is UTC


class Host(ManualClock):
    """A host whose wall clock can be set while its monotonic clock continues."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def pass_(self, span: timedelta) -> None:
        self.advance(span)
        self.seconds += span.total_seconds()


MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
THEIRS = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def host() -> Host:
    return Host(datetime(2026, 1, 1, tzinfo=UTC))


def test_the_database_clock_is_the_wall_clock_until_it_is_measured(host: Host) -> None:
    clock = DatabaseClock(host)
    assert (clock.now(), clock.is_measured, clock.is_due(MINUTE)) == (host.now(), False, True)


def test_the_database_clock_is_their_time_and_what_has_passed_since(host: Host) -> None:
    clock = DatabaseClock(host)
    clock.measure(lambda: THEIRS)
    host.pass_(90 * SECOND)
    assert clock.now() == THEIRS + 90 * SECOND


@pytest.mark.parametrize("step", [10 * SECOND, -10 * SECOND, timedelta(hours=-3)], ids=str)
def test_a_wall_clock_that_is_set_changes_no_time_and_asks_for_a_measurement(host: Host, step: timedelta) -> None:
    clock = DatabaseClock(host)
    clock.measure(lambda: THEIRS)
    host.pass_(5 * SECOND)
    assert not clock.is_due(MINUTE)

    host.advance(step)

    assert clock.now() == THEIRS + 5 * SECOND
    assert clock.is_due(MINUTE)
    clock.measure(lambda: THEIRS + 5 * SECOND)
    assert (clock.now(), clock.is_due(MINUTE)) == (THEIRS + 5 * SECOND, False)


def test_a_measurement_is_due_again_after_a_while(host: Host) -> None:
    clock = DatabaseClock(host)
    clock.measure(lambda: THEIRS)
    host.pass_(MINUTE - SECOND)
    assert not clock.is_due(MINUTE)
    host.pass_(SECOND)
    assert clock.is_due(MINUTE)


def test_while_the_database_is_away_what_was_measured_holds(host: Host) -> None:
    clock = DatabaseClock(host)
    clock.measure(lambda: THEIRS)
    host.pass_(MINUTE)
    host.advance(10 * SECOND)

    clock.keep()

    assert (clock.now(), clock.is_due(MINUTE)) == (THEIRS + MINUTE, False)


def test_the_shorter_of_two_round_trips_counts(host: Host) -> None:
    lengths = iter([10 * SECOND, timedelta(milliseconds=10)])

    def read() -> datetime:
        host.pass_(next(lengths))
        return THEIRS + timedelta(seconds=host.seconds)

    clock = DatabaseClock(host)
    clock.measure(read)

    theirs = THEIRS + timedelta(seconds=host.seconds)
    assert timedelta(0) <= theirs - clock.now() <= timedelta(milliseconds=10), "late by the round trip at most"


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
