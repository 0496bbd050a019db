"""Registering, listing, reading, toggling and removing cron jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched import listing, operations
from rqsched.handles import ScheduleHandle
from rqsched.http.body import JsonBody
from rqsched.http.deps import Admin, Call, Operate, Read
from rqsched.listing import Filters
from rqsched.state import Schedule

from . import answers, registration
from .forms import Answer, invalid
from .registration import KNOWN, Registration

router = APIRouter(prefix="/v1/cron")
SHOWN = ("active", "paused", "done", "dead")


@router.post("", status_code=201)
def register(call: Admin, body: JsonBody) -> Response:
    """Register a cron job (201), or change the one of this name (200)."""
    said = registration.read(body)
    name = registration.require_name(body.get("name"))
    if said.expression is None or said.type is None:
        missing = "cron" if said.expression is None else "type"
        raise invalid(f"{missing}: is needed.", field=missing)
    options = said.options or {}
    handle, outcome = call.scheduler.upsert(
        name,
        said.type,
        registration.spec_of(said, said.timezone or "UTC") or said.expression,
        namespace=call.namespace,
        paused=None if said.enabled is None else not said.enabled,
        context=call.context,
        **_options(call, name, said, options),
    )
    return Answer(answers.one(handle.state), status_code=201 if outcome == "created" else 200)


def _options(call: Call, name: str, said: Registration, options: dict[str, Any]) -> Any:
    is_known = said.type is not None and operations.is_registered(call.scheduler.runtime, said.type)
    return {
        **registration.our_options(name, options),
        "args": said.args or [],
        "overlap": said.overlap_policy or "skip",
        "description": said.description,
        # A type that no process registered waits for a worker of any language; an import path is never followed.
        "executor": "rq" if is_known else "external",
        "surface": {"ojs": {"expression": said.expression, "options": options}},
    }


@router.get("")
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
    page = database.read(lambda c: listing.list_schedules(c, filters, limit=wanted, cursor=cursor, offset=offset))
    total = database.read(lambda c: listing.count_schedules(c, filters))
    jobs = [answers.cron_job(schedule) for schedule in page.items]
    pagination = {"total": total, "has_more": page.next_cursor is not None, "next_cursor": page.next_cursor}
    return Answer({"crons": jobs, "cron_jobs": jobs, "count": total, "pagination": pagination})


@router.get("/{name}")
def read(call: Read, name: str) -> Response:
    """Read a cron job."""
    return Answer(answers.one(call.schedule(name).state))


@router.delete("/{name}")
def remove(call: Admin, name: str) -> Response:
    """Remove the registration; jobs it has enqueued already are not affected."""
    handle = call.schedule(name)
    job = answers.cron_job(handle.state)
    handle.delete(context=call.context)
    return Answer({"deleted": True, "name": name, "cron": job})


@router.patch("/{name}")
def patch(call: Operate, name: str, body: JsonBody) -> Response:
    """Enable or disable a cron job, or change what else is sent."""
    said = registration.read(body)
    if not KNOWN & set(body):
        raise invalid(f"nothing to change; send one of {', '.join(sorted(KNOWN))}.")
    handle = call.schedule(name)
    if set(body) & KNOWN != {"enabled"}:
        _change(call, handle, said)
    if said.enabled is not None:
        _toggle(call, handle, enabled=said.enabled)
    return Answer(answers.one(handle.state))


def _toggle(call: Call, handle: ScheduleHandle, *, enabled: bool) -> None:
    if enabled and handle.status == "paused":
        handle.resume(context=call.context)
    elif enabled and handle.status in {"done", "dead"}:
        handle.restart(context=call.context)
    elif not enabled and handle.status == "active":
        handle.pause(reason="disabled", context=call.context)


def _change(call: Call, handle: ScheduleHandle, said: Registration) -> None:
    verbatim = answers.sent(handle.state)
    options = verbatim.get("options", {}) if said.options is None else said.options
    expression = said.expression or verbatim.get("expression")
    changes: Any = {"surface": {"ojs": {"expression": expression, "options": options}}}
    if said.options is not None:
        changes |= registration.our_options(handle.schedule_id, options)
    if said.args is not None:
        changes["args"] = said.args
    if said.overlap_policy is not None:
        changes["overlap"] = said.overlap_policy
    if said.has_description:
        changes["description"] = said.description
    workflow = said.type if said.type != handle.workflow else None
    if workflow is not None:
        changes["executor"] = "rq" if operations.is_registered(call.scheduler.runtime, workflow) else "external"
    handle.update(workflow, _spec(handle.state, said, expression), context=call.context, **changes)


def _spec(schedule: Schedule, said: Registration, expression: str | None) -> Any:
    if said.expression is None and said.timezone is None:
        return None
    timing = Registration(expression=expression or schedule.spec.primary_cron)
    return registration.spec_of(timing, said.timezone or schedule.spec.timezone)
