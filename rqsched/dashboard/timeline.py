"""The timeline: what ran in the past hours and what fires in the next, a page of schedules on one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.api.build_description import iter_upcoming
from rqsched.core.model import Schedule, tone_of
from rqsched.dashboard import charts
from rqsched.dashboard.rendering import gap_of
from rqsched.dashboard.schedules import around, read_page
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.spec.words import zone_in_words
from rqsched.store import event_queries, run_queries
from rqsched.store.database import Connection
from rqsched.store.run_queries import RunOutline
from rqsched.store.schedule_queries import Found

HOURS = (1, 3, 6, 12, 24, 48, 168, 336)
"""The spans one can choose; half of each lies before the instant one looks at."""
ROWS = 40
"""Schedules on one page."""
_MOST_RUNS = 200
"""Runs of one schedule that are read: as many as can be told apart."""
_MOST_MARKS = 480
"""Bars of all schedules together; more are drawn as fewer that each stand for several runs."""
_MOST_TICKS = 24
"""Fires of one schedule that are drawn one by one; more are drawn as a band."""
_MOST_SKIPS = 200
_LEAST_WIDTH = 3.0
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
"""What one can look at: around it there are instants that every zone has."""


@dataclass
class Row:
    """One schedule on the picture."""

    schedule: Schedule
    """Whose line it is."""
    bars: list[charts.Bar] = field(default_factory=list)
    """Its live runs, and those of triggers."""
    backfilled: list[charts.Bar] = field(default_factory=list)
    """The runs of backfills, each at its occurrence."""
    upcoming: list[tuple[float, datetime]] = field(default_factory=list)
    """Where it fires next."""
    band: tuple[float, float] | None = None
    """From where to where it fires too often to draw; None when it does not."""
    skips: list[tuple[float, str]] = field(default_factory=list)
    """Where it did not fire, and why."""


def show(visit: Visit) -> Response:
    """Show the timeline around an instant."""
    hours = _hours(visit.query("hours", "48"))
    middle = _instant(visit.query("at")) or visit.now
    step = timedelta(hours=hours) / 2
    axis = charts.Axis(middle - step, middle + step)
    rows, page = visit.read(lambda connection: _rows(connection, visit, axis))
    return visit.page(
        "timeline.html", rows=rows, hours=hours, spans=HOURS, axis=axis, ticks=list(axis.ticks(visit.zone)),
        changes=_changes(visit, axis, rows), now_x=axis.x(visit.now) if axis.start <= visit.now <= axis.end else None,
        earlier=middle - step, later=middle + step, **around(visit, page),
    )  # fmt: skip


def _rows(connection: Connection, visit: Visit, axis: charts.Axis) -> tuple[list[Row], Found]:
    page = read_page(visit, connection, "id", ROWS)
    rows = {schedule.uid: Row(schedule) for schedule in page.items}
    if axis.start < visit.now:
        _draw_past(connection, visit, axis, rows)
    for row in rows.values():
        _draw_upcoming(row, axis, visit.now)
    return [*rows.values()], page


def _draw_past(connection: Connection, visit: Visit, axis: charts.Axis, rows: Mapping[str, Row]) -> None:
    until = axis.end if axis.end < visit.now else None
    outlines = run_queries.runs_within(connection, [*rows], axis.start, until, _MOST_RUNS)
    bars = {uid: [_bar(axis, run, visit.now) for run in found] for uid, found in outlines.items()}
    for uid, merged in _merged(bars).items():
        rows[uid].bars = merged
    edge = min(axis.end, visit.now)
    for uid, found in run_queries.backfilled_within(connection, [*rows], axis.start, edge, _MOST_RUNS).items():
        rows[uid].backfilled = charts.merge([_mark(axis, run) for run in found], 1.0)
    for event in event_queries.skips_since(connection, [*rows], axis.start, _MOST_SKIPS):
        gap = gap_of(event)
        if gap is None:
            continue
        marks = [axis.x(at) for at in {gap.first, gap.last} if axis.start <= at < axis.end]
        rows[event.schedule_uid].skips += [(x, gap.label(visit.zone)) for x in marks]


def _bar(axis: charts.Axis, run: RunOutline, now: datetime) -> charts.Bar:
    begin = run.started_at or run.due_at or run.occurrence_at  # one that has not started is drawn where it was due
    x, label = axis.x(begin), f"#{run.number} {run.status}, {begin:%H:%M:%S} UTC"
    width = max(axis.x(run.ended_at or now) - x, _LEAST_WIDTH)
    return charts.Bar(x, width, 1.0, tone_of(run.status), label, run.uid)


def _mark(axis: charts.Axis, run: RunOutline) -> charts.Bar:
    label = f"#{run.number} {run.status}, backfilled for {run.occurrence_at:%d %b %H:%M:%S} UTC"
    return charts.Bar(axis.x(run.occurrence_at), _LEAST_WIDTH, 1.0, tone_of(run.status), label, run.uid)


def _merged(bars: Mapping[str, Sequence[charts.Bar]]) -> dict[str, list[charts.Bar]]:
    """Return so few bars that they can be told apart and a page stays small."""
    gap = 0.0
    while True:
        found = {uid: charts.merge(of_one, gap) for uid, of_one in bars.items()}
        if sum(map(len, found.values())) <= _MOST_MARKS:
            return found
        gap = max(2 * gap, 1.0)


def _draw_upcoming(row: Row, axis: charts.Axis, now: datetime) -> None:
    ahead = takewhile(lambda at: at <= axis.end, iter_upcoming(row.schedule, now))
    found = list(islice(ahead, _MOST_TICKS + 1))
    if len(found) <= _MOST_TICKS:
        row.upcoming = [(axis.x(at), at) for at in found if at >= axis.start]
    else:
        row.band = axis.x(max(found[0], axis.start)), axis.x(axis.end)


def _changes(visit: Visit, axis: charts.Axis, rows: Sequence[Row]) -> list[charts.OffsetChange]:
    """Return where clocks change; zones that do at one instant and alike are one mark."""
    zones = {row.schedule.spec.timezone for row in rows} | {visit.zone.key}
    found = defaultdict[tuple[float, str], list[str]](list)
    for name in sorted(zones):
        for x, how in axis.offset_changes(ZoneInfo(name)):
            found[x, how].append(zone_in_words(name))
    return [charts.OffsetChange(x, how, names) for (x, how), names in sorted(found.items())]


def _hours(text: str) -> int:
    if text not in {str(hours) for hours in HOURS}:
        raise InvalidInputError("hours", f"{text!r} is not offered; choose one of {', '.join(map(str, HOURS))}")
    return int(text)


def _instant(text: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
        found = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        found = None
    if found is None or not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise InvalidInputError("at", f"{text[:64]!r} is not an instant; write one such as 2026-01-01T00:00Z")
    return found
