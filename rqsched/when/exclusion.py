"""Exclusions: dates, ranges of dates, weekly windows and calendars in which no occurrence happens.

An `Exclusion` removes the instants that lie in its stretches from the instants of a source. The clock-change rules are
applied first. A search jumps over an excluded stretch without visiting the instants in it. This file reads no clock and
no database.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError
from rqsched.when.steps import spend
from rqsched.when.zones import FIRST_YEAR, LAST_YEAR, spans_from, spans_until

MAX_EXCLUSIONS = 500
"""The maximum number of entries of a spec's `exclude`: dates, ranges, windows and names of calendars together."""
MAX_NAMED = 20
"""The maximum number of calendars that a spec names."""
LONGEST_LOOK = timedelta(days=3653)
"""The longest excluded time that a search crosses before it gives up: ten years."""
STRETCH_STEPS = 4
"""The cost of a search for an excluded stretch, in steps (`when.steps`)."""

_Date: TypeAlias = date | str
ExcludeLike: TypeAlias = _Date | tuple[_Date, _Date] | Iterable[_Date | tuple[_Date, _Date]]
"""One exclusion or several. Each is a date, a pair of the first and the last date, or text. The text is a date, a range
with both dates included (`2026-12-24/2027-01-01`), a weekly window (`Sat, Sun`, `22:00-06:00`, `Mon-Fri 00:00-06:00`),
or the name of a calendar."""

_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAYS = {word: number for number, name in enumerate(_NAMES) for word in (name, name[:3])}
_DAY, _WEEK, _TICK = timedelta(days=1), timedelta(days=7), timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)
_ALWAYS = datetime(FIRST_YEAR + 1, 1, 1), datetime(LAST_YEAR, 1, 1)  # noqa: DTZ001 - readings
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?"
_WINDOW = re.compile(rf"(?P<days>[A-Za-z][A-Za-z, \t-]*)?(?P<times>{_CLOCK}[ \t]*-[ \t]*{_CLOCK})?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
_HOW = (
    "write 2026-12-25, 2026-12-24/2027-01-01 (both included), 'Sat, Sun', 'Mon-Fri 00:00-06:00' or the name of a "
    "calendar"
)

T = TypeVar("T", datetime, timedelta)


class Dates(NamedTuple):
    """A range of whole days."""

    first: date
    """The first day."""
    last: date
    """The last day, included."""

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}/{self.last}"


class Window(NamedTuple):
    """A window of time that repeats every week, at the same time of some days."""

    days: tuple[int, ...]
    """The days on which the window begins, sorted; Monday is 0."""
    start: timedelta
    """Its beginning, counted from midnight."""
    end: timedelta
    """Its end, counted from the same midnight: more than 24 hours if the window ends on the next day."""

    @property
    def is_whole_days(self) -> bool:
        """Whether it lasts from midnight to midnight."""
        return (self.start, self.end) == (timedelta(0), _DAY)

    def __str__(self) -> str:
        days = ", ".join(_runs(self.days))
        if self.is_whole_days:
            return days
        times = f"{_clock(self.start)}-{_clock(self.end)}"
        return times if len(self.days) == len(_NAMES) else f"{days} {times}"


class Stretch(NamedTuple):
    """A stretch of time that is excluded."""

    start: datetime
    """Its first instant."""
    end: datetime
    """The first instant after it."""


def require_exclusions(value: object, field: str = "exclude") -> tuple[str, ...]:
    """Return exclusions as canonical texts, each once, sorted.

    Takes one ExcludeLike or several. Raises InvalidSpecError, which says what to write instead.
    """
    found = canonical_exclusions(value, field, most=MAX_EXCLUSIONS)
    if sum(map(is_name, found)) > MAX_NAMED:
        raise InvalidSpecError(field, f"names more than {MAX_NAMED} calendars; put what they hold into fewer")
    return found


