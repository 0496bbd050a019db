"""Convert the cron fields of another scheduler to an rqsched expression that fires at the same instants.

An rqsched cron fires on days that match either day field (docs/times.md). Celery and APScheduler fire on days that
match both. If no single expression fires at the same instants, the fields are refused. This module does not depend on
any scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from rqsched.errors import InvalidCronError, InvalidTimezoneError
from rqsched.kernel.decide.ids import iso_utc
from rqsched.when.cron import parse_cron
from rqsched.when.members import Cron
from rqsched.when.zones import require_timezone, spans_from

SECONDS, MINUTES, HOURS = range(60), range(60), range(24)
MONTHDAYS, MONTHS, WEEKDAYS = range(1, 32), range(1, 13), range(7)
"""The values of each field; weekday 0 is Sunday."""
WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LAST = 6
"""The value of `Position.week` that means the last such weekday of a month."""

_WEEKS = (range(1, 8), range(8, 15), range(15, 22), range(22, 29), range(29, 32))
_UTC = frozenset({"UTC", "GMT", "UCT", "Zulu", "Universal", "Greenwich"})
_SECOND, _YEAR = timedelta(seconds=1), timedelta(days=366)
_COMPARED, _MOST_COMPARED = 2 * _YEAR, 1000
_RANGE = re.compile(r"(?P<first>\w+)-(?P<last>\w+)(?:/(?P<step>[1-9]\d?))?")

Following: TypeAlias = Callable[[datetime], datetime | None]
"""A function that returns the first instant of a cron after a given instant, both in UTC; None if there is none."""


def not_compared(library: str, source: str) -> str:
    """Return the note of a source whose library is not installed here."""
    return (
        f"{library} is not installed here, so the times of cron expressions were compared only with the next times "
        f"that {source} stores. If it is installed, the times of two years are compared."
    )


def unwrapped(expression: str) -> str:
    """Return an expression in which lists replace the ranges that continue after the end of their field.

    `22-2` becomes `22-23,0-2`, and `fri-mon/2` becomes `0,5`. A range that cannot be read stays as it is. If the
    expression has seconds, they are its first field.
    """
    texts = expression.lower().split()
    if len(texts) not in {5, 6}:
        return expression
    fields = (SECONDS, MINUTES, HOURS, MONTHDAYS, MONTHS, WEEKDAYS)[-len(texts) :]
    lists = [[_unwrapped(one, field) for one in text.split(",")] for text, field in zip(texts, fields, strict=True)]
    found = [",".join(items) for items in lists]
    return expression if found == texts else " ".join(found)


def _unwrapped(item: str, field: range) -> str:
    match = _RANGE.fullmatch(item)
    if match is None:
        return item
    names = {MONTHS: MONTH_NAMES, WEEKDAYS: WEEKDAY_NAMES}.get(field, ())
    known = {**{str(value): value for value in field}, **dict(zip(names, field, strict=False))}
    known |= {"7": 7} if field == WEEKDAYS else {}
    first, last = known.get(match["first"]), known.get(match["last"])
    if first is None or last is None or first <= last:
        return item
    values = [*range(first, max(first + 1, field.stop)), *range(field.start, last + 1)][:: int(match["step"] or 1)]
    found = sorted({value % 7 for value in values} if field == WEEKDAYS else values)
    # Never return a star for a full range: if one day field is a star, only the other day field chooses days.
    return ",".join(f"{one}-{end}" if end > one else str(one) for one, end in _runs(found))


def require_same_times(
    expression: str, written: Hashable, library: Callable[[Any], Following], now: datetime, source: str
) -> None:
    """Check that an rqsched expression (seconds first) has the same instants that the source's library computes.

    `written` is the cron in the form that the library reads. The first 1 000 instants of two years are compared, and
    after these the first instant of each day. Both are read in UTC, because `ClockChanges` reports the effects of clock
    changes. Raises InvalidCronError, which names the first instant that differs.
    """
    today = datetime.combine(now.date(), time.min, UTC)
    if told := _difference(expression, written, library, today):
        text = f"{source} fires it {told}: write an expression that both read in the same way (docs/times.md)"
        raise InvalidCronError("cron", text)


@lru_cache(maxsize=4096)
def _difference(expression: str, written: Hashable, library: Callable[[Any], Following], start: datetime) -> str:
    """Return a text about the first instant that differs, or an empty text."""
    ours, theirs, at = Cron(expression, seconds="first").next_after, library(written), start - _SECOND
    for count in range(_MOST_COMPARED + _COMPARED.days):
        expected, found = theirs(at), ours(at)
        if expected != found:
            return f"next at {_told(expected)} after {iso_utc(at)}, but rqsched fires {expression!r} at {_told(found)}"
        if expected is None or expected > start + _COMPARED:
            break
        at = expected if count < _MOST_COMPARED else datetime.combine(expected.date(), time.max, UTC)
    return ""


def _told(at: datetime | None) -> str:
    return "no time" if at is None else iso_utc(at)


class Position(NamedTuple):
    """A weekday by its position in the month, such as the second Friday."""

    week: int
    """The position: 1 to 5, or LAST."""
    weekday: int
    """The weekday; 0 is Sunday."""


class CronFields(NamedTuple):
    """A cron that fires when all its fields match."""

    minutes: Collection[int]
    """Minutes of the hour."""
    hours: Collection[int]
    """Hours of the day."""
    monthdays: Collection[int]
    """Days of the month. The fields `positions` and `has_last_day` add further days."""
    months: Collection[int]
    """Months of the year."""
    weekdays: Collection[int]
    """Days of the week; 0 is Sunday. A day must match this field as well as the day of the month."""
    seconds: Collection[int] = (0,)
    """Seconds of the minute."""
    positions: Collection[Position] = ()
    """Further days, such as the second Friday."""
    has_last_day: bool = False
    """Whether the last day of the month is added to the days of the month."""

    @property
    def names_every_day(self) -> bool:
        """Whether no field restricts the days."""
        named = ((self.monthdays, MONTHDAYS), (self.months, MONTHS), (self.weekdays, WEEKDAYS))
        return all(set(values) == set(field) for values, field in named)

    def expression(self) -> str:
        """Return the rqsched expression; raises InvalidCronError if none fires at the same instants."""
        monthday, weekday = self._days()
        texts = [_text(self.minutes, MINUTES), _text(self.hours, HOURS), monthday, _text(self.months, MONTHS), weekday]
        if set(self.seconds) != {0}:
            texts.insert(0, _text(self.seconds, SECONDS))
        expression = " ".join(texts)
        parse_cron(expression)
        return expression

    def _days(self) -> tuple[str, str]:
        """Return the two day fields."""
        if set(self.weekdays) == set(WEEKDAYS):
            plain = set(self.monthdays)
            if plain == set(MONTHDAYS):
                return "*", "*"
            days = [_text(plain, MONTHDAYS)] if plain else []
            days += ["L"] if self.has_last_day else []
            return ",".join(days) or "*", ",".join(map(_position, sorted(self.positions))) or "*"
        if set(self.monthdays) == set(MONTHDAYS):
            return "*", _names(self.weekdays)
        positions = self._positions_of_both()
        if not positions:
            raise InvalidCronError("cron", "no day matches both its day of the month and its day of the week")
        return "*", ",".join(map(_position, sorted(positions)))

    def _positions_of_both(self) -> set[Position]:
        """Return the days that match both day fields, as weekdays by their position in the month.

        Raises InvalidCronError if the days of the month are not whole weeks, such as 1 to 7.
        """
        weeks = {week for week, days in enumerate(_WEEKS, 1) if set(days) <= set(self.monthdays)}
        covered = {day for week in weeks for day in _WEEKS[week - 1]}
        if self.has_last_day or covered != set(self.monthdays):
            raise InvalidCronError(
                "cron",
                "both of its day fields restrict the days, but an rqsched cron fires on days that match either field: "
                "schedule the days of the month, and let the function return on other weekdays",
            )
        own = {one for one in self.positions if one.weekday in self.weekdays}
        return own | {Position(week, weekday) for week in weeks for weekday in self.weekdays}


def zone_name(name: str) -> str:
    """Return rqsched's name of a zone; raises InvalidTimezoneError for an abbreviation or offset."""
    if name.removeprefix("Etc/") in _UTC:
        return "UTC"
    require_timezone(name)
    return name


