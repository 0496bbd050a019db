"""Schedules: list, create, upsert, read, update, delete, and the operations pause, resume, restart and trigger."""

from __future__ import annotations

import inspect
import json
import uuid
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rqsched.api import schedules as schedule_queries
from rqsched.api.build_description import upstream_warnings
from rqsched.api.cursors import PAGE_CHARACTERS
from rqsched.api.database import Connection
from rqsched.api.definitions import Named, ScheduleRequest, create_once, define_new, dies_by_default
from rqsched.api.list_filters import to_filters
from rqsched.api.options import require_id, require_note
from rqsched.api.runs import LastRun, last_runs
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.schedules import MOST_LOOKED_AT
from rqsched.api.values import dumps, loads, new_uid, uid_to_uuid
from rqsched.api.workflows import is_registered
from rqsched.errors import (
    FrozenError,
    IdempotencyConflictError,
    InvalidInputError,
    InvalidLimitError,
    InvalidPayloadError,
    InvalidPolicyError,
    NewerReleaseError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    ScheduleStateError,
    UnknownWorkflowError,
    VersionConflictError,
)
from rqsched.http.dependencies import (
    Admin,
    AdminAlways,
    Call,
    Operate,
    OperateAlways,
    Read,
    require_allowed_hosts,
)
from rqsched.http.errors import MalformedError
from rqsched.http.native.convert import Declaration, declaration_of, statuses_of, update_of
from rqsched.http.native.operation import Operation, Owner, routes
from rqsched.http.native.requests import (
    ID,
    MAX_QUERY,
    QUERY_HELP,
    BatchDeleteRequest,
    CreateRequest,
    Cursor,
    DeclareRequest,
    IdempotencyKey,
    IfMatch,
    Instant,
    Limit,
    ListQuery,
    Name,
    Note,
    ScheduleId,
    ShownFields,
    TriggerRequest,
    UpdateRequest,
)
from rqsched.http.native.responses import (
    ScheduleResponse,
    SchedulesResponse,
    TriggerResponse,
    schedule_response,
    trigger_response,
)
from rqsched.http.openapi import DEFINITION, PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute
from rqsched.types import LastOutcome, Page, Schedule, ScheduleStatus

Sort = Literal["created", "-created", "next", "-next", "id", "-id"]
router = APIRouter(route_class=StrictRoute, tags=["schedules"])
_CHANGE = (ScheduleNotFoundError, VersionConflictError, NewerReleaseError)