def canonical_exclusions(value: object, field: str, *, most: int) -> tuple[str, ...]:
    """Return exclusions as `require_exclusions` does; raises InvalidSpecError for more than `most` entries."""
    several = [value] if isinstance(value, (str, date)) else value
    if not isinstance(several, Iterable):
        raise InvalidSpecError(field, f"{type(value).__name__} is not a list; {_HOW}")
    texts = {str(_entry(one, field)) for one in several}
    if len(texts) > most:
        raise InvalidSpecError(field, f"holds {len(texts)} entries; give at most {most}")
    found = tuple(sorted(texts))
    if _covers_every_week(_weekly(found)):
        raise InvalidSpecError(
            field, "covers every minute of the week, so nothing would ever happen; remove some of it"
        )
    return found


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a calendar. Weekdays and ranges of weekdays cannot."""
    return _NAME.fullmatch(text) is not None and not all(part.title() in _WEEKDAYS for part in text.split("-"))


def parse_exclusion(text: str, field: str = "exclude") -> Dates | Window:
    """Return what one text excludes; raises InvalidSpecError, which says what to write instead."""
    if "/" in text or _DATE.fullmatch(text.strip()):
        first, _, last = text.partition("/")
        return _dates(first.strip(), (last if "/" in text else first).strip(), field)
    match = _WINDOW.fullmatch(text.strip())
    if match is None or not match[0]:
        raise InvalidSpecError(field, f"{text[:64]!r} is not a date, a range or a weekly window; {_HOW}")
    days = _days(match["days"], field) if match["days"] else tuple(range(len(_NAMES)))
    if not match["times"]:
        return Window(days, timedelta(0), _DAY)
    begin, finish = (_time(part, field) for part in match["times"].split("-"))
    if begin in {finish, _DAY}:
        raise InvalidSpecError(field, f"{text[:64]!r} is empty; write another end, or no times for whole days")
    return Window(days, begin, finish if finish > begin else finish + _DAY)


def _entry(value: object, field: str) -> Dates | Window | str:
    if isinstance(value, str):
        return value if is_name(value) else parse_exclusion(value, field)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return _dates(value[0], value[1], field)
    return _dates(value, value, field)


def _dates(first: object, last: object, field: str) -> Dates:
    found = Dates(_date(first, field), _date(last, field))
    if found.first > found.last:
        raise InvalidSpecError(field, f"{found} ends before it begins; write {Dates(found.last, found.first)}")
    return found


def _date(value: object, field: str) -> date:
    """Read a date. An instant is refused, because it may be on another day in the zone of the spec."""
    if isinstance(value, date) and not isinstance(value, datetime):
        found = value
    elif isinstance(value, str) and _DATE.fullmatch(value):
        try:
            found = date.fromisoformat(value)
        except ValueError as error:
            raise InvalidSpecError(field, f"{value!r} is not a day of the calendar; {_HOW}") from error
    else:
        raise InvalidSpecError(field, f"{str(value)[:64]!r} is not a date; {_HOW}")
    if not FIRST_YEAR < found.year < LAST_YEAR:
        raise InvalidSpecError(field, f"{found} is too far away; write a year from {FIRST_YEAR + 1} to {LAST_YEAR - 1}")
    return found


def _days(text: str, field: str) -> tuple[int, ...]:
    found = set[int]()
    for item in text.split(","):
        first, _, last = item.partition("-")
        begin, end = _weekday(first, field), _weekday(last if "-" in item else first, field)
        found |= {day % len(_NAMES) for day in range(begin, end + (len(_NAMES) if end < begin else 0) + 1)}
    return tuple(sorted(found))


def _weekday(text: str, field: str) -> int:
    number = _WEEKDAYS.get(text.strip().title())
    if number is None:
        raise InvalidSpecError(field, f"{text.strip()[:64]!r} is not a day of the week; {_HOW}")
    return number


def _time(text: str, field: str) -> timedelta:
    hours, minutes, seconds = (int(part) for part in f"{text.strip()}:00".split(":")[:3])
    found = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or found > _DAY:
        raise InvalidSpecError(field, f"{text.strip()} is not a time of day; write 00:00 to 24:00")
    return found


def _clock(length: timedelta) -> str:
    minutes, seconds = divmod(int((length if length <= _DAY else length - _DAY).total_seconds()), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{seconds:02}" if seconds else "")


def _runs(days: Iterable[int]) -> list[str]:
    """Return the short names of days. Three or more days in a row become a range."""
    runs = list[list[int]]()
    for day in days:
        if runs and day == runs[-1][-1] + 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    named = [[_NAMES[day][:3] for day in run] for run in runs]
    return [name for run in named for name in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else run)]


def _weekly(texts: Iterable[str]) -> tuple[tuple[timedelta, timedelta], ...]:
    """Return the weekly windows as lengths from Monday's midnight, cut at the end of the week, joined and sorted."""
    own = (parse_exclusion(text) for text in texts if not is_name(text))
    windows = [parsed for parsed in own if isinstance(parsed, Window)]
    found = list[tuple[timedelta, timedelta]]()
    for window in windows:
        for day in window.days:
            start, end = day * _DAY + window.start, day * _DAY + window.end
            found += [(start, min(end, _WEEK))] + ([(timedelta(0), end - _WEEK)] if end > _WEEK else [])
    return _joined(found)


