"""The collection of schedules: list, create, upsert, read, change, delete."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import JSONResponse, Response

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain import operations
from rqsched.core.ids import new_uid, uid_to_uuid
from rqsched.core.model import Schedule, ScheduleStatus
from rqsched.errors import InvalidInputError, ScheduleNotFoundError, UnknownWorkflowError, VersionConflictError
from rqsched.http.dependencies import Admin, Call, Read
from rqsched.http.errors import MalformedError
from rqsched.http.native.convert import Declared, changed, declared
from rqsched.http.native.fields import ID, Note
from rqsched.http.native.reading import latest_runs
from rqsched.http.native.requests import BatchDeleteBody, CreateBody, DeclareBody, UpdateBody
from rqsched.http.native.responses import ScheduleAnswer, ScheduleAnswers, schedule_answer
from rqsched.http.openapi import PROBLEM
from rqsched.http.strict_json import StrictRoute
from rqsched.store import listing
from rqsched.store.listing import Filters

router = APIRouter(prefix="/schedules", tags=["schedules"], route_class=StrictRoute)

ScheduleId = Annotated[str, Path(max_length=255, description="The id, unique in its namespace.")]
Limit = Annotated[int, Query(ge=1, le=listing.MAX_PAGE, description="Of a page.")]
Cursor = Annotated[str | None, Query(max_length=500, description="The next_cursor of the page before.")]
Key = Annotated[
    str | None, Header(min_length=1, max_length=255, description="The same key gives the same answer again.")
]
IfMatch = Annotated[str | None, Header(description="The ETag or version it must still have.", max_length=255)]


@router.get("/", response_model=ScheduleAnswers)
def list_schedules(
    call: Read,
    status: Annotated[list[str] | None, Query(description="Only these; deleted ones only so.")] = None,
    workflow: Annotated[str | None, Query(max_length=255)] = None,
    workflow_id: Annotated[str | None, Query(max_length=255, description="The same as workflow.")] = None,
    label: Annotated[list[str] | None, Query(description="name:value; all must match.")] = None,
    owner: Annotated[str | None, Query(max_length=255)] = None,
    q: Annotated[str | None, Query(max_length=255, description="A part of the id, in any case.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    total: Annotated[bool, Query(description="Count them all, too.")] = False,
) -> Response:
    """List schedules in the order they were created."""
    filters = Filters(
        namespace=call.namespace,
        statuses=_statuses(status or ()),
        workflow=workflow or workflow_id,
        owner=owner,
        labels=dict(_label(text) for text in label or ()),
        text=q,
    )
    database = call.scheduler.runtime.database
    page = database.read(lambda c: listing.list_schedules(c, filters, limit=limit, cursor=cursor))
    latest = database.read(lambda c: latest_runs(c, page.items))
    items = [schedule_answer(schedule, latest.get(schedule.uid)) for schedule in page.items]
    body: dict[str, Any] = {"items": items, "next_cursor": page.next_cursor}
    if total:
        body["total"] = database.read(lambda c: listing.count_schedules(c, filters))
    return JSONResponse(body)


def _statuses(given: Sequence[str]) -> list[str]:
    wanted = [status for text in given for status in text.split(",") if status]
    if unknown := [status for status in wanted if status not in list(ScheduleStatus)]:
        raise InvalidInputError("status", f"{unknown[0]!r} is not one of {', '.join(ScheduleStatus)}")
    return wanted


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not (name and separator):
        raise InvalidInputError("label", f"{text!r} is refused; write name:value")
    return name, value


@router.post("/", status_code=201, response_model=ScheduleAnswer, responses=PROBLEM.of(409))
def create(call: Admin, body: CreateBody, request: Request, idempotency_key: Key = None) -> Response:
    """Create a schedule; 409 when the id is taken. The same key and body give the same answer again, for a day."""
    said = declared(body)
    _require_registered(call, said)
    handle = call.scheduler.create(
        body.schedule_id or _id_from(call, body.name, idempotency_key),
        said.workflow or "",
        said.spec or {},
        note=body.note,
        namespace=call.namespace,
        paused=bool(body.paused),
        idempotency_key=idempotency_key,
        context=call.context,
        **said.options,
    )
    return answered(call, handle, 201, made=request)


def _id_from(call: Call, name: str | None, key: str | None) -> str:
    """Give the id of a schedule whose caller named none: the same one for the same key."""
    if name is not None and ID.fullmatch(name):
        return name
    if key is not None:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{call.namespace} {key}"))
    return uid_to_uuid(new_uid(call.scheduler.runtime.now()))


def _require_registered(call: Call, said: Declared) -> None:
    """Refuse what would be imported by its path: over HTTP only registered names run."""
    if said.workflow is None or said.options.get("executor") == "external":
        return
    if not operations.is_registered(call.scheduler.runtime, said.workflow):
        reason = f"no workflow named {said.workflow!r} is registered; GET /api/v1/workflows/ lists those that are."
        raise UnknownWorkflowError(said.workflow, reason)


@router.get("/{schedule_id}/", response_model=ScheduleAnswer)
def read(call: Read, schedule_id: ScheduleId) -> Response:
    """Read everything there is to know of a schedule."""
    return answered(call, call.schedule(schedule_id))


@router.put(
    "/{schedule_id}/",
    response_model=ScheduleAnswer,
    responses={201: {"model": ScheduleAnswer}, **PROBLEM.of(409)},
)
def upsert(
    call: Admin, schedule_id: ScheduleId, body: DeclareBody, request: Request, if_match: IfMatch = None
) -> Response:
    """Create a schedule (201) or make the known one exactly what is declared (200)."""
    _refuse_condition(if_match)
    said = declared(body)
    _require_registered(call, said)
    handle, outcome = call.scheduler.upsert(
        schedule_id,
        said.workflow or "",
        said.spec or {},
        note=body.note,
        namespace=call.namespace,
        paused=body.paused,
        context=call.context,
        **said.options,
    )
    response = answered(call, handle, 201 if outcome == "created" else 200, made=request)
    response.headers["X-Outcome"] = outcome
    return response


@router.patch("/{schedule_id}/", response_model=ScheduleAnswer, responses=PROBLEM.of(409, 412))
def update(call: Admin, schedule_id: ScheduleId, body: UpdateBody, if_match: IfMatch = None) -> Response:
    """Change what is given and leave the rest; the next time moves only with the timing. 412 when If-Match fails."""
    handle = call.schedule(schedule_id)
    version = _version(handle.state, if_match)
    said = changed(body, handle.state)
    _require_registered(call, said)
    handle.update(said.workflow, said.spec, note=body.note, context=call.context, if_version=version, **said.options)
    return answered(call, handle)


def _version(schedule: Schedule, condition: str | None) -> int | None:
    """Read If-Match: an ETag of ours, a bare version, or `*`; raises VersionConflictError for another incarnation."""
    if condition is None or condition.strip() == "*":
        return None
    text = condition.strip().removeprefix("W/").strip('"')
    uid, _, version = text.rpartition(".")
    if not version.isascii() or not version.isdigit() or len(version) > 18:
        raise MalformedError("If-Match is neither an ETag of a schedule nor a version.")
    if uid and uid != schedule.uid:
        raise VersionConflictError(schedule.schedule_id, int(version), schedule.version)
    return int(version)


def _refuse_condition(condition: str | None) -> None:
    if condition is not None:
        raise MalformedError("If-Match is only honoured on PATCH; leave it out here.")


@router.delete("/{schedule_id}/", status_code=204)
def delete(
    call: Admin,
    schedule_id: ScheduleId,
    purge: Annotated[bool, Query(description="Remove its runs and history too, for good.")] = False,
    reason: Annotated[Note | None, Query()] = None,
    if_match: IfMatch = None,
) -> Response:
    """Delete a schedule: its id is free again, its history stays unless purged."""
    _refuse_condition(if_match)
    handle = call.newest(schedule_id) if purge else call.schedule(schedule_id)
    handle.delete(purge=purge, reason=reason, context=call.context)
    return Response(status_code=204)


@router.post("/batch-delete/", status_code=204)
def batch_delete(call: Admin, body: BatchDeleteBody) -> Response:
    """Delete several schedules; those that are not there are passed over."""
    wanted = [*(body.schedule_ids or ()), *(body.ids or ())]
    if not wanted:
        raise InvalidInputError("schedule_ids", "is missing; list the ids to delete")
    for schedule_id in dict.fromkeys(wanted):
        _delete_if_there(call, schedule_id)
    return Response(status_code=204)


def _delete_if_there(call: Call, schedule_id: str) -> None:
    try:
        call.schedule(schedule_id).delete(context=call.context)
    except ScheduleNotFoundError:
        return


def answered(call: Call, handle: ScheduleHandle, status: int = 200, *, made: Request | None = None) -> Response:
    """Answer with a schedule as it was read last, its ETag, and where it is when it is new."""
    schedule, database = handle.state, call.scheduler.runtime.database
    latest = database.read(lambda c: latest_runs(c, [schedule]))
    headers = {"ETag": f'"{schedule.uid}.{schedule.version}"'}
    if status == 201 and made is not None:
        headers["Location"] = str(made.url_for("read", schedule_id=schedule.schedule_id))
    return JSONResponse(schedule_answer(schedule, latest.get(schedule.uid)), status, headers)