@router.get(
    "/schedules/", response_model=SchedulesResponse, responses=PROBLEM.of(InvalidLimitError, InvalidPayloadError)
)
def list_schedules(
    call: Read,
    status: Annotated[
        list[str] | None,
        Query(description="Only these statuses; required to list deleted ones."),
    ] = None,
    outcome: Annotated[
        list[str] | None, Query(description="Only those whose newest run ended so: succeeded, failed, lost.")
    ] = None,
    workflow: Annotated[str | None, Query(max_length=255, description="Only of this workflow.")] = None,
    workflow_id: Annotated[str | None, Query(max_length=255, description="The same as workflow.")] = None,
    label: Annotated[list[str] | None, Query(description="name:value; all must match.")] = None,
    search_attributes: Annotated[
        str | None,
        Query(max_length=MAX_QUERY, description='Those it has, among others, as a JSON object: {"region": "eu"}.'),
    ] = None,
    owner: Annotated[str | None, Query(max_length=255, description="Only of this owner.")] = None,
    managed_by: Annotated[
        str | None, Query(max_length=255, description="sync, import: only those that one of these made.")
    ] = None,
    q: Annotated[str | None, Query(max_length=255, description="A part of the id, in any case.")] = None,
    overdue: Annotated[bool | None, Query(description="Without a success for as long as expected, or not.")] = None,
    created_since: Annotated[Instant | None, Query(description="Created then or later.")] = None,
    created_until: Annotated[Instant | None, Query(description="Created before.")] = None,
    next_since: Annotated[Instant | None, Query(description="Fires next then or later.")] = None,
    next_until: Annotated[Instant | None, Query(description="Fires next before.")] = None,
    query: Annotated[ListQuery | None, Query(description=QUERY_HELP)] = None,
    sort: Annotated[Sort, Query(description="next shows those that fire; - turns it round.")] = "created",
    fields: ShownFields = "full",
    limit: Limit = 100,
    cursor: Cursor = None,
    total: Annotated[bool, Query(description="Also return the total count.")] = False,
) -> Response:
    """List schedules, in the order they were created unless `sort` says otherwise."""
    filters = to_filters(
        call.namespace,
        status=statuses_of(status, ScheduleStatus),
        outcome=statuses_of(outcome, LastOutcome, "outcome"),
        workflow=workflow or workflow_id,
        labels=dict(_label(text) for text in label or ()),
        search_attributes=_attributes(search_attributes),
        owner=owner,
        managed_by=managed_by,
        text=q,
        overdue=overdue,
        created_since=created_since,
        created_until=created_until,
        next_since=next_since,
        next_until=next_until,
        query=query,
    )
    is_slim = fields != "full"

    def look(connection: Connection) -> tuple[Page[Schedule], dict[str, LastRun], int | None]:
        page = schedule_queries.list_schedules(
            connection, filters, limit=limit, cursor=cursor, sort=sort, most=PAGE_CHARACTERS,
            most_looked_at=MOST_LOOKED_AT, is_slim=is_slim,
        )  # fmt: skip
        count = schedule_queries.count_schedules(connection, filters) if total else None
        return page, last_runs(connection, page.items), count

    page, latest, count = call.read(look)
    items = [schedule_response(schedule, latest.get(schedule.uid), is_slim=is_slim) for schedule in page.items]
    counted = {} if count is None else {"total": count}
    return Json({"items": items, "next_cursor": page.next_cursor, **counted})


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not (name and separator):
        raise InvalidInputError("label", f"{text!r} is refused; write name:value")
    return name, value


