"""The routes of this surface: schedules, and the discovery and health routes that its clients call first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

import rqsched
from rqsched import BackfillRange, CommandContext, OverlapPolicy
from rqsched.api import schedules as schedule_queries
from rqsched.api.backfills import continue_later
from rqsched.api.cursors import PAGE_CHARACTERS
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.values import MAX_PAGE, loads, new_uid, uid_to_uuid
from rqsched.api.workflows import is_registered
from rqsched.durable_workflow import requests, responses
from rqsched.durable_workflow.errors import VERSION, VERSION_HEADER, ReasonError, TriggerFailedError
from rqsched.durable_workflow.requests import Versioned, command_context
from rqsched.durable_workflow.responses import REFUSED
from rqsched.errors import (
    FrozenError,
    InvalidLimitError,
    InvalidPolicyError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    ScheduleStateError,
)
from rqsched.http.dependencies import Admin, Call, Operate, Read
from rqsched.http.errors import EXPECTED
from rqsched.http.openapi import DEFINITION, ErrorLike, Json
from rqsched.http.request_bodies import StrictRoute
from rqsched.types import ScheduleStatus

_log = logging.getLogger(__name__)
_schedules = APIRouter(prefix="/api/schedules", route_class=StrictRoute, dependencies=[Versioned])

_PAGE_TOKEN = ((400, "invalid_page_token"), (403, "page_token_namespace_mismatch"), (409, "page_token_filter_mismatch"))
_DEFINITION = ((422, "memo_too_large"), *DEFINITION)
_OVERLAP = (ScheduleNotFoundError, InvalidPolicyError)
_SCHEDULE: Sequence[ErrorLike] = (ScheduleNotFoundError, ScheduleStateError)
ScheduleId = Annotated[str, Path(max_length=255, description="The id, unique in its namespace.")]
RECENT = 10
"""How many of the newest runs a description lists."""
MOST_WAITING = 100
"""How many waiting runs a description lists."""
WITHIN_REQUEST = timedelta(seconds=2)
"""How long a backfill runs within its request. The rest of the backfill continues after the response."""
DEFAULT_EVENTS = 100
_QUERY = 'An AND of equalities, such as WorkflowType = "invoice-sync" AND region = "eu".'


@_schedules.get(
    "",
    response_model=responses.DurableSchedulesResponse,
    responses=REFUSED.of(*_PAGE_TOKEN, *((422, reason) for reason in ("invalid_query", "invalid_status"))),
)
def list_schedules(
    call: Read,
    status: Annotated[str | None, Query(max_length=32, description="Only these: active or paused.")] = None,
    workflow_type: Annotated[str | None, Query(max_length=255, description="Only of this workflow.")] = None,
    query_text: Annotated[str | None, Query(alias="query", max_length=4_000, description=_QUERY)] = None,
    page_size: Annotated[int, Query(ge=1, le=200, description="The size of a page.")] = 50,
    next_page_token: Annotated[
        str | None, Query(max_length=2_000, description="The next_page_token of the previous page.")
    ] = None,
) -> Response:
    """List schedules. The schedule that was created last comes first."""
    filters = requests.filters_of(call.namespace, status, workflow_type, query_text)
    cursor = requests.decode_token(next_page_token, call.namespace, filters)
    page = schedule_queries.fill_page(
        call.scheduler.runtime.database, filters, limit=page_size, cursor=cursor, sort="-created",
        most=PAGE_CHARACTERS, is_short_enough=True,
    )  # fmt: skip
    token = requests.encode_token(page.next_cursor, call.namespace, filters)
    return Json({"schedules": [responses.item(one) for one in page.items], "next_page_token": token})


@_schedules.post(
    "",
    status_code=201,
    response_model=responses.OutcomeResponse,
    responses=REFUSED.of(ScheduleExistsError, *_DEFINITION),
)
def create_schedule(call: Admin, body: requests.DurableCreateRequest, request: Request) -> Response:
    """Create a schedule; 409 if its id is taken."""
    if body.spec is None or body.action is None:
        raise ReasonError(422, "validation_failed", "spec and action are required.")
    name = body.schedule_id or uid_to_uuid(new_uid(call.scheduler.runtime.now()))
    schedule_id = requests.require_schedule_id(name)
    workflow = requests.workflow_of(body.action)
    options: Any = {**requests.DEFAULTS, **requests.options_of(body), "surface": {"action": body.action}}
    context = command_context(call, request, schedule_id, "create")

    def make() -> None:
        call.scheduler.create(
            schedule_id,
            workflow,
            replace(requests.spec_of(body.spec or {}), dst_gap="skip"),  # as its document says
            note=body.note,
            namespace=call.namespace,
            paused=bool(body.paused),
            context=context,
            executor=_executor(call, workflow),
            **options,
        )

    try:
        make()
    except ScheduleExistsError:
        handle = call.schedule(schedule_id)
        if handle.state.status is not ScheduleStatus.DONE:
            raise
        # A schedule that is done does not exist on this surface, so its id must be free.
        handle.delete(reason="replaced", context=context)
        make()
    return _outcome(schedule_id, "created", 201)


def _executor(call: Call, workflow: str) -> str:
    """Return the executor: `external` for a type that no process has registered, because a type is never imported."""
    return "rq" if is_registered(call.scheduler.runtime, workflow) else "external"


@_schedules.get(
    "/{schedule_id}", response_model=responses.DurableScheduleResponse, responses=REFUSED.of(ScheduleNotFoundError)
)
def read_schedule(call: Read, schedule_id: ScheduleId) -> Response:
    """Read a schedule."""
    handle = _find(call, schedule_id)
    recent = [run.state for run in handle.runs(limit=RECENT).items]
    has_waiting = handle.state.buffer_depth or handle.state.backfill_waiting
    newest = handle.runs(limit=MOST_WAITING, statuses=("buffered",)).items if has_waiting else []
    return Json(responses.detail(handle.state, recent, [run.state for run in reversed(newest)]))


@_schedules.put(
    "/{schedule_id}", response_model=responses.OutcomeResponse, responses=REFUSED.of(*_SCHEDULE, *_DEFINITION)
)
def update_schedule(
    call: Admin, schedule_id: ScheduleId, body: requests.DurableUpdateRequest, request: Request
) -> Response:
    """Change the fields that are sent. A new `spec` replaces the old one; an `action` is merged key by key."""
    handle = _find(call, schedule_id)
    context = command_context(call, request, schedule_id, "update")
    workflow, options = _changes(call, handle, body)
    spec = None if body.spec is None else requests.spec_of(body.spec)
    handle.update(workflow, spec, note=body.note, context=context, paused=body.paused, **options)
    return _outcome(schedule_id, "updated")


def _changes(call: Call, handle: ScheduleHandle, body: requests.DurableUpdateRequest) -> tuple[str | None, Any]:
    """Return the changes. The executor changes only if the workflow changes."""
    options: Any = requests.options_of(body)
    if body.action is None:
        return None, options
    merged = responses.action_form(handle.state) | body.action
    workflow = requests.workflow_of(merged)
    known = loads(handle.state.definition.surface)
    options["surface"] = {**known, "action": responses.sent_action(handle.state) | body.action}
    if workflow == handle.workflow:
        return None, options
    return workflow, options | {"executor": _executor(call, workflow)}


@_schedules.delete(
    "/{schedule_id}", response_model=responses.OutcomeResponse, responses=REFUSED.of(ScheduleNotFoundError)
)
def delete_schedule(call: Admin, schedule_id: ScheduleId, request: Request) -> Response:
    """Delete a schedule. Its history stays."""
    context = command_context(call, request, schedule_id, "delete")
    _find(call, schedule_id).delete(reason="deleted", context=context)
    return _outcome(schedule_id, "deleted")


@_schedules.post("/{schedule_id}/pause", response_model=responses.OutcomeResponse, responses=REFUSED.of(*_SCHEDULE))
def pause_schedule(
    call: Operate, schedule_id: ScheduleId, request: Request, body: requests.DurableNoteRequest | None = None
) -> Response:
    """Pause a schedule. If it is paused already, it stays paused."""
    context = command_context(call, request, schedule_id, "pause")
    _switch(_find(call, schedule_id), paused=True, note=body.note if body else None, context=context)
    return _outcome(schedule_id, "paused")


@_schedules.post("/{schedule_id}/resume", response_model=responses.OutcomeResponse, responses=REFUSED.of(*_SCHEDULE))
def resume_schedule(
    call: Operate, schedule_id: ScheduleId, request: Request, body: requests.DurableNoteRequest | None = None
) -> Response:
    """Resume a schedule, so that it fires from now on. A dead schedule is restarted."""
    context = command_context(call, request, schedule_id, "resume")
    _switch(_find(call, schedule_id), paused=False, note=body.note if body else None, context=context)
    return _outcome(schedule_id, "resumed")


def _switch(handle: ScheduleHandle, *, paused: bool, note: str | None, context: CommandContext) -> None:
    """Pause or resume a schedule, unless it is in this state already."""
    try:
        _switch_once(handle, paused=paused, note=note, context=context)
    except ScheduleStateError:  # another request was faster: read again and retry once
        _switch_once(handle.refresh(), paused=paused, note=note, context=context)


def _switch_once(handle: ScheduleHandle, *, paused: bool, note: str | None, context: CommandContext) -> None:
    match handle.state.status:
        case ScheduleStatus.ACTIVE if paused:
            handle.pause(note, context=context)
        case ScheduleStatus.PAUSED if not paused:
            handle.resume(note=note, context=context)
        case ScheduleStatus.DEAD if not paused:
            handle.restart(note=note, context=context)


@_schedules.post(
    "/{schedule_id}/trigger",
    response_model=responses.TriggeredResponse,
    responses=REFUSED.of(*_OVERLAP, FrozenError),
)
def trigger_schedule(
    call: Operate, schedule_id: ScheduleId, request: Request, body: requests.DurableTriggerRequest | None = None
) -> Response:
    """Start a run now, as the overlap policy allows."""
    handle = _find(call, schedule_id)
    overlap = OverlapPolicy.of(body.overlap_policy) if body and body.overlap_policy else None
    context = command_context(call, request, schedule_id, "trigger")
    try:
        result = handle.trigger(overlap, context=context)
    except EXPECTED:
        raise
    except Exception as error:  # this surface has its own error for a failure that no caller can repair
        _log.exception("trigger of schedule %s failed", handle.uid, extra={"action": "trigger_failed"})
        raise TriggerFailedError(schedule_id, type(error).__name__) from error
    return Json(responses.triggered(schedule_id, result))


@_schedules.post(
    "/{schedule_id}/backfill",
    response_model=responses.BackfilledResponse,
    responses=REFUSED.of(*_OVERLAP, (422, "invalid_time_range"), FrozenError, InvalidLimitError),
)
def backfill_schedule(
    call: Operate, schedule_id: ScheduleId, body: requests.DurableBackfillRequest, request: Request
) -> Response:
    """Fire the past occurrences of a range. If this takes more than two seconds, it continues after the response."""
    if body.end_time <= body.start_time:
        raise ReasonError(422, "invalid_time_range", "end_time must be after start_time.")
    handle = _find(call, schedule_id)
    overlap = OverlapPolicy.of(body.overlap_policy) if body.overlap_policy else None
    context = command_context(call, request, schedule_id, "backfill")
    rows: list[dict[str, Any]] = []
    until = monotonic() + WITHIN_REQUEST.total_seconds()
    for done in handle.backfill_in_chunks(BackfillRange(body.start_time, body.end_time, overlap, context=context)):
        rows += map(responses.backfilled, done.rows)
        if monotonic() >= until and done.uid is not None and not done.is_done:
            continue_later(call.scheduler.runtime, done.uid)
            break
    return Json(
        {
            "schedule_id": schedule_id,
            "outcome": "backfill_started",
            "backfill_id": done.uid,
            "status": done.status,
            "fires_attempted": len(rows),
            "results": rows,
        }
    )


@_schedules.get(
    "/{schedule_id}/history",
    response_model=responses.HistoryResponse,
    responses=REFUSED.of(ScheduleNotFoundError, (422, "invalid_after_sequence")),
)
def read_history(
    call: Read,
    schedule_id: ScheduleId,
    limit: Annotated[str | None, Query(max_length=32, description="1 to 500; 100 when it is not a number.")] = None,
    after_sequence: Annotated[str | None, Query(max_length=32, description="Only later events.")] = None,
) -> Response:
    """Read the audit events of a schedule in order, even if the schedule is deleted."""
    handle, after = call.newest(schedule_id), _sequence(after_sequence)
    is_number = limit is not None and limit.isascii() and limit.isdigit() and 0 < len(limit) <= 18
    wanted = min(int(limit or 0) or DEFAULT_EVENTS, MAX_PAGE) if is_number else DEFAULT_EVENTS
    records = handle.history(limit=wanted, after_sequence=after)
    has_more = len(records) == wanted and bool(handle.history(limit=1, after_sequence=records[-1].sequence))
    return Json(
        {
            "schedule_id": schedule_id,
            "namespace": call.namespace,
            "events": [responses.event(record, handle.schedule_id) for record in records],
            "next_cursor": records[-1].sequence if has_more else None,
            "has_more": has_more,
        }
    )


def _sequence(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ReasonError(422, "invalid_after_sequence", "after_sequence must be a whole number from 0.")
    return int(text)


def _find(call: Call, schedule_id: str) -> ScheduleHandle:
    """Find a schedule. A done schedule does not exist on this surface."""
    handle = call.schedule(schedule_id)
    if handle.state.status is ScheduleStatus.DONE:
        raise ScheduleNotFoundError(schedule_id, call.namespace)
    return handle


def _outcome(schedule_id: str, outcome: str, status: int = 200) -> Response:
    return Json({"schedule_id": schedule_id, "outcome": outcome}, status_code=status)


router = APIRouter(
    tags=["durable-workflow"],
    responses=REFUSED.of_every_route(),
    generate_unique_id_function=lambda route: f"durable_{route.name}",
)
router.include_router(_schedules)


@router.get("/api/cluster/info", response_model=responses.ClusterResponse)
def cluster_info(call: Read) -> Response:
    """Return the capabilities of this server: it has schedules, but no workers and no external payload storage."""
    return Json(
        {
            "server": "rqsched",
            "version": rqsched.__version__,
            "namespace": {"name": call.namespace},
            "capabilities": {"schedules": True},
            "control_plane": {"version": VERSION, "header": VERSION_HEADER},
            "worker_protocol": {"server_capabilities": {}},
        }
    )


@router.get("/api/health", response_model=responses.ReachableResponse)
def health(call: Read) -> Response:
    """Return `ok` if SQL responds and Redis takes writes; else 503."""
    runtime = call.scheduler.runtime
    runtime.ownership.database_id()
    runtime.transport.try_write()
    return Json({"status": "ok", "version": rqsched.__version__})
