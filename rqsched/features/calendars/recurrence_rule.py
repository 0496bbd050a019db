"""Recurrence rules of whole days (RRULE of RFC 5545): find the days of a rule within a range, in counted steps.

A rule without COUNT is evaluated only from the start of the range on, even if its first day is much earlier. Each
period and each examined day is a step, so a limit of steps also stops a rule that never matches.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

_DAY = timedelta(days=1)
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_WEEKDAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_PARTS = (
    "FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY", "BYSETPOS",
)  # fmt: skip

MAX_VALUES = 1_000
"""The maximum number of values of one part of a rule."""
Step = Callable[[], object]
"""Called for each step; raises when there are too many steps."""


class _Weekday(NamedTuple):
    """A day of the week in BYDAY."""

    number: int
    """Monday is 0."""
    nth: int
    """Its position in a month or a year, from the end if negative; 0 means every such day."""


class RecurrenceRule:
    """The days of one RRULE of an event of whole days."""

    def __init__(self, rule: Mapping[str, Any], first: date) -> None:
        """Read the rule of an event whose first day is `first`.

        Each part of the rule is a list or a single value. Raises ValueError for a part or a value that RFC 5545 does
        not have.
        """
        parts = {str(name).upper(): value if isinstance(value, list) else [value] for name, value in rule.items()}
        for name, values in parts.items():
            if name not in _PARTS:
                raise ValueError(f"{name[:32]} is not a part of a rule of whole days")
            if len(values) > MAX_VALUES:
                raise ValueError(f"{name} has more than {MAX_VALUES} values")
        self._first = first
        self._frequency = str(parts.get("FREQ", [""])[0]).upper()
        if self._frequency not in {"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}:
            raise ValueError(f"FREQ {self._frequency[:32]!r} does not repeat by days")
        self._interval = _number(parts, "INTERVAL", 1)
        if self._interval < 1:
            raise ValueError(f"INTERVAL {self._interval} is not positive")
        count = _number(parts, "COUNT", 0)
        self.count = max(count, 0) or None
        """The maximum number of days of the rule; None sets no limit."""
        until = parts.get("UNTIL", [None])[0]
        self.until: date | None = until.date() if isinstance(until, datetime) else until
        """The last day that the rule may have; None for a rule without an end."""
        self._week_start = _WEEKDAYS.index(str(parts.get("WKST", ["MO"])[0]).upper())
        self._months, self._month_days = _numbers(parts, "BYMONTH"), _numbers(parts, "BYMONTHDAY")
        self._year_days, self._weeks = _numbers(parts, "BYYEARDAY"), _numbers(parts, "BYWEEKNO")
        self._weekdays = [_weekday(str(one)) for one in parts.get("BYDAY", [])]
        self._positions = _numbers(parts, "BYSETPOS")
        self._complete()

    def _complete(self) -> None:
        """Complete the rule's missing parts from the first day."""
        if self._month_days or self._year_days or self._weeks or self._weekdays:
            return
        if self._frequency == "YEARLY":
            self._months = self._months or {self._first.month}
        if self._frequency in {"YEARLY", "MONTHLY"}:
            self._month_days = {self._first.day}
        if self._frequency == "WEEKLY":
            self._weekdays = [_Weekday(self._first.weekday(), 0)]

    def between(self, start: date, end: date, step: Step) -> Iterator[date]:
        """Yield the days of the rule from `start` to `end`, both included, in order."""
        end = min(end, self.until or end)
        left, number = self.count, 0 if self.count else self._period_of(start)
        while (days := self._days_of(number)) is not None:
            step()
            found = list[date]()
            for day in days:
                if day > end and not self._positions:
                    break
                step()
                if self._matches(day):
                    found.append(day)
            for day in (one for one in self._chosen(found) if one >= self._first):
                if day > end or left == 0:
                    return
                left = None if left is None else left - 1
                if day >= start:
                    yield day
            if self._begin_of(number) > end:
                return
            number += 1

    def _chosen(self, found: Sequence[date]) -> Iterable[date]:
        if not self._positions:
            return found
        places = {place - 1 if place > 0 else len(found) + place for place in self._positions if place}
        return [found[place] for place in sorted(places) if 0 <= place < len(found)]

    def _period_of(self, day: date) -> int:
        """Return the number of a period that contains a day or begins before it. The first period is 0."""
        first = self._first
        since = {
            "YEARLY": day.year - first.year,
            "MONTHLY": 12 * (day.year - first.year) + day.month - first.month,
            "WEEKLY": (day - first).days // 7 - 1,
            "DAILY": (day - first).days,
        }[self._frequency]
        return max(since // self._interval, 0)

    def _begin_of(self, number: int) -> date:
        """Return the first day of a period; raises OverflowError after the last year."""
        first, steps = self._first, number * self._interval
        if self._frequency == "DAILY":
            return first + steps * _DAY
        if self._frequency == "WEEKLY":
            return first - min(self._into_week(first), first.toordinal() - 1) * _DAY + 7 * steps * _DAY
        months = first.month - 1 + steps if self._frequency == "MONTHLY" else 12 * steps
        if first.year + months // 12 > date.max.year:
            raise OverflowError
        return date(first.year + months // 12, months % 12 + 1, 1)

    def _days_of(self, number: int) -> Iterable[date] | None:
        """Return the days of a period that may match, in order; None after the last year."""
        try:
            begin = self._begin_of(number)
        except OverflowError:
            return None
        if self._frequency == "DAILY":
            return (begin,)
        if self._frequency == "WEEKLY":  # positions in the first week do not count the days before the first day
            days = range(min(7, (date.max - begin).days + 1))
            return (day for day in (begin + number * _DAY for number in days) if day >= self._first)
        if self._frequency == "MONTHLY":
            return self._days_of_month(begin.year, begin.month)
        months = range(1, 13) if self._year_days or self._weeks or not self._months else sorted(self._months)
        return (day for month in months if 1 <= month <= 12 for day in self._days_of_month(begin.year, month))

    def _days_of_month(self, year: int, month: int) -> Iterator[date]:
        length = calendar.monthrange(year, month)[1]
        named = {day if day > 0 else length + 1 + day for day in self._month_days} or range(1, length + 1)
        return (date(year, month, day) for day in sorted(named) if 1 <= day <= length)

    def _matches(self, day: date) -> bool:
        length = calendar.monthrange(day.year, day.month)[1]
        in_year = _places(day, date(day.year, 1, 1), date(day.year, 12, 31)) if self._year_days else ()
        return (
            (not self._months or day.month in self._months)
            and (not self._month_days or bool({day.day, day.day - length - 1} & self._month_days))
            and (not self._year_days or bool({*in_year} & self._year_days))
            and (not self._weeks or bool({*self._week_of(day)} & self._weeks))
            and (not self._weekdays or any(self._is_weekday(day, one, length) for one in self._weekdays))
        )  # fmt: skip

    def _is_weekday(self, day: date, wanted: _Weekday, length: int) -> bool:
        if day.weekday() != wanted.number:
            return False
        if not wanted.nth or self._frequency in {"DAILY", "WEEKLY"}:
            return True
        if self._frequency == "MONTHLY" or self._months:
            place, back = day.day, day.day - length - 1
        else:
            place, back = _places(day, date(day.year, 1, 1), date(day.year, 12, 31))
        return wanted.nth in {(place - 1) // 7 + 1, -((-back - 1) // 7 + 1)}

    def _into_week(self, day: date) -> int:
        return (day.weekday() - self._week_start) % 7

    def _week_of(self, day: date) -> tuple[int, int]:
        """Return a day's week number, from the start and from the end of the year that has most of the week."""
        middle = min(day.toordinal() - self._into_week(day) + 3, date.max.toordinal())
        year = date.fromordinal(max(middle, 1)).year
        first = date(year, 1, 4).toordinal()
        first -= self._into_week(date(year, 1, 4))
        last = date(year, 12, 28).toordinal() - self._into_week(date(year, 12, 28))
        number, weeks = (middle - 3 - first) // 7 + 1, (last - first) // 7 + 1
        return number, number - weeks - 1


def _places(day: date, first: date, last: date) -> tuple[int, int]:
    """Return the position of a day in a stretch: from the start (1 is the first), and from the end (-1 is the last)."""
    return (day - first).days + 1, (day - last).days - 1


def _number(parts: Mapping[str, list[Any]], name: str, usual: int) -> int:
    return int(parts[name][0]) if parts.get(name) else usual


def _numbers(parts: Mapping[str, list[Any]], name: str) -> set[int]:
    return {int(one) for one in parts.get(name, [])}


def _weekday(text: str) -> _Weekday:
    match = _WEEKDAY.fullmatch(text.upper())
    if match is None:
        raise ValueError(f"{text[:32]!r} is not a day of the week")
    return _Weekday(_WEEKDAYS.index(match[2]), int(match[1] or 0))
