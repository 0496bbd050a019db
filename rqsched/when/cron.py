"""Cron expressions in the dialect of Open Job Spec: parse them, and compute the instants that they yield in a zone.

An expression is parsed once, by a small grammar of this module, into sorted integers and a `DayRule`. Times of day and
daylight saving are computed here (docs/times.md). croniter only finds the days. Expressions are first rewritten in a
form that croniter reads correctly (`tests/contract/test_croniter.py`). The days of each month are cached. This module
uses no schedule, no clock and no SQL.

Words: a *reading* is a naive local time, as a wall clock shows it. A *span* is the time between two clock changes of a
zone. A reading is *left out* if the clocks go forward over it. A *walk* is one croniter expression for days.
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from heapq import merge
from itertools import groupby, product
from typing import NamedTuple
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter

from rqsched.errors import InvalidCronError
from rqsched.when.steps import spend
from rqsched.when.zones import FIRST_YEAR, Span, spans_from, spans_until

ALIASES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""The named expressions and their five fields. `@every` is an interval, which `members.Cron` reads."""

_LONGEST_TEXT = 255
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
_EPOCH = date(2000, 1, 1)
_DAWN = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001 - naive UTC, like the instants of spans
_END = datetime.max - timedelta(days=1)  # noqa: DTZ901
# If an expression does not fire within 50 years, it never fires: 29 February falls on each weekday within 40 years.
_MOST_MONTHS = 50 * 12
MONTH_STEPS = 20
"""The cost of one walk through a month, in steps (`when.steps`)."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: str = ""

    def number(self, text: str) -> int:
        if text in self.names.split():
            return self.names.split().index(text) + self.low
        top = 7 if self is _WEEKDAY else self.high
        if not text.isdigit() or not self.low <= int(text) <= top:
            raise _refusal(f"{text!r} is not a valid {self.name}; write {self.low}-{top}")
        return int(text)


_FIELD_SECOND, _MINUTE, _HOUR = _Field("second", 0, 59), _Field("minute", 0, 59), _Field("hour", 0, 23)
_MONTHDAY = _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC")
_WEEKDAY = _Field("day of week", 0, 6, "SUN MON TUE WED THU FRI SAT")

_ANY = {"*", "?"}
"""If one of the two day fields is one of these texts, only the other day field selects days. Quartz uses `?`."""
_ITEM = re.compile(r"(?:\*|(?P<first>[0-9]+|[A-Z]{3})(?:-(?P<last>[0-9]+|[A-Z]{3}))?)(?:/(?P<step>[0-9]+))?")
_MONTHDAY_ITEM = re.compile(r"(?P<last>L)?(?P<day>[0-9]+)?(?P<nearest>W)?")
_NTH_WEEKDAY = re.compile(r"(?P<day>[0-9]+|[A-Z]{3})#(?P<nth>[1-5])")
_LAST_WEEKDAY = re.compile(r"(?P<day>[0-9]+|[A-Z]{3})L|L(?P<other>[0-9]+|[A-Z]{3})")


@dataclass(frozen=True, slots=True)
class DayRule:
    """The days that an expression names: the days of all its walks together."""

    walks: tuple[str, ...]
    """croniter expressions. Each of them fires at midnight."""
    nearest_weekdays: str | None = None
    """One more croniter expression. Each of its days moves to the nearest weekday of its month (`15W`, `LW`)."""

    def on_or_after(self, day: date) -> date | None:
        """Return the first matching day, `day` itself or later; None if there is none within 50 years."""
        if self is EVERY_DAY:
            return day
        days = _days_of_month(self, day.replace(day=1))
        at = bisect_left(days, day)
        if at < len(days):
            return days[at]
        month = _month_after(self, day.replace(day=1))
        spend(_months_between(day, month))
        return _days_of_month(self, month)[0] if month else None

    def on_or_before(self, day: date) -> date | None:
        """Return the last matching day, `day` itself or earlier; None if there is none within 50 years."""
        if self is EVERY_DAY:
            return day
        days = _days_of_month(self, day.replace(day=1))
        at = bisect_right(days, day)
        if at:
            return days[at - 1]
        month = _month_before(self, day.replace(day=1))
        spend(_months_between(day, month))
        return _days_of_month(self, month)[-1] if month else None

    def count(self, first: date, stop: date) -> int:
        """Return how many days in [first, stop) match, counted month by month."""
        if self is EVERY_DAY:
            return max((stop - first).days, 0)
        total, day = 0, self.on_or_after(first)
        while day is not None and day < stop:
            spend(MONTH_STEPS * len(self.all_walks))
            days = _days_of_month(self, day.replace(day=1))
            total += bisect_left(days, stop) - bisect_left(days, day)
            day = self.on_or_after(days[-1] + _DAY)
        return total

    def count_by_weekday(self, first: date, stop: date) -> list[int]:
        """Return, for each weekday from Monday on, how many days in [first, stop) match."""
        counts = [0] * 7
        if self is EVERY_DAY:
            weeks, rest = divmod(max((stop - first).days, 0), 7)
            return [weeks + ((weekday - first.weekday()) % 7 < rest) for weekday in range(7)]
        day = self.on_or_after(first)
        while day is not None and day < stop:
            spend(MONTH_STEPS * len(self.all_walks))
            days = _days_of_month(self, day.replace(day=1))
            for one in days[bisect_left(days, day) : bisect_left(days, stop)]:
                counts[one.weekday()] += 1
            day = self.on_or_after(days[-1] + _DAY)
        return counts

    @property
    def all_walks(self) -> tuple[str, ...]:
        """All walks and `nearest_weekdays`. A month has matching days if one of them has a day in it."""
        return (*self.walks, self.nearest_weekdays) if self.nearest_weekdays else self.walks


EVERY_DAY = DayRule(("0 0 * * *",))
"""Every day. It is computed without croniter."""


class Gap(NamedTuple):
    """A local time that an expression names but no clock shows, because the clocks went forward over it.

    A schedule either fires at `occurrence_at` (`dst_gap="shift"`), or records a skip with the reason `dst_skip`.
    """

    occurrence_at: datetime
    """The instant at which the clock would have shown the local time if it had not changed; aware UTC."""
    reading: datetime
    """The skipped local time, naive."""


class ClockChoice(NamedTuple):
    """The clock-change rules of an expression that does not name all 24 hours."""

    is_shift: bool = False
    """Whether a left-out local time fires. It then fires at the instant that it has with the UTC offset before the
    change."""
    is_both: bool = False
    """Whether a local time that occurs twice fires both times. Otherwise it fires only the first time."""


SKIP_AND_FIRST = ClockChoice()
"""The default rules."""


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A parsed expression. Immutable, hashable, safe to share between threads."""

    hours: tuple[int, ...]
    """Hours of the day, sorted."""
    seconds_of_hour: tuple[int, ...]
    """Minutes and seconds as seconds within the hour, sorted."""
    days: DayRule
    """The days."""

    @property
    def is_every_hour(self) -> bool:
        """Whether it names all 24 hours. If so, it fires in every real hour, even if the clock shows an hour twice."""
        return len(self.hours) == 24

    def ascending(
        self, after: datetime, zone: ZoneInfo, choice: ClockChoice = SKIP_AND_FIRST, until: datetime | None = None
    ) -> Iterator[datetime]:
        """Yield the instants after `after` (aware UTC), in order, up to `until` if it is given."""
        begin = after.replace(microsecond=0, tzinfo=None)
        last = _END if until is None else until.replace(microsecond=0, tzinfo=None)
        is_once, shifts = self._obeyed(choice)
        for span in spans_from(zone, begin):
            if span.start > last:
                return
            start = max(begin + _SECOND, span.start) + span.offset
            if is_once:
                start = max(start, span.seen_until)
            end = min(last, span.end - _SECOND) + _SECOND
            found = self.readings(start, end + span.offset)
            if shifts and begin < span.shifted_until:
                moved = self._shifted(span, begin + _SECOND, end, choice)
                for reading, _ in groupby(merge(found, moved)):
                    yield (reading - span.offset).replace(tzinfo=UTC)
                continue
            for reading in found:
                yield (reading - span.offset).replace(tzinfo=UTC)

    def descending(
        self, until: datetime, zone: ZoneInfo, choice: ClockChoice = SKIP_AND_FIRST, after: datetime | None = None
    ) -> Iterator[datetime]:
        """Yield the instants at or before `until` (aware UTC) and, if given, later than `after`, newest first."""
        last = until.replace(microsecond=0, tzinfo=None)
        begin = _DAWN if after is None else max(after.replace(microsecond=0, tzinfo=None) + _SECOND, _DAWN)
        is_once, shifts = self._obeyed(choice)
        for span in spans_until(zone, last):
            if span.end <= begin:
                return
            start = max(begin, span.start) + span.offset
            if is_once:
                start = max(start, span.seen_until)
            end = min(last, span.end - _SECOND)
            found = self._readings_back(start, end + span.offset)
            if shifts and span.start < span.shifted_until:
                moved = self._shifted(span, begin, end + _SECOND, choice, is_back=True)
                found = (at for at, _ in groupby(merge(found, moved, reverse=True)))
            for reading in found:
                yield (reading - span.offset).replace(tzinfo=UTC)

    def count(self, after: datetime, until: datetime, zone: ZoneInfo, choice: ClockChoice = SKIP_AND_FIRST) -> int:
        """Return how many instants lie in (after, until]. Whole days are counted at once, so a long range is quick."""
        begin, last = (edge.replace(microsecond=0, tzinfo=None) for edge in (after, until))
        is_once, shifts = self._obeyed(choice)
        total = 0
        for span in spans_from(zone, begin):
            if span.start > last:
                break
            start = max(begin + _SECOND, span.start) + span.offset
            if is_once:
                start = max(start, span.seen_until)
            end = min(last, span.end - _SECOND) + span.offset
            total += self._count_readings(start, end + _SECOND) if start <= end else 0
            if shifts and begin < span.shifted_until:
                moved = self._shifted(span, begin + _SECOND, last + _SECOND, choice)
                total += sum(not self._count_readings(reading, reading + _SECOND) for reading in moved)
        return total

    def _obeyed(self, choice: ClockChoice) -> tuple[bool, bool]:
        """Return whether a reading that occurs twice fires only once, and whether a left-out reading is shifted."""
        return not (self.is_every_hour or choice.is_both), choice.is_shift and not self.is_every_hour

    def gaps(self, after: datetime, until: datetime, zone: ZoneInfo) -> Iterator[Gap]:
        """Yield the left-out readings of the expression whose `occurrence_at` is in (after, until].

        An expression of all 24 hours fires in every real hour and has no gaps.
        """
        if self.is_every_hour:
            return
        # A gap may be as wide as a day (Apia, 2011). A gap that begins a day before `after` may still have instants
        # after `after`.
        for span in spans_from(zone, max(after.replace(tzinfo=None), _DAWN) - timedelta(days=2)):
            if span.start > until.replace(tzinfo=None):
                return
            if span.seen_until >= span.local_start:
                continue
            before = span.seen_until - span.start
            for reading in self.readings(span.seen_until, span.local_start):
                occurrence_at = (reading - before).replace(tzinfo=UTC)
                if after < occurrence_at <= until:
                    yield Gap(occurrence_at, reading)

    def repeats(self, after: datetime, until: datetime, zone: ZoneInfo) -> Iterator[Gap]:
        """Yield each reading that occurs twice, with its second instant, if this instant is in (after, until].

        An expression of all 24 hours yields none, because it fires in every real hour.
        """
        if self.is_every_hour:
            return
        begin, last = (edge.replace(microsecond=0, tzinfo=None) for edge in (after, until))
        for span in spans_from(zone, begin):
            if span.start > last:
                return
            start = max(begin + _SECOND, span.start) + span.offset
            for reading in self.readings(start, min(span.seen_until, last + _SECOND + span.offset)):
                yield Gap((reading - span.offset).replace(tzinfo=UTC), reading)

    def _shifted(
        self, span: Span, start: datetime, end: datetime, choice: ClockChoice, *, is_back: bool = False
    ) -> Iterator[datetime]:
        """Yield the local times, within a span, at which left-out readings of the expression fire (`dst_gap="shift"`).

        The clock change at the start of the span left these readings out. `start` and `end` are in UTC.
        """
        del choice
        offset_before = span.offset - span.gap
        first = max(start, span.start) + offset_before
        stop = min(end, span.end, span.shifted_until) + offset_before
        # Call the methods of this class directly, because a subclass may override them.
        if is_back:
            left_out = CronExpression._readings_back(self, first, stop - _SECOND)
        else:
            left_out = CronExpression.readings(self, first, stop)
        return (reading + span.gap for reading in left_out)

    def is_named(self, reading: datetime) -> bool:
        """Return whether the expression names a reading, even if a clock change leaves the reading out."""
        second = reading.hour * 3600 + reading.minute * 60 + reading.second
        is_time = self.count_times(second + 1) > self.count_times(second)
        return is_time and self.days.count(reading.date(), reading.date() + _DAY) > 0

    def readings(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the readings in [start, end) that the expression names, even left-out readings."""
        day = self.days.on_or_after(start.date()) if start < end else None
        while day is not None:
            midnight = datetime.combine(day, time.min)
            for second in self._times_from(start - midnight if midnight < start else timedelta(0)):
                reading = midnight + timedelta(seconds=second)
                if reading >= end:
                    return
                yield reading
            day = self.days.on_or_after(day + _DAY) if midnight + _DAY < end else None

    def _readings_back(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the readings in [start, end], newest first."""
        day = self.days.on_or_before(end.date()) if start <= end else None
        while day is not None:
            midnight = datetime.combine(day, time.min)
            for second in self._times_until(min(end - midnight, _DAY - _SECOND)):
                reading = midnight + timedelta(seconds=second)
                if reading < start:
                    return
                yield reading
            day = self.days.on_or_before(day - _DAY) if midnight > start else None

    def _count_readings(self, start: datetime, end: datetime) -> int:
        """Return how many readings lie in [start, end)."""
        whole = self.days.count(start.date(), end.date()) * len(self.hours) * len(self.seconds_of_hour)
        return whole + self._count_that_day(end) - self._count_that_day(start)

    def _count_that_day(self, end: datetime) -> int:
        """Return how many readings lie between midnight and `end`."""
        if not self.days.count(end.date(), end.date() + _DAY):
            return 0
        return self.count_times(end.hour * 3600 + end.minute * 60 + end.second)

    def count_times(self, end: int) -> int:
        """Return how many times of day lie before `end`, which counts seconds from midnight."""
        hour, rest = divmod(end, 3600)
        at = bisect_left(self.hours, hour)
        is_named = at < len(self.hours) and self.hours[at] == hour
        return at * len(self.seconds_of_hour) + (bisect_left(self.seconds_of_hour, rest) if is_named else 0)

    def _times_from(self, elapsed: timedelta) -> Iterator[int]:
        hour, rest = divmod(elapsed.seconds, 3600)
        at = bisect_left(self.hours, hour)
        if at < len(self.hours) and self.hours[at] == hour:
            yield from (hour * 3600 + s for s in self.seconds_of_hour[bisect_left(self.seconds_of_hour, rest) :])
            at += 1
        yield from (h * 3600 + s for h, s in product(self.hours[at:], self.seconds_of_hour))

    def _times_until(self, elapsed: timedelta) -> Iterator[int]:
        hour, rest = divmod(elapsed.seconds, 3600)
        at = bisect_left(self.hours, hour)
        if at < len(self.hours) and self.hours[at] == hour:
            within = self.seconds_of_hour[: bisect_left(self.seconds_of_hour, rest + 1)]
            yield from (hour * 3600 + s for s in reversed(within))
        yield from (h * 3600 + s for h, s in product(self.hours[:at][::-1], self.seconds_of_hour[::-1]))


def parse_cron(text: str) -> CronExpression:
    """Parse an expression: five fields, six fields (seconds first), or an alias such as `@daily`.

    Raises InvalidCronError, which says what to write instead, for text outside the dialect and for an expression that
    does not fire within 50 years.
    """
    if not isinstance(text, str):
        raise _refusal(f"{type(text).__name__} is not text; write five fields such as '0 2 * * *'")
    return _parsed(text)


@lru_cache(maxsize=8192)
def _parsed(text: str) -> CronExpression:
    second, minute, hour, monthday, month, weekday = _fields(text)
    days = _day_rule(monthday, month, weekday)
    seconds = product(_values(_MINUTE, minute), _values(_FIELD_SECOND, second))
    parsed = CronExpression(_values(_HOUR, hour), tuple(m * 60 + s for m, s in seconds), days)
    if days.on_or_after(_EPOCH) is None:
        raise _refusal(f"{text!r} never fires within 50 years; name a day that its months have")
    return parsed


def _fields(text: str) -> list[str]:
    if not text.isascii() or len(text) > _LONGEST_TEXT:
        raise _refusal(f"only ASCII of at most {_LONGEST_TEXT} characters is accepted; write it shorter and plain")
    alias = text.strip(" \t").lower()
    if alias.startswith("@reboot"):
        raise _refusal("@reboot is refused, because a schedule has no boot; use an interval such as '@every 1h'")
    if alias.startswith("@") and alias not in ALIASES:
        raise _refusal(f"{text!r} is not an alias; write one of {', '.join(ALIASES)} or '@every 1h30m'")
    fields = re.split(r"[ \t]+", ALIASES.get(alias, text).upper().strip(" \t"))
    if fields[0].startswith(("TZ=", "CRON_TZ=")):
        raise _refusal("a TZ= prefix is refused; give the timezone in its own parameter")
    if len(fields) not in {5, 6}:
        raise _refusal(f"{text!r} has {len(fields) if fields != [''] else 0} fields; write 5, or 6 with seconds first")
    return fields if len(fields) == 6 else ["0", *fields]


def _day_rule(monthday: str, month: str, weekday: str) -> DayRule:
    months = _values(_MONTH, month)
    month_text = "*" if len(months) == 12 else ",".join(map(str, months))
    # A day field that is neither `*` nor `?` restricts the days, even if it names every day. If both fields restrict
    # the days, the expression names the days of both.
    walks, nearest, is_any_day = list[str](), "", monthday in _ANY and weekday in _ANY
    if monthday not in _ANY:
        plain, nearest = _monthdays(monthday)
        walks += [f"0 0 {','.join(sorted(plain))} {month_text} *"] if plain else []
        is_any_day = len(plain - {"L"}) == 31
    if weekday not in _ANY:
        days, special = _weekdays(weekday)
        walks += [f"0 0 * {month_text} {one}" for one in (",".join(map(str, sorted(days))), *sorted(special)) if one]
        is_any_day = is_any_day or len(days) == 7
    if is_any_day:
        return EVERY_DAY if month_text == "*" else DayRule((f"0 0 * {month_text} *",))
    return DayRule(tuple(walks), f"0 0 {nearest} {month_text} *" if nearest else None)


def _monthdays(text: str) -> tuple[set[str], str]:
    """Return the plain days, and the days with `W` as one comma-separated text."""
    plain, nearest = set[str](), set[str]()
    for item in _items(_MONTHDAY, text):
        match = _MONTHDAY_ITEM.fullmatch(item)
        if match and bool(match["last"]) != bool(match["day"]):
            day = match["last"] or str(_MONTHDAY.number(match["day"]))
            (nearest if match["nearest"] else plain).add(day)
        else:
            plain.update(map(str, _plain(_MONTHDAY, item)))
    return plain, ",".join(sorted(nearest))


def _weekdays(text: str) -> tuple[set[int], set[str]]:
    """Return the plain days, and the special days (`5#2`, `5L`) in the spelling of croniter."""
    plain, special = set[int](), set[str]()
    for item in _items(_WEEKDAY, text):
        if nth := _NTH_WEEKDAY.fullmatch(item):
            special.add(f"{_WEEKDAY.number(nth['day']) % 7}#{nth['nth']}")
        elif last := _LAST_WEEKDAY.fullmatch(item):
            special.add(f"L{_WEEKDAY.number(last['day'] or last['other']) % 7}")
        else:
            plain.update(value % 7 for value in _plain(_WEEKDAY, item))
    return plain, special


def _values(field: _Field, text: str) -> tuple[int, ...]:
    return tuple(sorted({value for item in _items(field, text) for value in _plain(field, item)}))


def _items(field: _Field, text: str) -> list[str]:
    items = text.split(",")
    if "" in items:
        raise _refusal(f"the {field.name} field {text!r} has an empty item; remove the extra comma")
    return items


def _plain(field: _Field, item: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise _refusal(_why_unreadable(field, item))
    first = field.number(match["first"]) if match["first"] else field.low
    is_open = not match["first"] or (match["step"] and not match["last"])
    last = field.number(match["last"]) if match["last"] else max(first, field.high) if is_open else first
    if first > last:
        rest = f"{field.low}-{last}" if last > field.low else f"{last}"
        raise _refusal(f"the range {item!r} runs backwards; write {first}-{max(first, field.high)},{rest}")
    step = int(match["step"] or 1)
    if step == 0:
        raise _refusal(f"{item!r} has a step of 0; write a step of at least 1")
    return range(first, last + 1, step)


def _why_unreadable(field: _Field, item: str) -> str:
    if item == "?":
        return f"'?' stands for a whole day field, not for a {field.name}; write *"
    if re.fullmatch(r"[HR](\(.*\))?(/.*)?", item):
        return f"{item!r} is refused in the {field.name} field, because it means a random value; name one"
    if item == "L":
        return f"'L' alone is refused in the {field.name} field; write 5L for the last Friday, or L as the day of month"
    return f"{item!r} is not a valid {field.name}; write a value, a range a-b, a list a,b or a step */n"


def _refusal(reason: str) -> InvalidCronError:
    return InvalidCronError("cron", reason)


@lru_cache(maxsize=16384)
def _days_of_month(rule: DayRule, first: date) -> tuple[date, ...]:
    days = {day for expression in rule.walks for day in _walk_month(expression, first)}
    if rule.nearest_weekdays:
        days.update(map(_nearest_weekday, _walk_month(rule.nearest_weekdays, first)))
    return tuple(sorted(days))


def _walk_month(expression: str, first: date) -> Iterator[date]:
    # A croniter object is mutable and not thread-safe, so each month gets a new one.
    walker = croniter(expression, datetime.combine(first - _DAY, time.min))
    day = _step(walker, forward=True)
    while day and (day.year, day.month) == (first.year, first.month):
        yield day
        day = _step(walker, forward=True)


def _months_between(day: date, month: date | None) -> int:
    """Return how many months a search examined. `month` is the month that it found, or None."""
    return abs((month.year - day.year) * 12 + month.month - day.month) if month else _MOST_MONTHS


@lru_cache(maxsize=16384)
def _month_after(rule: DayRule, first: date) -> date | None:
    last = datetime.combine(first.replace(day=calendar.monthrange(first.year, first.month)[1]), time.min)
    found = [_step(croniter(expression, last), forward=True) for expression in rule.all_walks]
    return min((day.replace(day=1) for day in found if day), default=None)


@lru_cache(maxsize=16384)
def _month_before(rule: DayRule, first: date) -> date | None:
    start = datetime.combine(first, time.min)
    found = [_step(croniter(expression, start), forward=False) for expression in rule.all_walks]
    return max((day.replace(day=1) for day in found if day), default=None)


def _step(walker: croniter, *, forward: bool) -> date | None:
    try:
        found: datetime = walker.get_next(datetime) if forward else walker.get_prev(datetime)
    except CroniterBadDateError:
        return None
    return found.date()


def _nearest_weekday(day: date) -> date:
    last = calendar.monthrange(day.year, day.month)[1]
    if day.isoweekday() == 6:
        return day - _DAY if day.day > 1 else day + 2 * _DAY
    if day.isoweekday() == 7:
        return day + _DAY if day.day < last else day - 2 * _DAY
    return day
