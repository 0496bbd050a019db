"""The list of schedules: search, filters, order, pages, and actions on several at once."""

from __future__ import annotations

from starlette.responses import Response

from rqsched.core.model import LastOutcome, ScheduleStatus
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.store import run_queries, schedule_queries
from rqsched.store.database import Connection
from rqsched.store.run_queries import RunOutline
from rqsched.store.schedule_queries import MOST_LOOKED_AT, Filters, Order, SchedulePage

PAGE = 50
"""Schedules on one page."""
STRIP = 12
"""Runs in the strip of last outcomes."""
STATUSES = tuple(status.value for status in ScheduleStatus)
"""What the filter offers."""
OUTCOMES = tuple(outcome.value for outcome in LastOutcome)
"""How the newest run may have ended."""


def show(visit: Visit) -> Response:
    """Show a page of schedules."""
    order = _order(visit.query("sort", "id"))
    filters = filters_of(visit)
    after = position(order, visit.query("after"))

    def read(connection: Connection) -> tuple[SchedulePage, dict[str, list[RunOutline]]]:
        page = schedule_queries.sorted_schedules(connection, filters, order=order, after=after, limit=PAGE)
        return page, run_queries.newest_runs(connection, [one.uid for one in page.items], STRIP)

    page, strips = visit.read(read)
    return visit.page(
        "schedules.html",
        schedules=page.items,
        strips=strips,
        order=order,
        orders=list(Order),
        statuses=STATUSES,
        outcomes=OUTCOMES,
        following=place_of(page),
        is_cut=page.is_cut,
        looked_at=MOST_LOOKED_AT,
        is_filtered=is_filtered(visit),
    )


def is_filtered(visit: Visit) -> bool:
    """Return whether the page's address asks for some schedules only."""
    return any(visit.query(name) for name in ("q", "status", "outcome", "workflow", "label"))


def filters_of(visit: Visit) -> Filters:
    """Read the filters from the page's address; raises InvalidInputError."""
    status, outcome, label = visit.query("status"), visit.query("outcome"), visit.query("label")
    if status and status not in STATUSES:
        raise InvalidInputError("status", f"{status!r} is not a status; write one of {', '.join(STATUSES)}")
    if outcome and outcome not in OUTCOMES:
        raise InvalidInputError("outcome", f"{outcome!r} is not an outcome; write one of {', '.join(OUTCOMES)}")
    name, separator, value = label.partition(":")
    if label and not (name and separator):
        raise InvalidInputError("label", f"{label!r} is refused; write name:value")
    return Filters(
        namespace=visit.namespace,
        statuses=(status,) if status else (),
        outcomes=(outcome,) if outcome else (),
        workflow=visit.query("workflow") or None,
        labels={name: value} if label else {},
        text=visit.query("q") or None,
    )


def _order(text: str) -> Order:
    try:
        return Order(text)
    except ValueError:
        raise InvalidInputError("sort", f"{text!r} is not an order; write id, next or newest") from None


def place_of(page: SchedulePage) -> str | None:
    """Return where the page after this one begins, for an address."""
    if page.following is None:
        return None
    value, uid = page.following
    return f"{uid}~{value}"


def position(order: Order, text: str) -> tuple[str, str] | None:
    """Read where a page begins; raises InvalidInputError."""
    if not text:
        return None
    uid, separator, value = text.partition("~")
    try:
        order.read(value)
    except ValueError:
        separator = ""
    if not separator or len(uid) != 26:
        raise InvalidInputError("after", "is malformed; go back to the first page")
    return value, uid
