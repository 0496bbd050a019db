"""`/calendars/`: calendars of the namespace, and shared calendars.

Only a principal that sees every namespace may change a shared calendar.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BeforeValidator, Field, WithJsonSchema
from starlette.responses import Response

from rqsched.api.scheduler import Scheduler
from rqsched.errors import (
    CalendarBusyError,
    CalendarChangedError,
    CalendarInUseError,
    CalendarNotFoundError,
    InvalidSpecError,
)
from rqsched.http.dependencies import AdminAlways, Call, Read, require_all
from rqsched.http.examples import shown as with_example
from rqsched.http.native.operation import Operation, Owner, routes, shown
from rqsched.http.native.requests import Name, Note, RequestBody, listed
from rqsched.http.openapi import PROBLEM, Json, Schema
from rqsched.http.request_bodies import StrictRoute
from rqsched.when.calendars import MAX_ENTRIES, Calendar

router = APIRouter(route_class=StrictRoute)

CalendarName = Annotated[str, Field(max_length=255)]


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(value if isinstance(value, str) and len(value) == 10 else "")
    except ValueError:
        raise ValueError("must be a date such as 2028-12-31") from None


Entries = Annotated[
    list[Name],
    Field(max_length=MAX_ENTRIES),
    BeforeValidator(listed),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ENTRIES}]}
    ),
]
Day = Annotated[date, BeforeValidator(_date), WithJsonSchema({"type": "string", "format": "date"})]


class CalendarRequest(
    RequestBody,
    json_schema_extra=with_example({"exclude": ["2026-12-25/2026-12-26", "2027-01-01"], "reaches": "2027-12-31"}),
):
    """The contents of a calendar."""

    exclude: Entries = Field(description="Its dates, ranges of dates and weekly windows.")
    description: Note | None = Field(default=None, description="What it is for.")
    source: Note | None = Field(default=None, description="What it was imported from.")
    reaches: Day | None = Field(default=None, description="The last day about which it says anything.")
    revision: int | None = Field(default=None, ge=0, le=2**53, description="Replace only this one; 0: there is none.")
    reason: Note | None = Field(default=None, description="Why, for its history.")


class CalendarResponse(Schema):
    """A calendar."""

    name: str
    """Its name."""
    shared: bool
    """Whether schedules of every namespace may name it."""
    namespace: str | None
    """The namespace of the calendar; null for a shared calendar."""
    revision: int
    """Grows by one with every change."""
    exclude: list[str]
    """Its dates, ranges of dates and weekly windows, in the time zone of each schedule."""
    reaches: date | None
    """The last day that it covers; null for a calendar without an end."""
    source: str | None
    """The source of the import; null for a calendar that was written by hand."""
    description: str | None
    """Its purpose."""
    created_at: datetime
    """When it was created."""
    changed_at: datetime
    """When it was changed last."""
    changed_by: str | None
    """The principal of its last change."""


class CalendarsResponse(Schema):
    """The calendars that schedules of a namespace may name."""

    items: list[CalendarResponse]
    """The calendars, sorted by name; at most 1000."""


class CalendarUser(Schema):
    """A schedule that names a calendar."""

    namespace: str
    """Its namespace."""
    schedule_id: str
    """Its id."""


class CalendarUse(CalendarResponse):
    """A calendar with its users and its history."""

    used_by: list[CalendarUser]
    """The schedules that name the calendar, in namespaces that the caller sees; at most 1000."""
    history: list[dict[str, Any]]
    """Its newest 50 changes, the newest first: `revision`, `at`, `by`, `reason`, `added` and `removed`."""


def _with_its_use(call: Call, found: Calendar) -> Response:
    of = call.scheduler.calendars
    used = of.used_by(found, namespaces=call.principal.namespaces)
    users = [{"namespace": namespace, "schedule_id": schedule_id} for namespace, schedule_id in used]
    return Json({**found.to_dict(), "used_by": users, "history": of.history(found)})


OPERATIONS = (
    Operation("list_calendars", "GET", "/calendars/", "calendars.list", Read, CalendarsResponse, is_repeatable=True),
    Operation(
        "read_calendar", "GET", "/calendars/{name}/", "calendars.get", Read, CalendarUse, (CalendarNotFoundError,),
        is_repeatable=True,
        types={"name": CalendarName},
        owner=Owner(Scheduler, answer=_with_its_use),
    ),
    Operation(
        "delete_calendar", "DELETE", "/calendars/{name}/", "calendars.delete", AdminAlways, None,
        (CalendarNotFoundError, CalendarInUseError, CalendarChangedError),
        types={"name": CalendarName, "revision": Annotated[int, Field(ge=1, le=2**53)] | None},
    ),
)  # fmt: skip
router.include_router(routes(OPERATIONS, "calendars"))


@shown.register
def _(calendar: Calendar) -> dict[str, Any]:
    return calendar.to_dict()


@router.put(
    "/calendars/{name}/",
    tags=["calendars"],
    response_model=CalendarResponse,
    responses=PROBLEM.of(CalendarChangedError, CalendarBusyError, InvalidSpecError),
)
def set_calendar(
    call: AdminAlways,
    name: Annotated[CalendarName, Path(description="The name, by which schedules exclude what it holds.")],
    body: CalendarRequest,
    shared: Annotated[bool, Query(description="Whether the one is meant that all namespaces share.")] = False,
) -> Response:
    """Create a calendar or replace what it holds; every schedule that names it is planned again. Idempotent."""
    if shared:
        require_all(call)
    found = call.scheduler.calendars.set(
        name,
        body.exclude,
        shared=shared,
        namespace=None if shared else call.namespace,
        description=body.description,
        source=body.source,
        reaches=body.reaches,
        revision=body.revision,
        context=replace(call.context, reason=body.reason),
    )
    return Json(found.to_dict())
