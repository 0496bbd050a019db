"""One schedule: all that is known, what it did, why it did not, and what can be done."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.api.build_description import iter_upcoming
from rqsched.core.audit import AuditRecord
from rqsched.core.model import Run, Schedule
from rqsched.core.page import Page
from rqsched.dashboard import charts
from rqsched.dashboard.actions import offered
from rqsched.dashboard.gaps import Gap, gap_of
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.store import backfills, event_queries, run_queries
from rqsched.store.backfills import Backfill
from rqsched.store.database import Connection
from rqsched.workflows import Step

RUNS = 20
"""Runs on the page."""
EVENTS = 20
"""Audit events on the page."""
_CHARTED = 60
_IN_YEAR = 5_000
_UPCOMING = 5
_SEARCHED = 2_000
_REASONS = 6
_BACKFILLS = 3


class State(NamedTuple):
    """A state and where its box lies."""

    name: str
    """Its name."""
    x: int
    """Its left edge."""
    y: int
    """Its upper edge."""
    steps: tuple[tuple[str, str], ...]
    """What leads away from it, and where to."""


class Arrow(NamedTuple):
    """What leads from one state to another."""

    line: str
    """The path of its line, to its head."""
    label: str
    """What it says; empty where another one says it."""
    x: int
    """Where its label begins."""
    y: int
    """The base line of its label."""


BOX = (76, 26)
"""The width and height of a state's box."""
_DELETE = ("delete", "deleted")
_ENDS = (("nothing more to start", "done"), ("a run failed for good", "dead"), _DELETE)
STATES = (
    State("active", 14, 12, (("pause", "paused"), *_ENDS)),
    State("paused", 14, 80, (("resume", "active"), *_ENDS)),
    State("done", 222, 12, (("restart", "active"), _DELETE)),
    State("dead", 222, 80, (("restart", "active"), _DELETE)),
    State("deleted", 112, 150, ()),
)
"""Every state; those of the frame on the left fire, or will."""
ARROWS = (
    Arrow("M28 38V77", "pause", 33, 62),
    Arrow("M68 80V41", "resume", 73, 62),
    Arrow("M120 19H219", "no more runs", 140, 14),
    Arrow("M222 31H93", "restart", 158, 44),
    Arrow("M222 86L93 36", "", 0, 0),
    Arrow("M120 99H219", "failed for good", 134, 112),
    Arrow("M2 126H298M150 126V147", "delete", 156, 141),
)
"""What leads from a state, or from all of a frame, to another."""


def show(visit: Visit) -> Response:
    """Show one schedule."""
    handle = visit.schedule()
    schedule, now = handle.state, visit.now
    upcoming = list(islice(iter_upcoming(schedule, now), _UPCOMING))
    runs = visit.read(lambda c: _runs(c, visit, schedule))
    events = visit.read(lambda c: _events(c, visit, schedule))
    outlines = visit.read(lambda c: run_queries.newest_runs(c, [schedule.uid], _CHARTED))[schedule.uid]
    outcomes = visit.read(lambda c: run_queries.outcomes(c, schedule.uid, _IN_YEAR))
    zone = visit.zone
    return visit.page(
        "schedule.html", schedule=schedule, about=handle.describe(), upcoming=upcoming,
        run_status=visit.query("run_status"), states=STATES, arrows=ARROWS, box=BOX,
        steps=next(state.steps for state in STATES if state.name == schedule.status.value),
        ui_zone=ZoneInfo(schedule.spec.timezone),
        machine=_machine(visit, schedule), actions=offered(visit, schedule.status.value), runs=runs,
        events=events[:EVENTS],
        older_events=events[EVENTS - 1].sequence if len(events) > EVENTS else None,
        why=visit.read(lambda c: _gaps(c, schedule)), backfills=visit.read(lambda c: _newest_backfills(c, schedule)),
        chart=charts.durations(outlines, _interval(upcoming)),
        days=charts.year(outcomes, now.astimezone(zone).date(), zone),
    )  # fmt: skip


def _runs(connection: Connection, visit: Visit, schedule: Schedule) -> Page[Run]:
    status, cursor = visit.query("run_status"), visit.query("cursor") or None
    return run_queries.list_runs(
        connection, schedule.uid, limit=RUNS, cursor=cursor, statuses=(status,) if status else ()
    )


def _events(connection: Connection, visit: Visit, schedule: Schedule) -> list[AuditRecord]:
    """Read one event more than is shown, to know whether older ones follow."""
    return event_queries.newest_events(connection, schedule.uid, _sequence(visit.query("before")), EVENTS + 1)


def _gaps(connection: Connection, schedule: Schedule) -> list[Gap]:
    """Return the newest skips and misses, also those before a restart, which counts from zero."""
    newest = event_queries.newest_skips(connection, schedule.uid, _SEARCHED, _REASONS)
    return [gap for event in newest if (gap := gap_of(event)) is not None]


def _newest_backfills(connection: Connection, schedule: Schedule) -> list[Backfill]:
    """Read the newest backfills of a schedule's id."""
    id_ = schedule.schedule_id
    page = backfills.page(connection, schedule.namespace, schedule_id=id_, status=None, limit=_BACKFILLS, cursor=None)
    return page.items


def _machine(visit: Visit, schedule: Schedule) -> tuple[Step, ...]:
    """Return what the events of a state machine do, when the schedule sends one and this process knows its class."""
    workflow = visit.scheduler.runtime.find_workflow(schedule.definition.workflow)
    return () if workflow is None else workflow.steps


def _interval(upcoming: list[datetime]) -> timedelta | None:
    steps = [later - earlier for earlier, later in pairwise(upcoming)]
    return min(steps) if steps else None


def _sequence(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidInputError("before", "is malformed; go back to the newest events")
    return int(text)
