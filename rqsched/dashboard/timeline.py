"""The timeline: the runs of the past hours and the fires of the next hours, for a page of schedules.

Above the timeline stands a chart of the load: the coming fires of all schedules that match the filters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from math import ceil, floor
from typing import NamedTuple
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.api import events as event_queries
from rqsched.api.build_description import iter_upcoming
from rqsched.api.database import Connection, find_freezes
from rqsched.api.hours import Columns, Lot, read_columns
from rqsched.api.load import MOST_HOURS, Window, read_load
from rqsched.api.schedules import Found
from rqsched.api.states import NOTHING_FIRED
from rqsched.api.values import number_of
from rqsched.dashboard import charts
from rqsched.dashboard.rendering import gap_of, under_freezes
from rqsched.dashboard.schedules import around, filters_of, kept_of, read_page
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.types import Freeze, Peak, Schedule
from rqsched.when.words import zone_in_words

HOURS = (1, 3, 6, 12, 24, 48, 168, 336, 720, 2160, 8784)
"""The spans that a viewer may choose, in hours."""
_FROM_RUNS = 48
"""The longest span for which single runs are read. For longer spans, the hourly counts of runs are read."""
_HALVED = 336
"""The longest span that has the chosen instant in its middle. Longer spans end shortly after this instant."""
_UNITS = ((_FROM_RUNS, 1, 240), (720, 3_600, 120), (HOURS[-1], 86_400, 120))
"""Per row: the longest span in hours, the unit of a column's width in seconds, and the most columns. Spans with hourly
counts have fewer columns. Spans longer than a month have columns of days."""
ROWS = 40
"""How many schedules one page shows."""
_MOST_MARKS = 900
"""The maximum number of marks of all schedules together. If there would be more, columns become wider."""
_MOST_TICKS = 24
"""The maximum number of fires of one schedule that are drawn as single marks. More fires are drawn as a band."""
_MOST_SKIPS = 200
_MINUTE = timedelta(minutes=1)
_AMONG = 100
"""If a schedule does not fire, how many of its newest events are searched for the event that stopped it."""
_MOST_BARS = 240
"""The maximum number of bars of the chart of the load."""
_MOST_COUNTED, _MOST_WALKED = 1_000, 100_000
"""The maximum numbers of schedules and of minutes for which a page counts the load. They are fewer than for the
command, because a viewer waits."""
_NAMED_PEAKS = 3
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
"""The first and the last year that can be shown. Between them, instants can be converted to every zone."""


@dataclass
class Row:
    """One schedule in the timeline."""

    schedule: Schedule
    """The schedule of this row."""
    ran: list[charts.Stack] = field(default_factory=list)
    """Its live runs: all except the runs of backfills."""
    backfilled: list[charts.Stack] = field(default_factory=list)
    """The runs of backfills, each at its occurrence."""
    told: str = "nothing ran"
    """The runs, in words."""
    rest: float | None = None
    """The position from which on it does not fire, because of its status or a freeze; None if it fires."""
    resting: str = ""
    """Why it does not fire from this position on."""
    rests_until: float = 1000
    """The position up to which it does not fire."""
    upcoming: list[tuple[float, datetime]] = field(default_factory=list)
    """The positions and instants of its next fires."""
    band: tuple[float, float] | None = None
    """The positions between which its fires are drawn as a band, because they are too many; None without a band."""
    skips: list[tuple[float, str]] = field(default_factory=list)
    """The positions of skipped and missed occurrences, with their reasons."""
    outages: list[tuple[float, float, str]] = field(default_factory=list)
    """The times in which due occurrences were missed: position, width, and the missed occurrences with the reason."""


class Ahead(NamedTuple):
    """The load of the coming minutes, as a chart."""

    bars: list[charts.Bar]
    """The bars. Each shows the number of fires in `minutes` minutes."""
    fires: int
    """The number of all fires."""
    most: int
    """The number of fires of the highest bar."""
    minutes: int
    """How many minutes a bar covers."""
    peaks: list[Peak]
    """The minutes with the most fires."""
    assumed: list[str]
    """The assumptions behind the figures."""


def show(visit: Visit) -> Response:
    """Show the timeline around an instant."""
    hours = _hours(visit.query("hours", "48"))
    middle = _instant(visit.query("at")) or visit.now
    span = timedelta(hours=hours)
    behind = span / 2 if hours <= _HALVED else span * 11 / 12
    axis = charts.Axis(middle - behind, middle - behind + span)
    freezes = visit.read(lambda connection: find_freezes(connection, None, visit.namespace))
    rows, page, is_whole = visit.read(lambda connection: _rows(connection, visit, axis, freezes))
    return visit.page(
        "timeline.html", rows=rows, hours=hours, spans=HOURS, axis=axis, ticks=list(axis.ticks(visit.zone)),
        changes=_changes(visit, axis, rows), now_x=axis.x(visit.now) if axis.start <= visit.now <= axis.end else None,
        earlier=middle - span / 2, later=middle + span / 2, by_hours=hours > _FROM_RUNS, is_whole=is_whole,
        stacks_of=charts.stacks_of, freezes=_bands(visit, axis, freezes), ahead=_ahead(visit, axis) if rows else None,
        **around(visit, page),
    )  # fmt: skip


def _bands(visit: Visit, axis: charts.Axis, freezes: Sequence[Freeze]) -> list[tuple[float, float, str]]:
    """Return position, width and text of each freeze within the axis."""
    bands = []
    for one in freezes:
        until = one.thawed_at or visit.now
        if one.since is not None and one.since < axis.end and until > axis.start:
            x = axis.x(one.since)
            told = one.told(lambda at: f"{at.astimezone(visit.zone):%a %d %b %H:%M}")
            bands.append((x, max(axis.x(until) - x, 1), told + (f" ({one.reason})" if one.reason else "")))
    return bands


def _rows(
    connection: Connection, visit: Visit, axis: charts.Axis, freezes: Sequence[Freeze]
) -> tuple[list[Row], Found, bool]:
    page = read_page(visit, connection, "id", ROWS)
    rows = {schedule.uid: Row(schedule) for schedule in page.items}
    _draw_rest(connection, visit, axis, rows)
    is_whole = axis.start >= visit.now or _draw_past(connection, visit, axis, rows, freezes)
    for row in rows.values() if visit.stop is None else ():
        _draw_upcoming(row, axis, visit.now)
    return [*rows.values()], page, is_whole


def _draw_rest(connection: Connection, visit: Visit, axis: charts.Axis, rows: Mapping[str, Row]) -> None:
    """Mark where schedules do not fire: from their last change of status on. If this is unknown, mark the whole row.

    If nothing fires in the namespace, mark its active schedules as well.
    """
    if visit.stop is not None and (stopped_at := visit.stopped_at or visit.now) < axis.end:
        for row in rows.values():
            row.rest, row.resting = axis.x(stopped_at), visit.stop
    resting = [row.schedule for row in rows.values() if not row.schedule.is_active]
    stops = event_queries.newest_stops(connection, resting, _AMONG)
    for uid in (schedule.uid for schedule in resting):
        since = stops[uid].recorded_at if uid in stops else axis.start
        end = rows[uid].schedule.resume_at or axis.end
        if since < axis.end and end > axis.start:
            row = rows[uid]
            row.rest, row.resting = axis.x(since), row.schedule.status.value
            row.rests_until = axis.x(axis.end if visit.stop is not None else min(end, axis.end))


def _draw_past(
    connection: Connection, visit: Visit, axis: charts.Axis, rows: Mapping[str, Row], freezes: Sequence[Freeze]
) -> bool:
    """Draw runs, skips and misses. Return whether all of them are drawn."""
    columns = _columns(axis)
    newest = {uid: row.schedule.run_number for uid, row in rows.items()}
    by_hours = axis.span > timedelta(hours=_FROM_RUNS)
    lots = defaultdict[tuple[str, bool], list[Lot]](list)
    picture = read_columns(connection, newest, columns, visit.now, by_hours=by_hours)
    for lot in picture.lots:
        lots[lot.schedule_uid, bool(lot.is_backfilled)].append(lot)
    grid = charts.Grid(axis, columns.start, columns.step, visit.zone)
    width = charts.width_for(lots.values(), _MOST_MARKS)
    for (uid, is_backfilled), found in lots.items():
        setattr(rows[uid], "backfilled" if is_backfilled else "ran", grid.stacks(found, width))
    for uid, row in rows.items():
        live, backfilled = (charts.in_words(lots.get((uid, kind), ())) for kind in (False, True))
        row.told = "; ".join(filter(None, (live, backfilled and f"backfilled: {backfilled}"))) or row.told
    shown = [row.schedule for row in rows.values()]
    for event in event_queries.skips_since(connection, shown, axis.start, _MOST_SKIPS):
        gap = gap_of(event)
        if gap is None:
            continue
        gap = under_freezes(gap, freezes, visit.zone)
        row, label = rows[event.schedule_uid], gap.label(visit.zone)
        if gap.is_missed and NOTHING_FIRED in gap.why and gap.first < axis.end and gap.recorded_at > axis.start:
            x = axis.x(gap.first)
            row.outages.append((x, max(axis.x(gap.recorded_at) - x, 1), label))
        marks = [axis.x(at) for at in {gap.first, gap.last} if axis.start <= at < axis.end]
        row.skips += [(x, label) for x in marks]
    return picture.is_whole


def _columns(axis: charts.Axis) -> Columns:
    """Return columns that begin at multiples of their width, so that their limits do not move as time passes."""
    unit, most = next(one[1:] for one in _UNITS if axis.span <= timedelta(hours=one[0]))
    step = ceil(axis.span.total_seconds() / most / unit) * unit
    start = floor(axis.start.timestamp() / step) * step
    return Columns(start, step, ceil((axis.end.timestamp() - start) / step))


def _draw_upcoming(row: Row, axis: charts.Axis, now: datetime) -> None:
    ahead = takewhile(lambda at: at <= axis.end, iter_upcoming(row.schedule, now))
    found = list(islice(ahead, _MOST_TICKS + 1))
    if len(found) <= _MOST_TICKS:
        row.upcoming = [(axis.x(at), at) for at in found if at >= axis.start]
    else:
        row.band = axis.x(max(found[0], axis.start)), axis.x(axis.end)


def _ahead(visit: Visit, axis: charts.Axis) -> Ahead | None:
    """Count the fires up to the end of the axis, from now or from the axis's later start. None if nothing will fire."""
    if visit.stop is not None:
        return None
    start = max(visit.now, axis.start).replace(second=0, microsecond=0)
    minutes = min(ceil((axis.end - start) / _MINUTE), 60 * MOST_HOURS)
    if minutes <= 0:
        return None
    filters, window = filters_of(visit, kept_of(visit)), Window(start, minutes)
    load = read_load(
        visit.scheduler.runtime, filters, window, most_schedules=_MOST_COUNTED, most_walked=_MOST_WALKED
    )  # fmt: skip
    step = ceil(minutes / _MOST_BARS)
    fires = [sum(load.minutes[place : place + step]) for place in range(0, minutes, step)]
    most = max(fires)
    if not most:
        return None
    bars = []
    for place, number in enumerate(fires):
        begin = start + place * step * _MINUTE
        x, label = axis.x(begin), f"{number_of(number, 'fire')}, {begin.astimezone(visit.zone):%a %d %b %H:%M}"
        if number:
            bars.append(charts.Bar(x, max(axis.x(begin + step * _MINUTE) - x, 1), number / most, "", label))
    return Ahead(bars, load.fires, most, step, load.peaks[:_NAMED_PEAKS], load.assumed[1:])


def _changes(visit: Visit, axis: charts.Axis, rows: Sequence[Row]) -> list[charts.OffsetChange]:
    """Return the clock changes. If several zones have the same change at one instant, they share a mark."""
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
