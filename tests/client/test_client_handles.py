"""Handles of our own client: the fields of the in-process ones, waiting, iterating, and errors that travel."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import pydoc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest

from rqsched import Cron, Every, errors
from rqsched.api import run_handle, schedule_handle
from rqsched.api.description import Description, RunFields, ScheduleFields
from rqsched.api.shown import Shown
from rqsched.client import Client, ResponseError, RunDescription
from rqsched.client.views import RunView, ScheduleView
from rqsched.features.backfill.chain import BackfillRange
from rqsched.testing import execute_pending
from tests.support.client import asynchronous, client_of
from tests.support.env import MINUTE
from tests.support.web import MakeWeb, Web, one_token

NAIVE = datetime(2026, 1, 15, 9)  # noqa: DTZ001 - the refused value
OWN = {"state"}
"""Fields of the in-process handles that are rows of SQL."""


@pytest.fixture
def client(web: Web) -> Client:
    web.env.scheduler.runtime.record_workflows()
    return client_of(web)


def fields(kind: type) -> set[str]:
    shown = inspect.getmembers_static(kind, lambda value: isinstance(value, property | Shown))
    return {name for name, _ in shown if not name.startswith("_")}


def test_handles_have_the_fields_of_the_in_process_ones() -> None:
    assert fields(schedule_handle.ScheduleView) - OWN - {"schedule_id"} <= fields(ScheduleView)
    assert fields(run_handle.RunView) - OWN <= fields(RunView)


@pytest.mark.parametrize(("view", "described"), [(RunFields, RunDescription), (ScheduleFields, Description)])
def test_a_field_of_a_handle_has_the_type_of_what_it_shows(view: type, described: type) -> None:
    shown = {name: value for name, value in vars(view).items() if isinstance(value, Shown)}
    types = {name: get_args(getattr(value, "__orig_class__", None)) for name, value in shown.items()}
    hints = get_type_hints(described) | {"is_blocked": bool}
    assert len(shown) > 25
    hints["labels"] = dict[str, str]
    assert types == {name: (hints[name],) for name in shown}


def test_a_field_of_a_handle_is_documented_and_read_only(client: Client) -> None:
    made = client.create("report", "note", Every("1h"))
    assert made.status == "active"
    assert "`active`, `paused`, `done`, `dead` or `deleted`" in pydoc.render_doc(ScheduleView)
    with pytest.raises(AttributeError, match="status of ScheduleHandle is read-only"):
        vars(ScheduleFields)["status"].__set__(made, "done")


def test_the_fields_of_a_schedule_are_those_in_process(client: Client, web: Web) -> None:
    made = client.create("report", "note", Cron("0 2 * * *"), labels={"a": "b"}, memo={"c": 1}, max_runs=3, note="n")
    made.trigger()
    made.describe()
    near = web.env.scheduler.get("report")
    for name in fields(schedule_handle.ScheduleView) - OWN - {"spec"}:
        assert getattr(made, name) == getattr(near, name), name
    assert made.spec == near.spec.to_json()


def test_the_fields_of_a_run_are_those_in_process(client: Client, web: Web) -> None:
    client.create("report", "note", Every("1h"), args=["x"], labels={"a": "b"}).trigger()
    (far,), (near,) = client.handle("report").runs().items, web.env.scheduler.get("report").runs().items
    for name in fields(run_handle.RunView) - OWN:
        assert getattr(far, name) == getattr(near, name), name


def test_a_run_is_waited_for_and_returns_what_its_workflow_returned(client: Client, web: Web) -> None:
    made = client.create("report", "note", Every("1h"))
    made.trigger()
    (run,) = made.runs().items
    assert run.has_ended is False
    with pytest.raises(TimeoutError):
        run.wait(0.05)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run.wait, 60)
        execute_pending(web.env.scheduler)
        assert waiting.result().status == "succeeded"
    assert run.result == run.description.result


def test_result_is_none_for_a_run_that_did_not_succeed(client: Client) -> None:
    made = client.create("report", "note", Every("1h"))
    made.trigger()
    (run,) = made.runs().items
    assert run.result is None
    assert run.cancel().wait(1).result is None


def test_the_client_without_threads_waits_too(web: Web) -> None:
    web.env.scheduler.runtime.record_workflows()

    async def story() -> Any:
        async with asynchronous(web) as client:
            made = await client.create("report", "note", Every("1h"))
            await made.trigger()
            found = [run async for run in made.iter_runs()]
            with pytest.raises(TimeoutError):
                await found[0].wait(0.05)
            waiting = asyncio.create_task(found[0].wait(60))
            execute_pending(web.env.scheduler)
            return (await waiting).status, found[0].result, found[0].description.result

    status, returned, stored = asyncio.run(story())
    assert (status, returned) == ("succeeded", stored)


def test_runs_are_iterated_beyond_a_page(client: Client) -> None:
    made = client.create("report", "note", Every("1h"), overlap="allow_all")
    for _ in range(3):
        made.trigger()
    assert [run.number for run in made.iter_runs()] == [3, 2, 1]
    assert [run.number for run in made.iter_runs(statuses=("succeeded",))] == []


def test_backfills_are_listed_and_cancelled(client: Client, web: Web) -> None:
    made = client.create("report", "note", Every("1m", offset="0s"), overlap="allow_all")
    web.env.advance(timedelta(hours=12))
    start = web.env.clock.now() - timedelta(hours=11)
    small = made.backfill(start, start + 2 * MINUTE)
    assert [one.uid for one in client.backfills.iter(schedule_id="report", status="done")] == [small.uid]
    assert client.backfills.list(status="running").items == []
    assert small.uid is not None
    assert client.backfills.cancel(small.uid).status == "done", "one that has ended stays so"
    large = next(iter(web.env.scheduler.get("report").backfill_in_chunks(BackfillRange(start, start + 600 * MINUTE))))
    assert large.uid is not None
    stopped = client.backfills.cancel(large.uid, "too many")
    events = [event for event in made.iter_history() if event.event_type == "BackfillStopped"]
    assert [(event.payload["backfill_id"], event.payload["reason"]) for event in events] == [(large.uid, "too many")]
    assert (stopped.is_done, {one.uid for one in client.backfills.iter()}) == (True, {large.uid, small.uid})
    with pytest.raises(errors.BackfillNotFoundError):
        client.backfills.cancel("nothing")
    with pytest.raises(errors.InvalidLimitError):
        client.backfills.list(cursor="x")


def test_a_naive_instant_is_refused_before_anything_is_sent(client: Client) -> None:
    made = client.handle("report")
    aware = NAIVE.replace(tzinfo=UTC)
    for ask in (
        lambda: made.backfill(NAIVE, aware),
        lambda: made.backfill(aware, NAIVE),
        lambda: client.runs.retry_failed(NAIVE),
        lambda: client.runs.retry_failed(aware, until=NAIVE),
    ):
        with pytest.raises(errors.InvalidInputError, match="naive"):
            ask()


def test_an_operation_on_an_older_version_is_refused(client: Client) -> None:
    made = client.create("report", "note", Every("1h"))
    version = made.version
    made.update(note="changed")
    operations: list[Callable[[], object]] = [
        lambda: made.pause(if_version=version),
        lambda: made.resume(if_version=version),
        lambda: made.restart(if_version=version),
        lambda: made.delete(if_version=version),
    ]
    for operate in operations:
        with pytest.raises(errors.VersionConflictError) as caught:
            operate()
        assert (caught.value.schedule_id, caught.value.expected, caught.value.actual) == (
            "report",
            version,
            version + 1,
        )
    made.pause(if_version=version + 1)
    made.resume(if_version=made.version)
    made.delete(if_version=made.version)


def test_errors_carry_the_attributes_of_the_in_process_ones(client: Client) -> None:
    made = client.create("report", "note", Every("1h"))
    with pytest.raises(errors.ScheduleExistsError) as taken:
        client.create("report", "note", Every("1h"))
    assert (taken.value.schedule_id, taken.value.namespace) == ("report", "default")
    with pytest.raises(errors.ScheduleStateError) as state:
        made.resume()
    assert (state.value.schedule_id, state.value.status, state.value.operation) == ("report", "active", "resume")
    with pytest.raises(errors.ScheduleNotFoundError) as missing:
        client.get("missing")
    assert missing.value.schedule_id == "missing"
    with pytest.raises(errors.RunNotFoundError) as run:
        made.run("99")
    assert run.value.run == "99"


def test_a_foreign_namespace_is_not_found(make_web: MakeWeb) -> None:
    token = "a-secret-of-twenty-four-chars"
    web = make_web(tokens=one_token(token, namespaces=["red"]))
    client = client_of(web, token=token, namespace="blue")
    with pytest.raises(errors.NamespaceNotFoundError) as caught:
        client.list()
    assert isinstance(caught.value, errors.NotFoundError)
    assert caught.value.namespace == "blue"


EVERY: list[errors.RqschedError] = [
    errors.InvalidInputError("field", "reason"), errors.UnknownWorkflowError("w"),
    errors.UnknownWorkflowError("w", "reason"), errors.NamespaceNotFoundError("n"),
    errors.ScheduleNotFoundError("a", "n"), errors.RunNotFoundError("r"), errors.BackfillNotFoundError("b"),
    errors.ScheduleExistsError("a", "n"), errors.ScheduleStateError("a", "paused", "pause", "hint"),
    errors.RunStateError("r", "failed", "retry"), errors.VersionConflictError("a", 1, 2),
    errors.IdempotencyConflictError("k"), errors.ConfigError("c"), errors.BackendUnavailableError("b"),
    ResponseError(418, "teapot", "detail"),
]  # fmt: skip


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling_with_its_attributes(error: errors.RqschedError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
