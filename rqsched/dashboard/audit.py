"""What people, and programs in their name, asked of schedules and runs: across schedules, newest first, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from starlette.responses import Response

from rqsched.api import bulk_actions
from rqsched.core.hold import Hold
from rqsched.core.reasons import ASKED
from rqsched.dashboard.actions import ACTIONS
from rqsched.dashboard.runs import WITHIN, times_of
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.store import event_queries
from rqsched.store.event_queries import MOST_LOOKED_AT, AskedFilters, FoundEvent, read_position

PAGE = 50
"""Lines on one page."""
EVENTS = 500
"""Events of which they are made: what one operation did to many runs is one line."""

HOLDS = 10
"""Holds of the whole installation that stand above them."""
STOPS = 10
"""Actions on many schedules that somebody stopped, which stand there, too."""


class Asked(NamedTuple):
    """What one person asked of one schedule, once or several times in a row, for one reason."""

    newest: FoundEvent
    """The newest of these events."""
    times: int
    """How many there are."""
    oldest: FoundEvent
    """The oldest."""


def show(visit: Visit) -> Response:
    """Show a page of what was asked."""
    filters, after = _filters_of(visit), visit.query("after")
    before = read_position("after", after) if after else None
    for events in (2 * PAGE, EVENTS):  # mostly an event is a line of its own
        found = visit.read(partial(event_queries.search_asked, filters=filters, before=before, limit=events))
        lines, following, is_cut = _lines(found.items), found.following, found.is_cut
        if len(lines) > PAGE or following is None or is_cut:
            break
    if len(lines) > PAGE:
        lines, is_cut = lines[:PAGE], False
        following = lines[-1].oldest.position
    names = ("who", "action", "schedule", "within", "since", "until")
    is_filtered = any(visit.query(name) for name in names)
    stops = [] if is_filtered or after else visit.read(lambda c: bulk_actions.stops(c, visit.namespace))[:STOPS]
    return visit.page(
        "audit.html", lines=lines, following=following, is_cut=is_cut, actions=ASKED, named=ACTIONS, filters=filters,
        spans=list(WITHIN), looked_at=MOST_LOOKED_AT, is_filtered=is_filtered,
        stops=stops, holds=[] if is_filtered or after else _holds(visit),
    )  # fmt: skip


def _holds(visit: Visit) -> Sequence[Hold]:
    """Return the newest holds of everything and freezes of the namespace."""
    found = [*visit.scheduler.holds(), *visit.scheduler.freezes(namespace=visit.namespace)]
    known = [one for one in found if one.since is not None]
    return sorted(known, key=attrgetter("since"), reverse=True)[:HOLDS]


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
