"""The clients' part that is written from the operations' entries, and what each entry has."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter

import pytest
from fastapi import FastAPI

from rqsched.client import AsyncClient, AsyncRunHandle, AsyncScheduleHandle, Client, RunHandle, ScheduleHandle
from rqsched.http.native.operation import Operation, parameters_of
from rqsched.http.native.router import OPERATIONS, router
from tests.support.operations import FILE, source

CLIENTS = {
    "Scheduler": (Client, AsyncClient),
    "ScheduleHandle": (ScheduleHandle, AsyncScheduleHandle),
    "RunHandle": (RunHandle, AsyncRunHandle),
}
OUTSIDE = {
    "bulk": "One route has four operations, and a client sends a request for each chunk.",
    "bulk_runs": "As `bulk`.",
    "create_schedule": "Its body has the options of schedules, and its answer is kept for the key of the request.",
    "delete_namespace": "Each request makes a part of the deletion only, and repeats the name of the namespace.",
    "delete_schedule": "With `purge` it finds deleted schedules too, and the client's handle becomes a deleted one.",
    "delete_schedules": "The scheduler has no method that deletes several schedules.",
    "list_events": "The scheduler has no method that reads the events of a namespace.",
    "list_runs": "It has `fields`, its pages end after a number of characters, and the client returns handles.",
    "list_runs_of_namespace": "As `list_runs`.",
    "list_schedules": "As `list_runs`; and a query writes labels and search attributes in another way than Python.",
    "list_targets": "Its answer has the progress of the targets too, which is another method of the handle.",
    "list_targets_of_run": "The clients have no method for it: their handles of runs know the schedule.",
    "list_workflows": "The scheduler has no method that lists workflows.",
    "read_history": "It has a cursor, and its pages end after a number of characters; the method returns a list.",
    "read_namespace": "The client's method names a namespace, which is a header of the request.",
    "read_run": "The client returns a handle, which each client makes of its own class.",
    "read_schedule": "It reads the schedule with its newest run in one transaction; the method returns a handle.",
    "set_calendar": "It has a query beside its body, and may be repeated only if no revision is given.",
    "start_backfill": "It continues after the response if it is large: 202, with a Location.",
    "stream_events": "It is a stream.",
    "stream_history": "It is a stream.",
    "sync_schedules": "Its body has the options of many schedules, and a client splits a large set.",
    "trigger_schedule": "Its key may be a header, the client makes one, and its answer has a handle.",
    "update_schedule": "Its body has the options of schedules, and null means the default there.",
    "upsert_schedule": "Its body has the options of schedules, and it answers 201 or 200 with the outcome in a header.",
}
"""The operations that have a route and a client's method of their own, each with the reason."""
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


def test_an_operation_is_an_entry_or_has_a_reason_not_to_be_one() -> None:
    app = FastAPI()
    app.include_router(router)
    names = [operation["operationId"] for methods in app.openapi()["paths"].values() for operation in methods.values()]
    assert sorted(names) == sorted([*(one.name for one in OPERATIONS), *OUTSIDE])
