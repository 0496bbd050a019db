"""Cron jobs: register, list, read, change, remove."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from rqsched.api import schedules as schedule_queries
from rqsched.api.cursors import PAGE_CHARACTERS
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.schedules import Filters
from rqsched.api.values import loads
from rqsched.api.workflows import is_registered
from rqsched.errors import ScheduleNotFoundError, ScheduleStateError
from rqsched.http.auth import Role
from rqsched.http.dependencies import Admin, Call, Operate, Read, require_role
from rqsched.ojs import requests, responses
from rqsched.ojs.errors import OjsError, OjsResponse, invalid
from rqsched.ojs.requests import FIELDS, Body, Registration, body_schema
from rqsched.ojs.responses import REFUSED, TAKEN, WRONG_STATE
from rqsched.types import Options
from rqsched.when.spec import Cron, Spec, require_no_place

CronName = Annotated[str, Path(description="The name of the cron job.")]
router = APIRouter(prefix="/v1/cron")
MAX_PAGE = 200
"""The maximum number of cron jobs of one page. A larger `limit` is reduced to this number."""
SHOWN = ("active", "paused", "done", "dead")


@router.post(
    "",
    status_code=201,
    response_model=responses.CronResponse,
    responses={200: {"model": responses.CronResponse}, **REFUSED.of(TAKEN, WRONG_STATE)},
    openapi_extra=body_schema(requests.RegisterRequest),
)
def register_cron(call: Admin, body: Body) -> Response:
    """Register a cron job (201), or replace the cron job of this name (200). `enabled` stays unless it is sent."""
    registration = requests.read_registration(body)
    name = requests.require_name(body.get("name"))
    for field, value in (("cron", registration.expression), ("type", registration.type)):
        if value is None:
            raise invalid(f"{field}: is required.", field=field)
    is_known = _require_kept(call, name)
    handle, outcome = call.scheduler.upsert(
        name,
        registration.type or "",
        _spec(registration.expression or "", "UTC" if registration.timezone is None else registration.timezone),
        namespace=call.namespace,
        paused=None if registration.enabled is None else not registration.enabled,
        context=call.context,
        **_options(call, name, registration),
        **({} if is_known else _AS_SPECIFIED),
    )
    if registration.enabled:
        _toggle(call, handle, enabled=True)
    return OjsResponse(responses.cron_response(handle.state), status_code=201 if outcome == "created" else 200)


def _spec(expression: str, timezone: str) -> Spec:
    return require_no_place(Spec(Cron(expression, seconds="first"), timezone))


_AS_SPECIFIED: Options = {"dst_gap": "skip"}
"""The options that Open Job Spec prescribes for a new cron job."""


def _require_kept(call: Call, name: str) -> bool:
    """Refuse to replace a schedule whose timing no cron job can express; raises OjsError.

    Returns whether a schedule of this name exists.
    """
    with suppress(ScheduleNotFoundError):
        known = call.schedule(name).state
        if (specs := responses.specs_beyond(known)) is not None:
            message = (
                f"the schedule {name} is more than one cron expression; change its options by PATCH, or delete it."
            )
            raise OjsError(409, "duplicate", message, details={"name": name, "x_specs": specs})
        return True
    return False


def _options(call: Call, name: str, registration: Registration) -> Any:
    options = requests.job_options(registration, {}) or {}
    return {
        **requests.our_options(name, options),
        "args": registration.args or [],
        "overlap": registration.overlap_policy or "skip",
        "description": registration.description,
        "executor": _executor(call, registration.type or ""),
        "on_delete": "keep_runs",
        "surface": {"ojs": {"expression": registration.expression, "options": options}},
    }


def _executor(call: Call, job_type: str) -> str:
    """Return the executor: `rq` if a process has registered a workflow of this name, else `external`.

    The type of a job is never used as an import path.
    """
    return "rq" if is_registered(call.scheduler.runtime, job_type) else "external"


@router.get("", response_model=responses.CronsResponse)
def list_crons(
    call: Read,
    enabled: Annotated[bool | None, Query(description="Only those that fire, or only those that do not.")] = None,
    limit: Annotated[int, Query(ge=1, description="The size of a page.")] = 50,
    cursor: Annotated[str | None, Query(max_length=500, description="The next_cursor of the previous page.")] = None,
    offset: Annotated[int, Query(ge=0, le=10_000_000, description="How many to pass over.")] = 0,
) -> Response:
    """List cron jobs in the order they were registered."""
    statuses = SHOWN if enabled is None else ("active",) if enabled else ("paused", "done", "dead")
    filters = Filters(namespace=call.namespace, statuses=statuses)
    database, wanted = call.scheduler.runtime.database, min(limit, MAX_PAGE)
    page = database.read(
        lambda c: schedule_queries.list_schedules(
            c, filters, limit=wanted, cursor=cursor or None, offset=offset, most=PAGE_CHARACTERS
        )
    )
    total = database.read(lambda c: schedule_queries.count_schedules(c, filters))
    jobs = [responses.cron_job(schedule) for schedule in page.items]
    pagination = {"total": total, "has_more": page.next_cursor is not None, "next_cursor": page.next_cursor}
    return OjsResponse({"crons": jobs, "cron_jobs": jobs, "count": total, "pagination": pagination})


@router.get("/{name}", response_model=responses.CronResponse)
def read_cron(call: Read, name: CronName) -> Response:
    """Read a cron job."""
    return OjsResponse(responses.cron_response(call.schedule(name).state))


@router.delete("/{name}", response_model=responses.RemovedResponse)
def remove_cron(call: Admin, name: CronName) -> Response:
    """Remove a cron job; jobs it has already enqueued are not affected."""
    handle = call.schedule(name)
    job = responses.cron_job(handle.state)
    handle.delete(context=call.context)
    return OjsResponse({"deleted": True, "name": name, "cron": job})


@router.patch(
    "/{name}",
    response_model=responses.CronResponse,
    responses=REFUSED.of(TAKEN, WRONG_STATE),
    openapi_extra=body_schema(requests.ChangeRequest),
)
def change_cron(call: Operate, name: CronName, body: Body) -> Response:
    """Enable or disable a cron job. A change of its other fields needs the role `admin`, like a registration."""
    registration = requests.read_registration(body)
    wanted = FIELDS & set(body)
    if not wanted:
        raise invalid(f"the body contains no change; send one of {', '.join(sorted(FIELDS))}.")
    handle = call.schedule(name)
    if wanted != {"enabled"}:
        require_role(call.principal, Role.ADMIN)
        _change(call, handle, registration)
    if registration.enabled is not None:
        _toggle(call, handle, enabled=registration.enabled)
    return OjsResponse(responses.cron_response(handle.state))


def _toggle(call: Call, handle: ScheduleHandle, *, enabled: bool) -> None:
    try:
        _switch(call, handle, enabled=enabled)
    except ScheduleStateError:  # another request was faster: read again and retry once
        _switch(call, handle.refresh(), enabled=enabled)


def _switch(call: Call, handle: ScheduleHandle, *, enabled: bool) -> None:
    if enabled and handle.status == "paused":
        handle.resume(context=call.context)
    elif enabled and handle.status in {"done", "dead"}:
        handle.restart(context=call.context)
    elif not enabled and handle.status == "active":
        handle.pause(reason="disabled", context=call.context)


def _change(call: Call, handle: ScheduleHandle, registration: Registration) -> None:
    """Change a schedule. Absent fields keep their values."""
    known = responses.sent_fields(handle.state)
    options = requests.job_options(registration, known.get("options", {}))
    changes: dict[str, Any] = {}
    if registration.options is not None:
        changes = requests.our_options(handle.schedule_id, options or {})
    elif options is not None:
        changes = {"memo": requests.memo_of(handle.schedule_id, options)}
    given = {"args": registration.args, "overlap": registration.overlap_policy, "timezone": registration.timezone}
    changes |= {name: value for name, value in given.items() if value is not None}
    if registration.has_description:
        changes["description"] = registration.description
    verbatim = {"expression": registration.expression, "options": options}
    sent = known | {name: value for name, value in verbatim.items() if value is not None}
    changes["surface"] = loads(handle.state.definition.surface) | {"ojs": sent}
    workflow = registration.type if registration.type != handle.workflow else None
    if workflow is not None:
        changes["executor"] = _executor(call, workflow)
    timezone = handle.state.spec.timezone if registration.timezone is None else registration.timezone
    spec = None if registration.expression is None else _spec(registration.expression, timezone)
    handle.update(workflow, spec, context=call.context, **changes)
