"""The list of schedules: search, filters, order, pages, and operations on several schedules at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
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
from rqsched.api.states import REPEATEDLY
from rqsched.api.values import is_uid, loads
from rqsched.dashboard.actions import offered, offered_for_several
from rqsched.dashboard.rendering import filters_in_words
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.types import AuditRecord, LastOutcome, Schedule, ScheduleStatus

PAGE = 50
"""How many schedules one page shows."""
STRIP = 12
"""How many runs the strip of last outcomes shows."""
WORST = "worst"
"""The order in which schedules with problems come first."""
ORDERS = {"id": "id", WORST: "id", "next": "next", "newest": "-created"}
"""The orders that the page offers, with their names in SORTS."""
_TROUBLES = {"late": "next", "dead": "id", "failing": "id", "overdue": "id", "": "id"}
"""The problems in the order of the overview, and last the schedules without a problem. Each is read in one of SORTS."""
_MOST_SEARCHES = 12
"""How many searches a page in the order WORST may take."""
_AMONG = 100
"""How many of the newest events are searched for the event that paused or ended a schedule."""
STATUSES = tuple(status.value for status in ScheduleStatus)
"""The choices of the status filter."""
OUTCOMES = tuple(outcome.value for outcome in LastOutcome)
"""The choices of the filter by the newest run's outcome."""
PROBLEMS = ("late", "failing", "overdue")
"""The choices of the filter by problem: problems that an active schedule may have (see `health`)."""
FILTERS = {
    "q": "id contains",
    "outcome": "last outcome",
    "problem": "problem",
    "workflow": "workflow",
    "label": "label",
    "status": "status",
}
"""The fields by which a list is filtered, with their words in titles."""


def show(visit: Visit) -> Response:
    """Show a page of schedules."""
    order = visit.query("sort", "id")
    if order not in ORDERS:
        raise InvalidInputError("sort", f"{order!r} is not an order; write one of {', '.join(ORDERS)}")

    def read(connection: Connection) -> tuple[Found, dict[str, list[RunOutline]], dict[str, AuditRecord]]:
        page = read_page(visit, connection, order, PAGE)
        strips = run_queries.newest_runs(connection, [one.uid for one in page.items], STRIP)
        resting = [one for one in page.items if not one.is_active]
        stops = event_queries.newest_stops(connection, resting, _AMONG)
        return page, strips, stops

    page, strips, stops = visit.read(read)
    labels = {one.uid: loads(one.definition.labels) for one in page.items}
    by = visit.query("group")
    return visit.page(
        "schedules.html", schedules=page.items, strips=strips, stops=stops, order=order, orders=list(ORDERS),
        by=by, groups=_grouped(page.items, labels, by), labels=labels,
        label_names=sorted({name for some in labels.values() for name in some} | ({by} if by else set())),
        troubles={one.uid: _trouble_of(visit, one) for one in page.items},
        statuses=STATUSES, outcomes=OUTCOMES, problems=PROBLEMS, kept=kept_of(visit),
        actions=offered_for_several(visit), offered=offered, **around(visit, page),
    )  # fmt: skip


def read_page(visit: Visit, connection: Connection, order: str, limit: int) -> Found:
    """Read a page of the schedules that the page's address asks for; raises InvalidInputError."""
    text = unbind_cursor(visit.query("after") or None, visit.namespace, order) or ""
    filters = filters_of(visit, kept_of(visit))
    if order == WORST:
        return _worst_first(visit, connection, filters, text, limit)
    sort = ORDERS[order]
    after = _position(sort, text)
    return schedule_queries.search_schedules(connection, filters, sort=sort, after=after, limit=limit)


def _worst_first(visit: Visit, connection: Connection, filters: Filters, text: str, limit: int) -> Found:
    """Read a page of the schedules with each problem in turn, then of the schedules without a problem.

    A schedule with several problems is listed under the gravest.
    """
    troubles, (trouble, after) = [*_TROUBLES], _worst_position(text)
    found, is_cut, searches = list[tuple[str, Schedule]](), False, 0
    place: int | None = troubles.index(trouble)
    while place is not None and len(found) <= limit and not is_cut:
        trouble, following = troubles[place], None
        narrowed = _with_trouble(visit, filters, trouble)
        if narrowed is not None:
            sort, most = _TROUBLES[trouble], limit + 1 - len(found)
            page = schedule_queries.search_schedules(connection, narrowed, sort=sort, after=after, limit=most)
            found += [(trouble, one) for one in page.items if _trouble_of(visit, one) == trouble]
            following, searches = page.following, searches + 1
            is_cut = page.is_cut or searches == _MOST_SEARCHES
        after = following
        if following is None:
            place = place + 1 if place + 1 < len(troubles) else None
    shown = [one for _, one in found[:limit]]
    if len(found) > limit:
        trouble, last = found[limit - 1]
        at = last.due_at if trouble == "late" and last.due_at is not None else last.schedule_id
        return Found(shown, (f"{trouble}~{_text_of(at)}", last.uid), is_cut=False)
    if place is None:
        return Found(shown, None, is_cut=False)
    at, uid = after or ("", "")
    return Found(shown, (f"{troubles[place]}~{_text_of(at)}", uid), is_cut=True)


