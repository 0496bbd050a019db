"""Routes for the runs, the history, the deliveries and the next fires of schedules.

Runs and history stay readable after their schedule was deleted.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response

from rqsched.api import events as event_queries
from rqsched.api import runs as run_queries
from rqsched.api.build_description import describe_run
from rqsched.api.cursors import PAGE_CHARACTERS, bind_cursor, unbind_cursor, unbind_number
from rqsched.api.run_handle import RunHandle
from rqsched.api.runs import RunFilters
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.api.states import RUN_FILTERS
from rqsched.errors import (
    FrozenError,
    IdempotencyConflictError,
    InvalidLimitError,
    RunNotFoundError,
    RunStateError,
    ScheduleNotFoundError,
    TooMuchWorkError,
)
from rqsched.http.auth import Role
from rqsched.http.dependencies import Call, OperateAlways, Read, ReadHeavy, require_role
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.convert import statuses_of
from rqsched.http.native.operation import Operation, Owner, routes
from rqsched.http.native.requests import (
    Cursor,
    Id,
    Instant,
    JsonObject,
    Limit,
    ScheduleId,
    ShownFields,
    Since,
)
from rqsched.http.native.responses import (
    LARGE_OF_RUN,
    DeliveriesResponse,
    EventsResponse,
    FoundRunsResponse,
    RetryFailedResponse,
    RunResponse,
    RunsResponse,
    UpcomingResponse,
    WhyResponse,
    retry_failed_response,
)
from rqsched.http.openapi import PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute

_LAST_SEQUENCE = 2**63 - 1
UID_LENGTH = 26

router = APIRouter(route_class=StrictRoute)
_RUN = (ScheduleNotFoundError, RunNotFoundError)
BackfillStatus = Literal["running", "done", "stopped"]

RunId = Annotated[str, Path(max_length=512, description="A run's uid, number or instance id.")]
BackfillUid = Annotated[str, Path(max_length=UID_LENGTH, description="The uid of the backfill.")]


@router.get(
    "/schedules/{schedule_id}/history/",
    response_model=EventsResponse,
    responses=PROBLEM.of(ScheduleNotFoundError, InvalidLimitError),
    tags=["runs"],
)
def read_history(
    call: Read,
    schedule_id: ScheduleId,
    limit: Limit = 100,
    after_sequence: Annotated[int, Query(ge=0, le=_LAST_SEQUENCE, description="Only later events.")] = 0,
    cursor: Cursor = None,
) -> Response:
    """Read audit events, oldest first."""
    uid = call.newest(schedule_id).uid
    of = "history", uid
    start = unbind_number(cursor, *of) or after_sequence
    page = call.read(lambda c: event_queries.history(c, uid, limit=limit, after_sequence=start, most=PAGE_CHARACTERS))
    return Json({"items": page.items, "next_cursor": bind_cursor(page.next_cursor, *of)})


@router.get(
    "/schedules/{schedule_id}/runs/",
    response_model=RunsResponse,
    responses=PROBLEM.of(ScheduleNotFoundError, InvalidLimitError),
    tags=["runs"],
)
def list_runs(
    call: Read,
    schedule_id: ScheduleId,
    status: Annotated[
        list[str] | None, Query(description="Only runs in these statuses; `blocked` for those of the pending ones.")
    ] = None,
    fields: ShownFields = "full",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Read runs, newest first."""
    statuses, uid, is_slim = statuses_of(status, RUN_FILTERS), call.newest(schedule_id).uid, fields != "full"
    of = "runs", uid
    place = unbind_cursor(cursor, *of)
    page = call.read(
        lambda c: run_queries.list_runs(
            c, uid, limit=limit, cursor=place, statuses=statuses, most=PAGE_CHARACTERS, is_slim=is_slim
        )
    )
    items = [describe_run(run, LARGE_OF_RUN if is_slim else ()) for run in page.items]
    return Json({"items": items, "next_cursor": bind_cursor(page.next_cursor, *of)})


@router.get(
    "/schedules/{schedule_id}/runs/{run}/", response_model=RunResponse, responses=PROBLEM.of(*_RUN), tags=["runs"]
)
def read_run(call: Read, schedule_id: ScheduleId, run: RunId) -> Response:
    """Read one run by uid, number or instance id."""
    return Json(describe_run(call.newest(schedule_id).run(run).state))


