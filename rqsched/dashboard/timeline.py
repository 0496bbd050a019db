"""The timeline: what ran in the past hours and what fires in the next, all schedules on one picture."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.api.build_description import iter_upcoming
from rqsched.core.model import Schedule
from rqsched.dashboard import charts
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.store import listing, overview
from rqsched.store.overview import RunOutline

HOURS = (1, 3, 6, 12, 24, 48, 168)
"""The spans one can choose."""
_MOST_RUNS = 2_000
_MOST_ROWS = 60
_MOST_TICKS = 60
_LEAST_WIDTH = 3.0


@dataclass
class Row:
    """One schedule on the picture."""

    schedule_id: str
    """Whose line it is."""
    bars: list[charts.Bar] = field(default_factory=list)
    """Its runs."""
    upcoming: list[tuple[float, datetime]] = field(default_factory=list)
    """Where it fires next."""
    skips: list[tuple[float, str]] = field(default_factory=list)
    """Where it did not fire, and why."""


def show(visit: Visit) -> Response:
    """Show the timeline around an instant."""
    hours = _hours(visit.query("hours", "6"))
    middle = _instant(visit.query("at")) or visit.now
    axis = charts.Axis(middle - timedelta(hours=hours) * 0.6, middle + timedelta(hours=hours) * 0.4)
    rows = _rows(visit, axis)
    step = timedelta(hours=hours) / 2
    return visit.page(
        "timeline.html", rows=rows, hours=hours, spans=HOURS, axis=axis, ticks=list(axis.ticks(visit.zone)),
        changes=_changes(visit, axis), now_x=axis.x(visit.now) if axis.start <= visit.now <= axis.end else None,
        earlier=middle - step, later=middle + step, is_moved=bool(visit.query("at")), width=charts.WIDTH,
    )  # fmt: skip


def _rows(visit: Visit, axis: charts.Axis) -> list[Row]:
    until = min(axis.end, visit.now + timedelta(seconds=1))
    found = (
        visit.read(lambda c: overview.runs_between(c, visit.namespace, axis.start, until, _MOST_RUNS))
        if until > axis.start
        else []
    )
    rows: dict[str, Row] = {}
    for schedule_id, run in reversed(found):
        bar = _bar(axis, run, visit.now)
        rows.setdefault(schedule_id, Row(schedule_id)).bars.append(bar)
    for schedule in visit.read(lambda c: listing.soonest(c, visit.namespace, _MOST_ROWS)):
        ticks = _upcoming(schedule, axis, visit.now)
        if ticks:
            rows.setdefault(schedule.schedule_id, Row(schedule.schedule_id)).upcoming += ticks
    skipped: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for schedule_id, at, reason in visit.read(
        lambda c: overview.skips_between(c, visit.namespace, axis.start, axis.end, _MOST_RUNS)
    ):
        skipped[schedule_id].append((axis.x(at), reason))
    for schedule_id, marks in skipped.items():
        rows.setdefault(schedule_id, Row(schedule_id)).skips += marks
    return sorted(rows.values(), key=lambda row: row.schedule_id)[:_MOST_ROWS]


def _bar(axis: charts.Axis, run: RunOutline, now: datetime) -> charts.Bar:
    begin = run.started_at or run.due_at or run.occurrence_at
    end = run.ended_at or now
    x, label = axis.x(begin), f"#{run.number} {run.status}, {begin:%H:%M:%S} UTC"
    return charts.Bar(x, max(axis.x(end) - x, _LEAST_WIDTH), 1.0, charts.tone_of(run.status), label, run.uid)


def _upcoming(schedule: Schedule, axis: charts.Axis, now: datetime) -> list[tuple[float, datetime]]:
    ahead = takewhile(lambda at: at <= axis.end, iter_upcoming(schedule, now))
    return [(axis.x(at), at) for at in islice(ahead, _MOST_TICKS) if at >= axis.start]


def _changes(visit: Visit, axis: charts.Axis) -> list[tuple[float, str]]:
    zones = {
        schedule.spec.timezone for schedule in visit.read(lambda c: listing.soonest(c, visit.namespace, _MOST_ROWS))
    }
    marks = {mark for name in zones | {visit.zone.key} for mark in axis.offset_changes(ZoneInfo(name))}
    return sorted(marks)


def _hours(text: str) -> int:
    if text not in {str(hours) for hours in HOURS}:
        raise InvalidInputError("hours", f"{text!r} is not offered; choose one of {', '.join(map(str, HOURS))}")
    return int(text)


def _instant(text: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInputError("at", f"{text[:64]!r} is not an instant; write one such as 2026-01-01T00:00Z") from None
