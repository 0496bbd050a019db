"""Compute the charts as plain numbers, which templates put into SVG. This module reads no database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count as counter
from math import ceil
from typing import NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from rqsched.api.hours import A_DAY, HourKey, Lot, Tally, instant_of_hour, quantile
from rqsched.api.runs import RunOutline
from rqsched.api.states import tone_of
from rqsched.api.values import iso_utc, number_of
from rqsched.dashboard.rendering import duration

WIDTH = 1000
"""The width of a chart in its own units."""
_WORST = ("bad", "warn", "info", "ok", "idle")
_DAY = 86_400
_STEPS = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, *(_DAY * n for n in (1, 2, 7, 14, 28)))


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart."""

    x: float
    """Its left edge."""
    width: float
    """Its width."""
    height: float
    """Its height, from 0 to 1."""
    tone: str
    """Its tone."""
    label: str
    """Its text on hover."""
    run_uid: str = ""
    """The run that the bar shows."""


class Stack(NamedTuple):
    """One mark for runs that are too close to be drawn separately. It is divided into the shares of their outcomes."""

    x: float
    """Its left edge."""
    width: float
    """Its width."""
    parts: list[tuple[str, float, float]]
    """A part for each tone, from top to bottom: the tone, the part's upper edge and its height, both from 0 to 1."""
    label: str
    """Its text on hover."""
    run_uid: str | None
    """The run to which the mark leads: of several runs, the one with the worst outcome. None if it is not known."""
    at: datetime
    """The instant at its left edge."""
    since: float | None = None
    """The left end of the earliest run, if that run started before the stack begins; else None."""


_LEAST_SHARE = 0.15
"""The least share of the height that a tone gets if it occurs, so that one failure among a thousand runs is visible."""
_LEAST_WIDTH = 3.0


def in_words(lots: Iterable[Lot]) -> str:
    """Return how many runs there are of each status."""
    return _told(_counts(lots))


def _counts(lots: Iterable[Lot]) -> Counter[str]:
    counts = Counter[str]()
    for lot in lots:
        counts[lot.status] += lot.runs
    return counts


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[status]} {status}" for status in sorted(counts, key=_rank))


def _rank(status: str) -> tuple[int, str]:
    return -_WORST.index(tone_of(status)), status


class Grid:
    """The columns of a timeline in which runs are drawn."""

    def __init__(self, axis: Axis, start: int, step: int, zone: ZoneInfo) -> None:
        self._axis, self._start, self._step, self._zone = axis, start, step, zone

    def stacks(self, lots: Sequence[Lot], width: int) -> list[Stack]:
        """Return a stack for each group of `width` columns in which a run executed.

        If neighbouring stacks all have one and the same tone, they become one stack.
        """
        columns = defaultdict[int, list[Lot]](list)
        for lot in lots:
            for place in range(lot.first // width, lot.last // width + 1):
                columns[place].append(lot)
        groups = _groups({place: _tones(found) for place, found in columns.items()})
        return [
            self._stack(first * width, (last + 1) * width, [lot for n in range(first, last + 1) for lot in columns[n]])
            for first, last in groups
        ]

    def _stack(self, first: int, end: int, found: Iterable[Lot]) -> Stack:
        lots = list(dict.fromkeys(found))  # a long run is in several columns
        begin, finish = (datetime.fromtimestamp(self._start + place * self._step, UTC) for place in (first, end))
        x, since = self._axis.x(begin), self._axis.x(datetime.fromtimestamp(min(lot.since for lot in lots), UTC))
        width, label = max(self._axis.x(finish) - x, _LEAST_WIDTH), self._label(lots, begin, finish)
        return Stack(x, width, _shares(_counts(lots)), label, _worst(lots).run_uid, begin, since if since < x else None)

    def _label(self, lots: Sequence[Lot], begin: datetime, finish: datetime) -> str:
        if len(lots) == lots[0].runs == 1 and lots[0].number is not None:
            at = datetime.fromtimestamp(lots[0].since, UTC).astimezone(self._zone)
            return f"#{lots[0].number} {lots[0].status}, {at:%a %d %b %H:%M:%S}"
        first, last = begin.astimezone(self._zone), finish.astimezone(self._zone)
        until = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%a %d %b %H:%M}"
        return f"{in_words(lots)}, {first:%a %d %b %H:%M} to {until}"