def fixed_offset(offset: timedelta | None) -> str:
    """Return UTC for an offset of zero or None; raises InvalidTimezoneError for others, which have no clock changes."""
    if offset:
        hours = offset.total_seconds() / 3600
        raise InvalidTimezoneError("timezone", f"its zone is a fixed offset of {hours:+g} h; write an IANA area name")
    return "UTC"


class ClockChanges(NamedTuple):
    """The effect of the clock changes of a year on the times of an expression."""

    skips: int
    """The maximum number of times of the expression that one clock change skips. Two stands for two or more."""
    repeats: bool
    """Whether a time of the expression occurs twice because the clocks go back."""
    is_every_hour: bool
    """Whether the expression fires in every hour of the day."""
    go_forward: bool = False
    """Whether the clocks go forward within the year, even if no time of the expression is affected."""

    @classmethod
    def of(cls, expression: str, timezone: str, now: datetime) -> ClockChanges:
        """Return the effect of the clock changes in the year after `now`."""
        parsed, zone, end = parse_cron(expression), require_timezone(timezone), now + _YEAR
        changes = []
        for span in spans_from(zone, now.replace(tzinfo=None)):
            if span.start >= end.replace(tzinfo=None):
                break
            if span.start > now.replace(tzinfo=None):
                changes.append((span.local_start, span.seen_until))
        left_out = (len([*islice(parsed.readings(seen, start), 2)]) for start, seen in changes if seen < start)
        return cls(
            max(left_out, default=0),
            any(any(parsed.readings(start, seen)) for start, seen in changes if start < seen),
            parsed.is_every_hour,
            any(seen < start for start, seen in changes),
        )

    def keys(self, **options: str) -> dict[str, str]:
        """Return `options`. Return nothing if the clocks never go forward, or if the expression fires in every hour."""
        return options if self.go_forward and not self.is_every_hour else {}

    def told_of(self, other: str) -> Iterator[str]:
        """Yield a sentence for each difference between rqsched and another scheduler that steps through local times.

        Every scheduler that can be imported, except APScheduler, steps through local times. It shifts a local time that
        does not exist, and runs once at a local time that occurs twice.
        """
        if self.skips > 1 and not self.is_every_hour:
            yield f"When the clocks go forward over several of its times, {other} runs one of them; rqsched runs each."
        if self.repeats and self.is_every_hour:
            yield f"When the clocks go back, {other} runs nothing in the repeated hour; rqsched does."


def _position(position: Position) -> str:
    name = WEEKDAY_NAMES[position.weekday]
    return f"{name}L" if position.week == LAST else f"{name}#{position.week}"


def _names(weekdays: Iterable[int]) -> str:
    runs = [(WEEKDAY_NAMES[first], WEEKDAY_NAMES[last]) for first, last in _runs(sorted(set(weekdays)))]
    return ",".join(first if first == last else f"{first}-{last}" for first, last in runs)


def _text(values: Collection[int], field: range) -> str:
    """Return the values of a field as text: as a star, as steps, or as a list of ranges."""
    known = sorted(set(values))
    if not known:
        raise InvalidCronError("cron", "one of its fields has no values")
    if known == list(field):
        return "*"
    step = known[1] - known[0] if len(known) > 2 else 1
    if step > 1 and known == list(range(known[0], known[-1] + 1, step)):
        is_open = known[0] == field[0] and known[-1] + step > field[-1]
        return f"*/{step}" if is_open else f"{known[0]}-{known[-1]}/{step}"
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in _runs(known))


def _runs(values: list[int]) -> list[tuple[int, int]]:
    """Return the first and last value of each run of consecutive values."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], value
        else:
            runs.append((value, value))
    return runs
