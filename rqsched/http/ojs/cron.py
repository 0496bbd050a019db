"""Registering, listing, reading, toggling and removing cron jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain import operations
from rqsched.core.payload import loads
from rqsched.errors import ScheduleStateError
from rqsched.http.auth import Role
from rqsched.http.dependencies import Admin, Call, Operate, Read, require_role
from rqsched.http.ojs import convert, requests, responses
from rqsched.http.ojs.errors import OjsResponse, invalid
from rqsched.http.ojs.requests import FIELDS, Registration, sent_as
from rqsched.http.ojs.responses import REFUSED
from rqsched.http.strict_json import JsonBody
from rqsched.spec.spec import Spec
from rqsched.store import listing
from rqsched.store.listing import Filters

router = APIRouter(prefix="/v1/cron")
MOST = 200
"""The most cron jobs of one page; a larger `limit` is cut to it."""
SHOWN = ("active", "paused", "done", "dead")


@router.post(
    "",
    status_code=201,
    response_model=responses.CronResponse,
    responses={200: {"model": responses.CronResponse}, **REFUSED.of(409)},
    openapi_extra=sent_as(requests.RegisterRequest),
)
def register(call: Admin, body: JsonBody) -> Response:
    """Register a cron job (201), or make the one of this name what is sent (200); `enabled` stays unless it is sent."""
    said = requests.read_registration(body)
    name = requests.require_name(body.get("name"))
    for field, value in (("cron", said.expression), ("type", said.type)):
        if value is None:
            raise invalid(f"{field}: is needed.", field=field)
    handle, outcome = call.scheduler.upsert(
        name,
        said.type or "",
        Spec.coerce(said.expression or "", "UTC" if said.timezone is None else said.timezone),
        namespace=call.namespace,
        paused=None if said.enabled is None else not said.enabled,
        context=call.context,
        **_options(call, name, said),
    )
    if said.enabled:
        _toggle(call, handle, enabled=True)
    return OjsResponse(responses.one(handle.state), status_code=201 if outcome == "created" else 200)


def _options(call: Call, name: str, said: Registration) -> Any:
    options = convert.job_options(said, {}) or {}
    return {
        **convert.our_options(name, options),
        "args": said.args or [],
        "overlap": said.overlap_policy or "skip",
        "description": said.description,
        "executor": _executor(call, said.type or ""),
        "surface": {"ojs": {"expression": said.expression, "options": options}},
    }


def _executor(call: Call, job_type: str) -> str:
    """A type that no process registered waits for a worker of any language; an import path is never followed."""
    return "rq" if operations.is_registered(call.scheduler.runtime, job_type) else "external"


@router.get("", response_model=responses.CronsResponse)
def list_crons(
    call: Read,
    enabled: Annotated[bool | None, Query()] = None,
    limit: Annotated[int, Query(ge=1)] = 50,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """List cron jobs in the order they were registered."""
    statuses = SHOWN if enabled is None else ("active",) if enabled else ("paused", "done", "dead")
    filters = Filters(namespace=call.namespace, statuses=statuses)
    database, wanted = call.scheduler.runtime.database, min(limit, 200)
    page = database.read(
        lambda c: listing.list_schedules(c, filters, limit=wanted, cursor=cursor or None, offset=offset)
    )
    total = database.read(lambda c: listing.count_schedules(c, filters))
    jobs = [responses.cron_job(schedule) for schedule in page.items]
    pagination = {"total": total, "has_more": page.next_cursor is not None, "next_cursor": page.next_cursor}
    return OjsResponse({"crons": jobs, "cron_jobs": jobs, "count": total, "pagination": pagination})


@router.get("/{name}", response_model=responses.CronResponse)
def read(call: Read, name: str) -> Response:
    """Read a cron job."""
    return OjsResponse(responses.one(call.schedule(name).state))


@router.delete("/{name}", response_model=responses.RemovedResponse)
def remove(call: Admin, name: str) -> Response:
    """Remove the registration; jobs it has enqueued already are not affected."""
    handle = call.schedule(name)
    job = responses.cron_job(handle.state)
    handle.delete(context=call.context)
    return OjsResponse({"deleted": True, "name": name, "cron": job})


@router.patch(
    "/{name}",
    response_model=responses.CronResponse,
    responses=REFUSED.of(409),
    openapi_extra=sent_as(requests.ChangeRequest),
)
def patch(call: Operate, name: str, body: JsonBody) -> Response:
    """Enable or disable a cron job; whoever may register one may change what else is sent."""
    said = requests.read_registration(body)
    wanted = FIELDS & set(body)
    if not wanted:
        raise invalid(f"nothing to change; send one of {', '.join(sorted(FIELDS))}.")
    handle = call.schedule(name)
    if wanted != {"enabled"}:
        require_role(call.principal, Role.ADMIN)
        _change(call, handle, said)
    if said.enabled is not None:
        _toggle(call, handle, enabled=said.enabled)
    return OjsResponse(responses.one(handle.state))


def _toggle(call: Call, handle: ScheduleHandle, *, enabled: bool) -> None:
    try:
        _switch(call, handle, enabled=enabled)
    except ScheduleStateError:  # somebody else was faster: look again, and once more
        _switch(call, handle.refresh(), enabled=enabled)


def _switch(call: Call, handle: ScheduleHandle, *, enabled: bool) -> None:
    if enabled and handle.status == "paused":
        handle.resume(context=call.context)
    elif enabled and handle.status in {"done", "dead"}:
        handle.restart(context=call.context)
    elif not enabled and handle.status == "active":
        handle.pause(reason="disabled", context=call.context)


def _change(call: Call, handle: ScheduleHandle, said: Registration) -> None:
    changes: Any = _said(handle, said)
    workflow = said.type if said.type != handle.workflow else None
    if workflow is not None:
        changes["executor"] = _executor(call, workflow)
    timezone = handle.state.spec.timezone if said.timezone is None else said.timezone
    spec = None if said.expression is None else Spec.coerce(said.expression, timezone)
    handle.update(workflow, spec, context=call.context, **changes)


def _said(handle: ScheduleHandle, said: Registration) -> dict[str, Any]:
    """Give what is to change, in our options; what is not sent stays."""
    known = responses.sent(handle.state)
    options = convert.job_options(said, known.get("options", {}))
    changes: dict[str, Any] = {} if options is None else convert.our_options(handle.schedule_id, options)
    given = {"args": said.args, "overlap": said.overlap_policy, "timezone": said.timezone}
    changes |= {name: value for name, value in given.items() if value is not None}
    if said.has_description:
        changes["description"] = said.description
    verbatim = {"expression": said.expression, "options": options}
    sent = known | {name: value for name, value in verbatim.items() if value is not None}
    return changes | {"surface": loads(handle.state.definition.surface) | {"ojs": sent}}
