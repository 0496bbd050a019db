"""The audit page: what people, or programs in their name, have requested for all schedules. The newest comes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from starlette.responses import Response

from rqsched.api import events as event_queries
from rqsched.api.database import Altered, find_altered
from rqsched.api.events import MOST_LOOKED_AT, AskedFilters, FoundEvent, read_position
from rqsched.api.states import ASKED
from rqsched.dashboard.rendering import filters_in_words
from rqsched.dashboard.runs import TIMES, WITHIN, times_of
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError

PAGE = 50
"""Lines on one page."""
EVENTS = 500
"""The maximum number of events that one page reads. If a request was repeated, its events become one line."""

AT_LARGE = 20
"""How many freezes and changes of limits and calendars are shown above the lines."""
_FILTERS = {"who": "who", "action": "action", "schedule": "schedule", **TIMES}
"""The fields by which the page is filtered, with their words in titles."""
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Asked(NamedTuple):
    """A request of one person for one schedule, with one reason. It may have been made several times in a row."""

    newest: FoundEvent
    """The event of the newest request."""
    times: int
    """How many times the request was made."""
    oldest: FoundEvent
    """The event of the oldest request."""


def show(visit: Visit) -> Response:
    """Show a page of requests."""
    filters, after = _filters_of(visit), visit.query("after")
    before = read_position("after", after) if after else None
    for events in (2 * PAGE, EVENTS):  # usually each event is one line
        found = visit.read(partial(event_queries.search_asked, filters=filters, before=before, limit=events))
        lines, following, is_cut = _lines(found.items), found.following, found.is_cut
        if len(lines) > PAGE or following is None or is_cut:
            break
    if len(lines) > PAGE:
        lines, is_cut = lines[:PAGE], False
        following = lines[-1].oldest.position
    given = {**visit.request.query_params, "action": ASKED.get(visit.query("action"), "")}
    return visit.page(
        "audit.html", lines=lines, following=following, is_cut=is_cut, actions=ASKED, filters=filters,
        spans=list(WITHIN), looked_at=MOST_LOOKED_AT,
        filtered_by=filters_in_words(given, _FILTERS),
        at_large=[] if after else _at_large(visit, filters),
    )  # fmt: skip


def _at_large(visit: Visit, filters: AskedFilters) -> Sequence[Altered]:
    """Return the newest freezes, and changes of limits and calendars that match the filters."""
    if filters.event_type or filters.schedule_id:
        return []
    told = visit.read(lambda connection: find_altered(connection, None, visit.namespace))
    for one in (*visit.scheduler.freezes(everything=True), *visit.scheduler.freezes(namespace=visit.namespace)):
        what = "the namespace" if one.namespace else "everything"
        if one.thawed_at is not None:
            told.append(Altered(one.thawed_at, f"{what} thawed", one.thawed_by, None, one.thaw_reason))
        told += [] if one.since is None else [Altered(one.since, f"{what} frozen", one.by, None, one.reason)]
    since, until, who = filters.since or _FIRST, filters.until or _LAST, (filters.principal or "").lower()
    meant = (one for one in told if since <= one.at < until and who in (one.by or "").lower())
    return sorted(meant, key=attrgetter("at"), reverse=True)[:AT_LARGE]


def _lines(events: Iterable[FoundEvent]) -> Sequence[Asked]:
    alike = [[*group] for _, group in groupby(events, key=_said)]
    return [Asked(group[0], len(group), group[-1]) for group in alike]


def _said(event: FoundEvent) -> tuple[object, ...]:
    context = event.record.payload.get("command_context") or {}
    said = (context.get(name) for name in ("principal", "source", "reason"))
    return event.record.schedule_uid, event.record.event_type, *said


def _filters_of(visit: Visit) -> AskedFilters:
    """Read the filters from the page's address; raises InvalidInputError."""
    action = visit.query("action")
    if action and action not in ASKED:
        raise InvalidInputError("action", f"{action!r} is not offered; choose one of {', '.join(ASKED)}")
    return AskedFilters(
        visit.namespace, visit.query("who") or None, action or None, visit.query("schedule") or None, *times_of(visit)
    )
