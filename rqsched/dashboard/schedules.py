"""The list of schedules: search, filters, order, pages, and operations on several schedules at once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from rqsched.api import events as event_queries
from rqsched.api import health
from rqsched.api import runs as run_queries
from rqsched.api import schedules as schedule_queries
from rqsched.api.cursors import bind_cursor, malformed_cursor, read_instant, unbind_cursor
from rqsched.api.database import Connection
from rqsched.api.runs import RunOutline
from rqsched.api.schedules import MOST_LOOKED_AT, Filters, Found, Position
from rqsched.api.values import is_uid
from rqsched.dashboard.actions import offered, offered_for_several
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.types import AuditRecord, LastOutcome, ScheduleStatus

PAGE = 50
"""How many schedules one page shows."""
STRIP = 12
"""How many runs the strip of last outcomes shows."""
ORDERS = {"id": "id", "next": "next", "newest": "-created"}
"""The orders that the page offers, with their names in SORTS."""
_AMONG = 100
"""How many of the newest events are searched for the event that paused or ended a schedule."""
STATUSES = tuple(status.value for status in ScheduleStatus)
"""The choices of the status filter."""
OUTCOMES = tuple(outcome.value for outcome in LastOutcome)
"""The choices of the filter by the newest run's outcome."""
PROBLEMS = ("late", "failing", "overdue")
"""The choices of the filter by problem: problems that an active schedule may have (see `health`)."""
FILTERS = ("q", "status", "outcome", "problem", "workflow", "label")
"""The fields by which a list is filtered."""


def show(visit: Visit) -> Response:
    """Show a page of schedules."""
    order = visit.query("sort", "id")
    if order not in ORDERS:
        raise InvalidInputError("sort", f"{order!r} is not an order; write id, next or newest")

    def read(connection: Connection) -> tuple[Found, dict[str, list[RunOutline]], dict[str, AuditRecord]]:
        page = read_page(visit, connection, order, PAGE)
        strips = run_queries.newest_runs(connection, [one.uid for one in page.items], STRIP)
        resting = [one.uid for one in page.items if not one.is_active]
        stops = event_queries.newest_stops(connection, resting, _AMONG)
        return page, strips, stops

    page, strips, stops = visit.read(read)
    return visit.page(
        "schedules.html", schedules=page.items, strips=strips, stops=stops, order=order, orders=list(ORDERS),
        statuses=STATUSES, outcomes=OUTCOMES, problems=PROBLEMS, kept=kept_of(visit),
        actions=offered_for_several(visit), offered=offered, **around(visit, page),
    )  # fmt: skip


def read_page(visit: Visit, connection: Connection, order: str, limit: int) -> Found:
    """Read a page of the schedules that the page's address asks for; raises InvalidInputError."""
    text = unbind_cursor(visit.query("after") or None, visit.namespace, order) or ""
    filters, after, sort = filters_of(visit, kept_of(visit)), _position(order, text), ORDERS[order]
    return schedule_queries.search_schedules(connection, filters, sort=sort, after=after, limit=limit)


def around(visit: Visit, page: Found) -> dict[str, Any]:
    """Return the values that a template needs besides the schedules: the start of the next page, and the filters."""
    following = None
    if page.following is not None:
        at, uid = page.following
        place = f"{uid}~{at if isinstance(at, str) else at.isoformat()}"
        following = bind_cursor(place, visit.namespace, visit.query("sort", "id"))
    is_filtered = any(visit.query(name) for name in FILTERS)
    return {
        "following": following,
        "is_cut": page.is_cut,
        "looked_at": MOST_LOOKED_AT,
        "is_filtered": is_filtered,
    }


def kept_of(visit: Visit) -> dict[str, str]:
    """Return the filters, the order and the position of the list. An operation on several schedules returns to them.

    They come from the form, or from the page's address. Absent values are left out.
    """
    names = (*FILTERS, "sort", "after")
    return {name: value for name in names if (value := visit.form.get(name, "").strip() or visit.query(name))}


def filters_of(visit: Visit, fields: Mapping[str, str]) -> Filters:
    """Read the filters of a list from its fields; raises InvalidInputError."""
    status, outcome, label, problem = (fields.get(name, "") for name in ("status", "outcome", "label", "problem"))
    if status and status not in STATUSES:
        raise InvalidInputError("status", f"{status!r} is not a status; write one of {', '.join(STATUSES)}")
    if outcome and outcome not in OUTCOMES:
        raise InvalidInputError("outcome", f"{outcome!r} is not an outcome; write one of {', '.join(OUTCOMES)}")
    name, separator, value = label.partition(":")
    if label and not (name and separator):
        raise InvalidInputError("label", f"{label!r} is refused; write name:value")
    if problem and problem not in PROBLEMS:
        raise InvalidInputError("problem", f"{problem!r} is not one of {', '.join(PROBLEMS)}")
    late_until = health.late_until(visit.scheduler.runtime) + timedelta(microseconds=1)  # an exclusive bound
    return Filters(
        namespace=visit.namespace,
        statuses=(status,) if status else (ScheduleStatus.ACTIVE.value,) if problem == "late" else (),
        outcomes=(outcome,) if outcome else (),
        workflow=fields.get("workflow") or None,
        labels={name: value} if label else {},
        text=fields.get("q") or None,
        overdue=True if problem == "overdue" else None,
        failing=problem == "failing",
        next_until=late_until if problem == "late" else None,
    )


def _position(order: str, text: str) -> Position | None:
    """Read the position of a page; raises InvalidInputError."""
    if not text:
        return None
    uid, _, value = text.partition("~")
    try:
        if not is_uid(uid):
            raise malformed_cursor()
        return value if order == "id" else read_instant(value), uid
    except InvalidLimitError:
        raise InvalidInputError("after", "is malformed; go back to the first page") from None