def stacks_of(stacks: Sequence[Stack], y: int, height: int, runs: str, day: str) -> Markup:
    """Return stacks as links in an SVG, with the upper edge `y`. A template would be too slow for hundreds of stacks.

    A stack links to its run: `runs` is the address to which the run's uid is appended. If the run is not known, the
    stack links to a day: `day` is the address to which an instant is appended.
    """
    path, mark, query = runs.partition("?")
    before, after, around = escape(path), escape(mark + query), escape(day)
    drawn = []
    for stack in stacks:
        where = f"{before}{stack.run_uid}{after}" if stack.run_uid else f"{around}{quote(iso_utc(stack.at))}"
        drawn.append(f'<a href="{where}" tabindex="-1"><title>{escape(stack.label)}</title>')
        if stack.since is not None:
            width = f"{stack.x - stack.since:.1f}"
            middle = y + height // 2 - 1
            drawn.append(
                f'<rect class="{stack.parts[-1][0]}" x="{stack.since}" y="{middle}" width="{width}" height="2"/>'
            )
        drawn += [
            f'<rect class="{tone}" x="{stack.x}" y="{y + top * height:g}" width="{stack.width:.1f}"'
            f' height="{share * height:g}"/>'
            for tone, top, share in stack.parts
        ]
        drawn.append("</a>")
    return Markup("".join(drawn))  # noqa: S704 - escaped


def width_for(lots: Iterable[Sequence[Lot]], most: int) -> int:
    """Return how many columns form a stack, so that all schedules together have at most `most` stacks."""
    rows = [_tones_of_columns(of_one) for of_one in lots]
    width = 1
    while sum(len(_groups(tones)) for tones in rows) > most and any(len(tones) > 1 for tones in rows):
        width, rows = 2 * width, [_halved(tones) for tones in rows]
    return width


_TONE_BITS = {tone: 1 << place for place, tone in enumerate(_WORST)}


def _tones(lots: Iterable[Lot]) -> int:
    tones = 0
    for lot in lots:
        tones |= _TONE_BITS[tone_of(lot.status)]
    return tones


def _tones_of_columns(lots: Sequence[Lot]) -> dict[int, int]:
    found = defaultdict[int, int](int)
    for lot in lots:
        tone = _TONE_BITS[tone_of(lot.status)]
        for place in range(lot.first, lot.last + 1):
            found[place] |= tone
    return found


