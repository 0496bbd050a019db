"""What the charts draw, as plain numbers: the templates put them into SVG. Nothing here reads a database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from math import ceil
from zoneinfo import ZoneInfo

from rqsched.core.model import tone_of
from rqsched.store.run_queries import RunOutline

WIDTH = 1000
"""The width of a chart in its own units."""
_WORST = ("bad", "warn", "info", "ok", "idle")
_STEPS = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart."""

    x: float
    """Where it begins."""
    width: float
    """How wide it is."""
    height: float
    """How high it is, from 0 to 1."""
    tone: str
    """Its tone."""
    label: str
    """What it says on hover."""
    run_uid: str = ""
    """The run it stands for."""


def merge(bars: Sequence[Bar], gap: float) -> list[Bar]:
    """Merge bars that lie on one another, or closer than `gap`: the worst gives tone and run, the label their number.

    `bars` are in order of where they begin.
    """
    groups: list[list[Bar]] = []
    end = 0.0
    for bar in bars:
        if groups and bar.x < end + gap:
            groups[-1].append(bar)
        else:
            groups.append([bar])
            end = 0.0
        end = max(end, bar.x + bar.width)
    return [_merged(group) for group in groups]


def _merged(group: Sequence[Bar]) -> Bar:
    worst = min(reversed(group), key=lambda bar: _WORST.index(bar.tone))
    if len(group) == 1:
        return worst
    width = max(bar.x + bar.width for bar in group) - group[0].x
    return replace(worst, x=group[0].x, width=width, label=f"{len(group)} runs, among them {worst.label}")


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the newest runs took."""

    bars: list[Bar]
    """One per run, oldest first."""
    longest: float
    """Seconds that the full height stands for."""
    interval: float | None
    """The interval between fires as a share of the full height; None where it is higher or unknown."""
    first: str
    """The oldest of them."""
    last: str
    """The newest."""


def durations(outlines: Sequence[RunOutline], interval: timedelta | None) -> Durations | None:
    """Return the bars of how long runs took; None without a run that ended."""
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
    """Its week, from 0."""
    row: int
    """Its weekday, Monday is 0."""
    day: date
    """The day."""
    succeeded: int
    """Runs that succeeded."""
    failed: int
    """Runs that failed or were lost."""
    others: int
    """Runs that ended otherwise, or have not."""

    @property
    def level(self) -> int:
        """How strongly it is coloured, 0 to 4."""
        total = self.succeeded + self.failed + self.others
        return 0 if not total else 1 if total < 3 else 2 if total < 10 else 3 if total < 50 else 4

    @property
    def tone(self) -> str:
        """The tone of its worst outcome."""
        return "bad" if self.failed else "ok" if self.succeeded else "idle"


def year(outlines: Iterable[tuple[datetime, str]], today: date, zone: ZoneInfo) -> list[Day]:
    """Return the days of the last 53 weeks with how their runs ended."""
    counts: defaultdict[date, Counter[str]] = defaultdict(Counter)
    for at, status in outlines:
        counts[at.astimezone(zone).date()][status] += 1
    first = today - timedelta(days=52 * 7 + today.weekday())
    days = []
    for n in range((today - first).days + 1):
        day = first + timedelta(days=n)
        of_day = counts.get(day, Counter())
        succeeded, failed = of_day["succeeded"], of_day["failed"] + of_day["lost"]
        days.append(Day(n // 7, n % 7, day, succeeded, failed, of_day.total() - succeeded - failed))
    return days


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis of a timeline."""

    x: float
    """Where it stands."""
    label: str
    """What is written at it."""
    is_day: bool
    """Whether a day begins there."""
    is_spare: bool = False
    """Whether a narrow screen has no room for its label."""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Where clocks change, on the axis of a timeline."""

    x: float
    """Where it is."""
    how: str
    """How they change: `back 1 h`."""
    zones: list[str]
    """The zones that do so, as people call them."""


class Axis:
    """Time from left to right."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start, self.end = start, end
        self._span = (end - start).total_seconds()

    def x(self, at: datetime) -> float:
        """Return where an instant is, within the chart."""
        share = (at - self.start).total_seconds() / self._span
        return round(min(max(share, 0.0), 1.0) * WIDTH, 2)

    def ticks(self, zone: ZoneInfo) -> Iterator[Tick]:
        """Yield marks at round times of a zone, about a dozen."""
        days = self._span / 86_400
        step = next((s for s in _STEPS if self._span / s <= 14), _STEPS[-1])
        at = self.start.astimezone(zone).replace(minute=0, second=0, microsecond=0)
        at = at.replace(hour=0) if step >= 3600 else at
        wall = at.replace(tzinfo=None)
        while True:
            instant = wall.replace(tzinfo=zone).astimezone(UTC)
            if instant > self.end:
                return
            if instant >= self.start:
                x, is_day = self.x(instant), wall.hour == wall.minute == wall.second == 0
                is_spare = days > 2 and not (is_day and wall.toordinal() % ceil(days / 4) == 0 and x < 0.9 * WIDTH)
                yield Tick(x, f"{wall:%a %d %b}" if is_day else f"{wall:%H:%M}", is_day, is_spare)
            wall += timedelta(seconds=step)

    def offset_changes(self, zone: ZoneInfo) -> Iterator[tuple[float, str]]:
        """Yield where the clocks of a zone change within the chart, and how."""
        hour = timedelta(hours=1)
        at = self.start.replace(minute=0, second=0, microsecond=0)
        before = at.astimezone(zone).utcoffset()
        while at <= self.end:
            offset = at.astimezone(zone).utcoffset()
            if offset is not None and before is not None and offset != before:
                forward = offset > before
                by = abs((offset - before).total_seconds()) / 3600
                yield self.x(at), f"{'forward' if forward else 'back'} {by:g} h"
            before, at = offset, at + hour