def _attributes(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError("search_attributes", 'is not a JSON object; write {"region": "eu"}')
    return found


@router.post(
    "/schedules/",
    status_code=201,
    response_model=ScheduleResponse,
    responses=PROBLEM.of(ScheduleExistsError, IdempotencyConflictError, *DEFINITION),
)
def create_schedule(
    call: AdminAlways, body: CreateRequest, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a schedule; 409 if the id is taken. For one day, the same key and body get the same response."""
    declaration = declaration_of(body)
    require_registered(call, declaration)
    schedule_id = require_id(body.schedule_id or _default_id(call, body.name, idempotency_key))
    runtime = call.scheduler.runtime
    options = dies_by_default(declaration.options) if body.is_in_pipelit_words else declaration.options
    asked = ScheduleRequest(
        Named(call.namespace, schedule_id),
        define_new(runtime, declaration.workflow or "", declaration.spec or {}, options),
        require_note(body.note),
        bool(body.paused),
        call.context,
        key=idempotency_key,
        answer=lambda made: dumps({"version": made.version, "body": schedule_response(made)}),
    )
    schedule, kept = create_once(call.scheduler.runtime, asked)
    answer = {"version": schedule.version, "body": None} if kept is None else loads(kept)
    headers = {
        "ETag": f'"{schedule.uid}.{answer["version"]}"',
        "Location": str(request.url_for("read_schedule", schedule_id=schedule.schedule_id)),
    }
    return Json(answer["body"] or schedule_response(schedule), 201, headers)


def _default_id(call: Call, name: str | None, key: str | None) -> str:
    """Return an id for a schedule that the caller did not name. The same key gives the same id."""
    if name is not None and ID.fullmatch(name):
        return name
    if key is not None:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{call.namespace} {key}"))
    return uid_to_uuid(new_uid(call.scheduler.runtime.now()))


def require_registered(call: Call, declaration: Declaration) -> None:
    """Refuse unregistered workflows, because HTTP requests must not import code. Refuse hosts that are not allowed."""
    options = declaration.options
    executed = None if options.get("executor") == "external" else declaration.workflow
    for name in (executed, options.get("on_failure"), options.get("on_recovery"), options.get("targets")):
        if isinstance(name, str) and not is_registered(call.scheduler.runtime, name):
            reason = f"no workflow named {name!r} is registered; GET /api/v1/workflows/ lists those you may see."
            raise UnknownWorkflowError(name, reason)
    require_allowed_hosts(call.scheduler, options.get("notifications"))


@router.get("/schedules/{schedule_id}/", response_model=ScheduleResponse, responses=PROBLEM.of(ScheduleNotFoundError))
def read_schedule(call: Read, schedule_id: ScheduleId) -> Response:
    """Read a schedule."""
    schedule, latest = call.schedule_and_run(schedule_id)
    answer = schedule_response(schedule, latest)
    if schedule.upstream_id is not None:
        answer["warnings"] += call.read(lambda connection: upstream_warnings(connection, schedule))
    return Json(answer, headers=_tagged(schedule))


@router.put(
    "/schedules/{schedule_id}/",
    response_model=ScheduleResponse,
    responses={201: {"model": ScheduleResponse}, **PROBLEM.of(ScheduleStateError, *DEFINITION)},
)
def upsert_schedule(call: AdminAlways, schedule_id: ScheduleId, body: DeclareRequest, request: Request) -> Response:
    """Create a schedule (201) or replace the definition of an existing one (200)."""
    declaration = declaration_of(body)
    require_registered(call, declaration)
    handle, outcome = call.scheduler.upsert(
        schedule_id,
        declaration.workflow or "",
        declaration.spec or {},
        note=body.note,
        namespace=call.namespace,
        paused=body.paused,
        context=call.context,
        **declaration.options,
    )
    response = _respond(call, handle, 201 if outcome == "created" else 200, created_by=request)
    response.headers["X-Outcome"] = outcome
    return response


@router.patch(
    "/schedules/{schedule_id}/",
    response_model=ScheduleResponse,
    responses=PROBLEM.of(*_CHANGE, ScheduleStateError, *DEFINITION),
)
def update_schedule(call: Admin, schedule_id: ScheduleId, body: UpdateRequest, if_match: IfMatch = None) -> Response:
    """Change only the given fields. The next fire moves only if the timing changes. 412 if If-Match does not match."""
    handle = call.schedule(schedule_id)
    version = version_of(handle.state, if_match)
    declaration = update_of(body, handle.state)
    require_registered(call, declaration)
    handle.update(
        declaration.workflow,
        declaration.spec,
        note=body.note,
        context=call.context,
        if_version=version,
        paused=body.paused,
        **declaration.options,
    )
    return _respond(call, handle)


@router.delete("/schedules/{schedule_id}/", status_code=204, responses=PROBLEM.of(*_CHANGE))
def delete_schedule(
    call: Admin,
    schedule_id: ScheduleId,
    purge: Annotated[bool, Query(description="Also remove its runs and history permanently.")] = False,
    reason: Annotated[Note | None, Query(description="Why; recorded with the audit event.")] = None,
    if_match: IfMatch = None,
) -> Response:
    """Delete a schedule. Its id becomes free; its history stays unless `purge` is set."""
    handle = call.newest(schedule_id) if purge else call.schedule(schedule_id)
    version = version_of(handle.state, if_match)
    handle.delete(purge=purge, reason=reason, context=call.context, if_version=version)
    return Response(status_code=204)


@router.post("/schedules/batch-delete/", status_code=204)
def delete_schedules(call: AdminAlways, body: BatchDeleteRequest) -> Response:
    """Delete several schedules; ids that do not exist are ignored."""
    wanted = [*(body.schedule_ids or ()), *(body.ids or ())]
    if not wanted:
        raise InvalidInputError("schedule_ids", "is missing; list the ids to delete")
    for schedule_id in dict.fromkeys(wanted):
        with suppress(ScheduleNotFoundError):
            call.schedule(schedule_id).delete(context=call.context)
    return Response(status_code=204)


def version_of(schedule: Schedule, condition: str | None) -> int | None:
    """Read If-Match: an ETag, a version, or `*`. Raises VersionConflictError for an ETag of an earlier schedule."""
    if condition is None or condition.strip() == "*":
        return None
    text, _, _ = condition.strip().removeprefix("W/").strip('"').partition("-")  # a read appends the content's hash
    uid, _, version = text.rpartition(".")
    if not version.isascii() or not version.isdigit() or len(version) > 18:
        raise MalformedError("If-Match must be the ETag of a schedule or a version.")
    if uid and uid != schedule.uid:
        raise VersionConflictError(schedule.schedule_id, int(version), schedule.version)
    return int(version)


def _tagged(schedule: Schedule) -> dict[str, str]:
    return {"ETag": f'"{schedule.uid}.{schedule.version}"'}


def _respond(call: Call, handle: ScheduleHandle, status: int = 200, *, created_by: Request | None = None) -> Response:
    """Return a schedule as it was last read, with its ETag. If the schedule is new, also send its Location."""
    schedule = handle.state
    latest = call.read(lambda c: last_runs(c, [schedule]))
    headers = _tagged(schedule)
    if status == 201 and created_by is not None:
        headers["Location"] = str(created_by.url_for("read_schedule", schedule_id=schedule.schedule_id))
    return Json(schedule_response(schedule, latest.get(schedule.uid)), status, headers)


def _find(call: Call, given: dict[str, Any]) -> ScheduleHandle:
    """Find the schedule that a request names, and the version that it must have."""
    handle = call.schedule(given.pop("schedule_id"))
    given["if_version"] = version_of(handle.state, given.pop("if_match"))
    return handle


_SCHEDULE = Owner(
    ScheduleHandle, {"schedule_id": (ScheduleId, inspect.Parameter.empty), "if_match": (IfMatch, None)}, _find, _respond
)
_ON_RESUME = {"on_resume": Name | None}
OPERATIONS = (
    Operation(
        "pause_schedule", "POST", "/schedules/{schedule_id}/pause/", "pause", Operate, ScheduleResponse,
        (*_CHANGE, (400, ScheduleStateError.code), InvalidPolicyError),
        types=_ON_RESUME, example={"reason": "the bank is closed"}, owner=_SCHEDULE,
    ),
    Operation(
        "resume_schedule", "POST", "/schedules/{schedule_id}/resume/", "resume", Operate, ScheduleResponse,
        (*_CHANGE, (400, ScheduleStateError.code), InvalidPolicyError),
        types=_ON_RESUME, example={"on_resume": "once"}, owner=_SCHEDULE,
    ),
    Operation(
        "skip_next", "POST", "/schedules/{schedule_id}/skip-next/", "skip_next", Operate, ScheduleResponse,
        (*_CHANGE, ScheduleStateError),
        example={"count": 2, "reason": "the bank is closed"}, owner=_SCHEDULE,
    ),
    Operation(
        "restart_schedule", "POST", "/schedules/{schedule_id}/restart/", "restart", Operate, ScheduleResponse,
        (*_CHANGE, ScheduleStateError),
        example={"note": "the password is changed"}, owner=_SCHEDULE,
    ),
)  # fmt: skip
router.include_router(routes(OPERATIONS))


@router.post(
    "/schedules/{schedule_id}/trigger/",
    response_model=TriggerResponse,
    responses=PROBLEM.of(ScheduleNotFoundError, IdempotencyConflictError, FrozenError, InvalidPolicyError),
)
def trigger_schedule(
    call: OperateAlways,
    schedule_id: ScheduleId,
    body: TriggerRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Start a run now, if the overlap policy allows it; `outcome` says what happened. With a key, a repeat is safe."""
    given = body or TriggerRequest()
    if idempotency_key and given.idempotency_key and idempotency_key != given.idempotency_key:
        raise InvalidInputError("idempotency_key", "contradicts the Idempotency-Key header; send one of them")
    result = call.schedule(schedule_id).trigger(
        given.overlap,
        force=given.force,
        idempotency_key=idempotency_key or given.idempotency_key,
        context=call.context,
    )
    return Json(trigger_response(result))