def _worst_position(text: str) -> tuple[str, Position | None]:
    """Read the problem at which a page in the order WORST begins, and its position there; raises InvalidInputError."""
    uid, _, place = text.partition("~")
    trouble, _, value = place.partition("~")
    if text and trouble not in _TROUBLES:
        raise InvalidInputError("after", "is malformed; go back to the first page")
    if not text:
        return next(iter(_TROUBLES)), None
    return trouble, _position(_TROUBLES[trouble], f"{uid}~{value}") if uid else None


def _with_trouble(visit: Visit, filters: Filters, trouble: str) -> Filters | None:
    """Return the filters for the schedules that also have a problem; None if there cannot be any."""
    status = {"late": ScheduleStatus.ACTIVE.value, "dead": ScheduleStatus.DEAD.value}.get(trouble)
    if (trouble == "late" and not visit.may_start) or (status and filters.statuses and status not in filters.statuses):
        return None
    if trouble == "late":
        until = min(filter(None, (filters.next_until, _late_until(visit))))
        return replace(filters, statuses=(ScheduleStatus.ACTIVE.value,), next_until=until)
    if trouble == "dead":
        return replace(filters, statuses=(ScheduleStatus.DEAD.value,))
    return replace(
        filters, failing=filters.failing or trouble == "failing", overdue=trouble == "overdue" or filters.overdue
    )


def _trouble_of(visit: Visit, schedule: Schedule) -> str:
    """Return the gravest problem of a schedule, one of _TROUBLES."""
    if schedule.is_active and visit.may_start and schedule.due_at is not None and schedule.due_at < _late_until(visit):
        return "late"
    if schedule.status is ScheduleStatus.DEAD:
        return "dead"
    if schedule.is_active and schedule.consecutive_failures >= REPEATEDLY:
        return "failing"
    return "overdue" if schedule.overdue_since is not None else ""


def _late_until(visit: Visit) -> datetime:
    """Return the exclusive bound of due times that are late."""
    return health.late_until(visit.scheduler.runtime) + timedelta(microseconds=1)


def _text_of(at: datetime | str) -> str:
    return at if isinstance(at, str) else at.isoformat()


def _grouped(
    schedules: Sequence[Schedule], labels: Mapping[str, Mapping[str, str]], name: str
) -> list[tuple[str, list[Schedule]]]:
    """Return the schedules by their values of a label. Schedules without the label come last, under an empty value."""
    groups = defaultdict[str, list[Schedule]](list)
    for one in schedules:
        groups[labels[one.uid].get(name, "")].append(one)
    return sorted(groups.items(), key=lambda group: (not group[0], group[0]))


def around(visit: Visit, page: Found) -> dict[str, Any]:
    """Return the values that a template needs besides the schedules: the start of the next page, and the filters."""
    following = None
    if page.following is not None:
        at, uid = page.following
        following = bind_cursor(f"{uid}~{_text_of(at)}", visit.namespace, visit.query("sort", "id"))
    return {
        "following": following,
        "is_cut": page.is_cut,
        "looked_at": MOST_LOOKED_AT,
        "filtered_by": filters_in_words(visit.request.query_params, FILTERS),
    }


def kept_of(visit: Visit) -> dict[str, str]:
    """Return the filters, the order and the position of the list. An operation on several schedules returns to them.

    They come from the form, or from the page's address. Absent values are left out.
    """
    names = (*FILTERS, "sort", "group", "after")
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
    return Filters(
        namespace=visit.namespace,
        statuses=(status,) if status else (ScheduleStatus.ACTIVE.value,) if problem == "late" else (),
        outcomes=(outcome,) if outcome else (),
        workflow=fields.get("workflow") or None,
        labels={name: value} if label else {},
        text=fields.get("q") or None,
        overdue=True if problem == "overdue" else None,
        failing=problem == "failing",
        next_until=_late_until(visit) if problem == "late" else None,
    )


def _position(sort: str, text: str) -> Position | None:
    """Read the position of a page in one of SORTS; raises InvalidInputError."""
    if not text:
        return None
    uid, _, value = text.partition("~")
    try:
        if not is_uid(uid):
            raise malformed_cursor()
        return value if sort == "id" else read_instant(value), uid
    except InvalidLimitError:
        raise InvalidInputError("after", "is malformed; go back to the first page") from None