@router.get("/runs/", response_model=FoundRunsResponse, responses=PROBLEM.of(InvalidLimitError), tags=["runs"])
def list_runs_of_namespace(
    call: Read,
    status: Annotated[list[str] | None, Query(description="Only these statuses.")] = None,
    schedule_id: Annotated[str | None, Query(max_length=255, description="Of this schedule only.")] = None,
    workflow: Annotated[str | None, Query(max_length=255, description="Of this workflow only.")] = None,
    since: Annotated[Instant | None, Query(description="Created then or later; ended, with sort=-ended.")] = None,
    until: Annotated[Instant | None, Query(description="Created, or ended, before.")] = None,
    error: Annotated[
        str | None,
        Query(min_length=1, max_length=255, description="A part of the error's text: of failed and lost runs alone."),
    ] = None,
    sort: Annotated[
        Literal["created", "-created", "-ended"] | None,
        Query(
            description="-created: the newest first; -ended: failed and lost runs alone, by their end. "
            "Default: -ended with `error`, else -created."
        ),
    ] = None,
    fields: ShownFields = "full",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the runs of all schedules of the namespace, the newest first."""
    statuses = statuses_of(status, RUN_FILTERS)
    filters = RunFilters(call.namespace, statuses, schedule_id, workflow, since, until, error=error)
    database, is_slim = call.scheduler.runtime.database, fields != "full"
    page = run_queries.fill_runs(
        database, filters, limit=limit, cursor=cursor, sort=sort, most=PAGE_CHARACTERS, is_slim=is_slim
    )
    items = [describe_run(run, LARGE_OF_RUN if is_slim else ()) | {"schedule_id": name} for name, run in page.items]
    return Json({"items": items, "next_cursor": page.next_cursor})


def _newest(call: Call, given: dict[str, Any]) -> ScheduleHandle:
    return call.newest(given.pop("schedule_id"))


def _run(call: Call, given: dict[str, Any]) -> RunHandle:
    return _newest(call, given).run(given.pop("run"))


def _run_to_copy(call: Call, given: dict[str, Any]) -> RunHandle:
    """Find a run. Other arguments make it execute something else, so they need the role `admin`, as an edit does."""
    if given.get("args") is not None or given.get("kwargs") is not None:
        require_role(call.principal, Role.ADMIN)
    return _run(call, given)


_ID = {"schedule_id": (ScheduleId, inspect.Parameter.empty)}
_SCHEDULE = Owner(ScheduleHandle, _ID, lambda call, given: call.schedule(given.pop("schedule_id")))
_NEWEST = Owner(ScheduleHandle, _ID, _newest)
_RUN_HANDLE = Owner(
    RunHandle, _ID | {"run": (RunId, inspect.Parameter.empty)}, _run,
    lambda _, handle: Json(describe_run(handle.state)),
)  # fmt: skip
_COPIED = replace(_RUN_HANDLE, find=_run_to_copy)
OPERATIONS = (
    Operation(
        "cancel_run", "POST", "/schedules/{schedule_id}/runs/{run}/cancel/", "cancel", OperateAlways, RunResponse, _RUN,
        is_repeatable=True, example={"reason": "the wrong month"}, owner=_RUN_HANDLE,
    ),
    Operation(
        "terminate_run", "POST", "/schedules/{schedule_id}/runs/{run}/terminate/", "terminate", OperateAlways,
        RunResponse, _RUN, is_repeatable=True, example={"reason": "it hangs"}, owner=_RUN_HANDLE,
    ),
    Operation(  # not repeatable: a run that failed again meanwhile would be retried twice
        "retry_run", "POST", "/schedules/{schedule_id}/runs/{run}/retry/", "retry", OperateAlways, RunResponse,
        (*_RUN, RunStateError, FrozenError), example={"reason": "the server is back"}, owner=_RUN_HANDLE,
    ),
    Operation(  # repeatable, because the client sends an idempotency key
        "run_again", "POST", "/schedules/{schedule_id}/runs/{run}/again/", "run_again", OperateAlways, RunResponse,
        (*_RUN, RunStateError, FrozenError, IdempotencyConflictError), is_repeatable=True,
        types={"args": list[Any] | None, "kwargs": JsonObject | None},
        example={"reason": "the file is complete now"}, owner=_COPIED,
    ),
    Operation(  # not repeatable, as `retry_run`
        "retry_failed_runs", "POST", "/runs/retry/", "runs.retry_failed", OperateAlways, RetryFailedResponse,
        (InvalidLimitError, FrozenError),
        types={"since": Since, "schedule_id": Id | None, "bound": Annotated[int, Field(ge=1, le=1_000)]},
        example={"since": "1h", "workflow": "invoice-sync", "dry_run": True},
        owner=Owner(Scheduler, answer=lambda _, rows: Json(retry_failed_response(rows))),
    ),
    Operation(
        "list_deliveries", "GET", "/schedules/{schedule_id}/deliveries/", "deliveries", Read, DeliveriesResponse,
        (ScheduleNotFoundError, InvalidLimitError), is_repeatable=True,
        types={"status": Annotated[str, Field(max_length=20)] | None}, owner=_NEWEST,
    ),
    Operation(
        "list_upcoming", "GET", "/schedules/{schedule_id}/upcoming/", "upcoming", Read, UpcomingResponse,
        (ScheduleNotFoundError, TooMuchWorkError), is_repeatable=True,
        types={"count": Annotated[int, Field(ge=1, le=1_000)]}, owner=_SCHEDULE,
    ),
    Operation(
        "why", "GET", "/schedules/{schedule_id}/why/", "why", ReadHeavy, WhyResponse,
        (ScheduleNotFoundError, TooMuchWorkError, TooManyHeavyReadsError), is_repeatable=True, owner=_NEWEST,
    ),
)  # fmt: skip
router.include_router(routes(OPERATIONS, "runs"))