def _halved(tones: Mapping[int, int]) -> dict[int, int]:
    found = defaultdict[int, int](int)
    for place, some in tones.items():
        found[place // 2] |= some
    return found


def _groups(tones: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the first and last column of each stack. Neighbouring columns of one and the same tone share a stack."""
    groups: list[tuple[int, int]] = []
    before = 0
    for place in sorted(tones):
        some = tones[place]
        if groups and groups[-1][1] == place - 1 and some == before and some & (some - 1) == 0:
            groups[-1] = groups[-1][0], place
        else:
            groups.append((place, place))
        before = some
    return groups


def _worst(lots: Iterable[Lot]) -> Lot:
    return min(lots, key=lambda lot: (_WORST.index(tone_of(lot.status)), -(lot.number or 0)))


def _shares(of_status: Mapping[str, int]) -> list[tuple[str, float, float]]:
    """Return each tone with the upper edge and the height of its share. The worst tone comes first."""
    counts = Counter[str]()
    for status, number in of_status.items():
        counts[tone_of(status)] += number
    total = counts.total()
    heights = {tone: max(counts[tone] / total, _LEAST_SHARE) for tone in _WORST if counts[tone]}
    scale, top, parts = sum(heights.values()), 0.0, []
    for tone, height in heights.items():
        parts.append((tone, top, height / scale))
        top += height / scale
    return parts


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the newest runs took."""

    bars: list[Bar]
    """One bar per run, the oldest run first."""
    longest: float
    """The seconds that the full height of the chart shows."""
    interval: float | None
    """The interval between fires, as a share of the full height. None if it is greater than 1 or not known."""
    first: str
    """The label of the oldest run."""
    last: str
    """The label of the newest run."""


def durations(outlines: Sequence[RunOutline], interval: timedelta | None) -> Durations | None:
    """Return the bars of the runs' durations; None if no run has ended."""
    ended = [
        (run, max((run.ended_at - run.started_at).total_seconds(), 0.0))
        for run in outlines
        if run.started_at and run.ended_at
    ]
    if not ended:
        return None
    longest = max(0.001, *(seconds for _, seconds in ended))
    step = WIDTH / max(len(ended), 30)
    bars = []
    for n, (run, seconds) in enumerate(ended):
        label = f"#{run.number} {run.status}, {seconds:.1f} s"
        bars.append(Bar(n * step, step * 0.8, max(seconds / longest, 0.02), tone_of(run.status), label, run.uid))
    share = interval.total_seconds() / longest if interval else None
    first, last = f"#{ended[0][0].number}", f"#{ended[-1][0].number}" if len(ended) > 1 else ""
    return Durations(bars, longest, share if share is not None and share <= 1 else None, first, last)


@dataclass(frozen=True, slots=True)
class Day:
    """One day of a heatmap."""

    column: int
    """The number of its week, counted from 0."""
    row: int
    """The number of its weekday; Monday is 0."""
    day: date
    """The day."""
    succeeded: int
    """How many runs succeeded."""
    failed: int
    """How many runs failed or were lost."""
    others: int
    """How many runs ended otherwise."""

    @property
    def level(self) -> int:
        """The strength of its colour, 0 to 4."""
        total = self.succeeded + self.failed + self.others
        return 0 if not total else 1 if total < 3 else 2 if total < 10 else 3 if total < 50 else 4

    @property
    def tone(self) -> str:
        """The tone of the day's worst outcome."""
        return "bad" if self.failed else "ok" if self.succeeded else "idle"


def year(found: Mapping[HourKey, int], today: date, zone: ZoneInfo) -> list[Day]:
    """Return the days of the last 53 weeks, each with the outcomes of the runs that ended on it."""
    counts: defaultdict[date, Counter[str]] = defaultdict(Counter)
    for key, number in found.items():
        counts[instant_of_hour(key.hour).astimezone(zone).date()][key.outcome] += number
    first = today - timedelta(days=52 * 7 + today.weekday())
    days = []
    for n in range((today - first).days + 1):
        day = first + timedelta(days=n)
        of_day = counts.get(day, Counter())
        succeeded, failed = of_day["succeeded"], of_day["failed"] + of_day["lost"]
        days.append(Day(n // 7, n % 7, day, succeeded, failed, of_day.total() - succeeded - failed))
    return days


GRID_DAYS = 28
"""How many days a grid of hours covers."""


class Cell(NamedTuple):
    """One hour of one day."""

    column: int
    """The number of its day, counted from 0."""
    row: int
    """The hour of the day, from 0."""
    parts: list[tuple[str, float, float]]
    """The shares of its outcomes, in the form of the parts of a `Stack`."""
    label: str
    """Its text on hover."""


def grid(found: Mapping[HourKey, int], today: date, zone: ZoneInfo) -> list[Cell]:
    """Return the hours, by a zone's clock, of the last GRID_DAYS days in which runs ended."""
    counts: defaultdict[tuple[date, int], Counter[str]] = defaultdict(Counter)
    for key, number in found.items():
        at = instant_of_hour(key.hour).astimezone(zone)
        counts[at.date(), at.hour][key.outcome] += number
    first = today - timedelta(days=GRID_DAYS - 1)
    cells = []
    for (day, hour), of_hour in sorted(counts.items()):
        if first <= day <= today:
            label = f"{day:%a %d %b} {hour:02}:00: {_told(of_hour)}"
            cells.append(Cell((day - first).days, hour, _shares(of_hour), label))
    return cells


class Spread(NamedTuple):
    """The durations of runs over time: the median and the 95th percentile for each day or hour."""

    bars: list[tuple[float, float, float, float, str]]
    """For each bar: left edge, width, the heights of median and percentile (as shares of `greatest`), text on hover."""
    greatest: float
    """The seconds that the full height of the chart shows."""
    first: str
    """The label at the left end of the axis."""
    last: str
    """The label at the right end of the axis."""
    told: str
    """The figures of the chart in one line."""


def spread(found: Mapping[HourKey, Tally], first: int, count: int, width: int, zone: ZoneInfo) -> Spread | None:
    """Return the spread of live runs in `count` bars of `width` hours each, from the hour `first` on.

    Return None if no run has a duration.
    """
    tallies: defaultdict[int, Tally] = defaultdict(Tally)
    for key, one in found.items():
        if not key.is_backfilled:
            tallies[(key.hour - first) // width].add(one)
    known = {place: one for place, one in sorted(tallies.items()) if 0 <= place < count and one.durations}
    if not known:
        return None
    both = {place: _half_and_most(one) for place, one in known.items()}
    greatest = _round_above(max(high for _, high in both.values()))
    step = WIDTH / count
    bars = []
    for place, (half, most) in both.items():
        label = f"{_time_of(first + place * width, width, zone)}: {_spread_in_words(half, most)}"
        runs = known[place].durations.total()
        label += f", of {number_of(runs, 'run')}"
        bars.append((place * step, step * 0.8, half / greatest, most / greatest, label))
    total = Tally()
    for one in known.values():
        total.add(one)
    told = _spread_in_words(*_half_and_most(total))
    begin, end = (_time_of(first + place * width, width, zone) for place in (0, count - 1))
    return Spread(bars, greatest, begin, end, told)


def _half_and_most(one: Tally) -> tuple[float, float]:
    """Return the median and the 95th percentile of the durations, in seconds."""
    return quantile(one.durations, 0.5, one.longest) or 0.0, quantile(one.durations, 0.95, one.longest) or 0.0


def _spread_in_words(half: float, most: float) -> str:
    return f"half of the runs took at most {duration(half)}, 95 % at most {duration(most)}"


def _time_of(hour: int, width: int, zone: ZoneInfo) -> str:
    at = instant_of_hour(hour)
    return f"{at:%a %d %b}" if width == A_DAY else f"{at.astimezone(zone):%a %d %b %H:%M}"


_ROUND = (1, 2, 5)
_LONG = (60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)


def _round_above(seconds: float) -> float:
    """Return the next round length that is not shorter. Its half is round, too."""
    if seconds > _LONG[-1]:
        return ceil(seconds / _DAY) * float(_DAY)
    short = (digit * 10.0**power for power in range(-3, 2) for digit in _ROUND)
    return next(one for one in (*short, *map(float, _LONG)) if one >= seconds)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis of a timeline."""

    x: float
    """Its position on the axis."""
    label: str
    """Its text."""
    is_day: bool
    """Whether a day begins there."""
    is_spare: bool = False
    """Whether a narrow screen leaves out its label."""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A clock change on the axis of a timeline."""

    x: float
    """Its position on the axis."""
    how: str
    """The change, such as `back 1 h`."""
    zones: list[str]
    """The names of the zones whose clocks change."""


class Axis:
    """Time from left to right."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start, self.end = start, end
        self._span = (end - start).total_seconds()

    @property
    def span(self) -> timedelta:
        """The length of the axis."""
        return self.end - self.start

    def x(self, at: datetime) -> float:
        """Return the position of an instant. It is never outside the chart."""
        share = (at - self.start).total_seconds() / self._span
        return round(min(max(share, 0.0), 1.0) * WIDTH, 2)

    def ticks(self, zone: ZoneInfo) -> Iterator[Tick]:
        """Yield about a dozen marks, at times that are round by a zone's clock."""
        days = self._span / 86_400
        step = next((s for s in _STEPS if self._span / s <= 14), _STEPS[-1])
        at = self.start.astimezone(zone).replace(minute=0, second=0, microsecond=0)
        at = at.replace(hour=0) if step >= 3600 else at
        wall = at.replace(tzinfo=None)
        for number in counter():
            instant = wall.replace(tzinfo=zone).astimezone(UTC)
            if instant > self.end:
                return
            if instant >= self.start:
                x, is_day = self.x(instant), wall.hour == wall.minute == wall.second == 0
                place = number if step >= _DAY else wall.toordinal()
                is_one_of_four = is_day and place % ceil(self._span / max(step, _DAY) / 4) == 0 and x < 0.9 * WIDTH
                is_spare = days > 2 and not is_one_of_four
                yield Tick(x, f"{wall:%a %d %b}" if is_day else f"{wall:%H:%M}", is_day, is_spare)
            wall += timedelta(seconds=step)

    def offset_changes(self, zone: ZoneInfo) -> Iterator[tuple[float, str]]:
        """Yield the position and the direction of each clock change of a zone within the chart."""
        at = self.start.replace(minute=0, second=0, microsecond=0)
        before = _offset(at, zone)
        while at <= self.end:
            following = at + timedelta(days=1)
            if _offset(following, zone) == before:  # no zone's clocks change twice a day
                at = following
                continue
            while (offset := _offset(at, zone)) == before:
                at += timedelta(hours=1)
            if at <= self.end:
                by = abs((offset - before).total_seconds()) / 3600
                yield self.x(at), f"{'forward' if offset > before else 'back'} {by:g} h"
            before = offset


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)
