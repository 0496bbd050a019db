"""The clients' part that is written from the operations' entries, and what each entry has."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter

import pytest

from rqsched.client import AsyncClient, AsyncRunHandle, AsyncScheduleHandle, Client, RunHandle, ScheduleHandle
from rqsched.http.native.operation import Operation, parameters_of
from rqsched.http.native.router import OPERATIONS
from tests.support.operations import FILE, source

CLIENTS = {
    "Scheduler": (Client, AsyncClient),
    "ScheduleHandle": (ScheduleHandle, AsyncScheduleHandle),
    "RunHandle": (RunHandle, AsyncRunHandle),
}
OF_EACH = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


def test_the_operations_of_the_clients_are_written_anew_after_a_change() -> None:
    assert FILE.read_text() == source(), "run python -m tests.support.operations"


@OF_EACH
def test_scheduler_and_both_clients_have_the_operation_under_one_name(operation: Operation) -> None:
    for kind in CLIENTS[operation.owner.kind.__name__]:
        taken = inspect.signature(attrgetter(operation.calls)(kind)).parameters
        assert [name for name in taken if name not in {"self", "if_version"}] == [
            one.name for one in parameters_of(operation)
        ]


@OF_EACH
def test_each_parameter_has_a_meaning_and_a_path_names_parameters(operation: Operation) -> None:
    parameters = {one.name: one.about for one in parameters_of(operation)}
    assert [name for name, about in parameters.items() if not about] == []
    assert operation.types.keys() <= parameters.keys()
    assert {*re.findall(r"{(\w+)}", operation.path)} <= parameters.keys() | operation.owner.takes.keys()


def test_reads_are_repeatable() -> None:
    assert [one.name for one in OPERATIONS if one.method == "GET" and not one.is_repeatable] == []