def _covers_every_week(weekly: tuple[tuple[timedelta, timedelta], ...]) -> bool:
    return weekly == ((timedelta(0), _WEEK),)


def _joined(windows: Iterable[tuple[T, T]]) -> tuple[tuple[T, T], ...]:
    """Return windows sorted. Windows that touch or overlap are joined."""
    found = list[tuple[T, T]]()
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


@lru_cache(maxsize=1024)
def exclusion_of(texts: tuple[str, ...], zone: ZoneInfo) -> Exclusion:
    """Return the exclusion of canonical texts in a zone. No text may be the name of a calendar."""
    days = [parsed for text in texts if isinstance(parsed := parse_exclusion(text), Dates)]
    midnights = ((datetime.combine(one.first, time.min), datetime.combine(one.last, time.min) + _DAY) for one in days)
    week = _weekly(texts)
    if _covers_every_week(week):  # one text cannot cover it, but a spec and its calendars together can
        return Exclusion((_ALWAYS,), (), zone)
    return Exclusion(_joined(midnights), week, zone)


@dataclass(frozen=True)
class Exclusion:
    """Local times at which nothing happens. Immutable, safe to share between threads.

    Instants are aware UTC; readings are naive local times.
    """

    dates: tuple[tuple[datetime, datetime], ...]
    """The excluded days, each range from midnight to midnight; sorted and disjoint."""
    week: tuple[tuple[timedelta, timedelta], ...]
    """The windows of every week, as lengths from Monday's midnight; never the whole week."""
    zone: ZoneInfo
    """The zone of the local times."""

    def holds(self, instant: datetime) -> bool:
        """Return whether an instant is excluded."""
        stretch = self.stretch_after(instant)
        return stretch is not None and stretch.start <= instant

    def stretch_after(self, instant: datetime) -> Stretch | None:
        """Return the first excluded stretch that ends after `instant`, or None. `instant` may be inside it.

        A stretch is cut at each change of the zone's offset: the next stretch may begin where the returned stretch
        ends. The last answer is cached, because the next question is often about the same stretch.
        """
        known: tuple[datetime, Stretch | None] | None = self.__dict__.get("_known")
        if known is not None and known[0] <= instant and (known[1] is None or instant < known[1].end):
            return known[1]
        found = self._stretch_after(instant)
        self.__dict__["_known"] = (instant, found)
        return found

    def _stretch_after(self, instant: datetime) -> Stretch | None:
        begin = instant.replace(tzinfo=None)
        for span in spans_from(self.zone, begin):
            at = max(begin, span.start) + span.offset
            if at > self._over:
                return None
            found = self._stretch_from(at)
            if found is not None and found.start < span.local_end:
                start, end = max(found.start, span.local_start), min(found.end, span.local_end)
                return Stretch((start - span.offset).replace(tzinfo=UTC), (end - span.offset).replace(tzinfo=UTC))
        return None

    def start_of(self, instant: datetime) -> datetime:
        """Return the first instant of the excluded time around `instant`, across changes of the zone's offset."""
        last = instant.replace(tzinfo=None)
        for span in spans_until(self.zone, last):
            start = self._opening(min(last + _TICK, span.end) + span.offset) - span.offset
            if start > span.start:
                return start.replace(tzinfo=UTC)
        return instant

    def ascending(
        self, walk: Callable[[datetime], Iterator[datetime]], after: datetime, until: datetime
    ) -> Iterator[datetime]:
        """Yield the instants of `walk(after)` that are not excluded, in order.

        The search ends at the first excluded instant whose stretch ends after `until`. So some of the yielded instants
        may lie after `until`.
        """
        found, stretch = walk(after), None
        while (at := next(found, None)) is not None:
            if stretch is None or at >= stretch.end:
                stretch = self.stretch_after(at) or Stretch(_LAST, _LAST)
            if at < stretch.start or stretch.start == _LAST:
                yield at
            elif stretch.end > until:
                return
            else:
                spend(STRETCH_STEPS)
                found = walk(stretch.end - _TICK)

    def descending(
        self, walk: Callable[[datetime], Iterator[datetime]], after: datetime, until: datetime
    ) -> Iterator[datetime]:
        """Yield the instants of `walk(until)`, newest first, that lie after `after` and are not excluded."""
        found = walk(until)
        while (at := next(found, None)) is not None and at > after:
            if not self.holds(at):
                yield at
                continue
            spend(STRETCH_STEPS)
            if (start := self.start_of(at)) <= after:
                return
            found = walk(start - _TICK)

    def stretches(self, after: datetime, until: datetime) -> Iterator[Stretch]:
        """Yield the excluded stretches in (after, until], cut at both ends of that range."""
        until = min(until, _LAST - _TICK)
        at = min(after, until) + _TICK
        while (stretch := self.stretch_after(at)) is not None and stretch.start <= until:
            spend(STRETCH_STEPS)
            yield Stretch(max(stretch.start, at), min(stretch.end, until + _TICK))
            at = stretch.end

    def takes(self, reading: datetime) -> bool:
        """Return whether a reading is excluded."""
        return any(start <= reading for start, _ in self._ahead(reading))

    def takes_day(self, day: date) -> bool:
        """Return whether a whole day is excluded, by its date or by a window."""
        midnight = datetime.combine(day, time.min)
        return any(start <= midnight and end - midnight >= _DAY for start, end in self._ahead(midnight))

    def dates_after(self, reading: datetime) -> tuple[datetime, datetime] | None:
        """Return the first range of excluded dates that ends after `reading`, from midnight to midnight."""
        at = bisect_right(self.dates, reading, key=itemgetter(1))
        return self.dates[at] if at < len(self.dates) else None

    @cached_property
    def by_weekday(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The windows of each weekday, Monday first, in seconds from the midnight of that day."""
        found: tuple[list[tuple[int, int]], ...] = tuple([] for _ in _NAMES)
        day_seconds = int(_DAY.total_seconds())
        for start, end in ((int(a.total_seconds()), int(b.total_seconds())) for a, b in self.week):
            for day in range(start // day_seconds, (end - 1) // day_seconds + 1):
                midnight = day * day_seconds
                found[day].append((max(start - midnight, 0), min(end - midnight, day_seconds)))
        return tuple(map(tuple, found))

    @cached_property
    def _over(self) -> datetime:
        """A local time after which nothing is excluded. Clocks may show the last date twice, so it is a day later."""
        if self.week or not self.dates:
            return datetime.max if self.week else datetime.min  # noqa: DTZ901 - readings
        return self.dates[-1][1] + _DAY

    def _stretch_from(self, reading: datetime) -> Stretch | None:
        """Return the first excluded stretch of local time that ends after `reading`."""
        ahead = self._ahead(reading)
        if not ahead:
            return None
        start, end = min(ahead)
        while (further := max((w[1] for w in self._ahead(end) if w[0] <= end), default=end)) > end:
            spend()
            end = further
        return Stretch(start, end)

    def _opening(self, end: datetime) -> datetime:
        """Return the start of the excluded local time just before `end`; return `end` if there is none."""
        while (earlier := min((w[0] for w in self._behind(end) if w[1] >= end), default=end)) < end:
            spend()
            end = earlier
        return end

    def _ahead(self, reading: datetime) -> list[tuple[datetime, datetime]]:
        """Return the first range of dates and the first weekly window that end after `reading`."""
        dates = self.dates_after(reading)
        found = [] if dates is None else [dates]
        if self.week:
            monday = _monday(reading)
            found.append(self._window(monday, bisect_right(self.week, reading - monday, key=itemgetter(1))))
        return found

    def _behind(self, reading: datetime) -> list[tuple[datetime, datetime]]:
        """Return the last range of dates and the last weekly window that begin before `reading`."""
        at = bisect_left(self.dates, reading, key=itemgetter(0))
        found = [self.dates[at - 1]] if at else []
        if self.week:
            monday = _monday(reading)
            found.append(self._window(monday, bisect_left(self.week, reading - monday, key=itemgetter(0)) - 1))
        return found

    def _window(self, monday: datetime, number: int) -> tuple[datetime, datetime]:
        """Return the weekly window with a number, counted from `monday`; negative numbers lie in earlier weeks."""
        weeks, number = divmod(number, len(self.week))
        start, end = self.week[number]
        return monday + weeks * _WEEK + start, monday + weeks * _WEEK + end


def _monday(reading: datetime) -> datetime:
    midnight = reading.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - reading.weekday() * _DAY
