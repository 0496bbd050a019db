"""Day rules: which days of the calendar an expression names.

croniter walks them, over naive days only and in spellings of ours that it reads correctly
(`tests/contract/test_croniter.py`). A month is walked once and remembered.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from croniter import CroniterBadDateError, croniter

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class DayRule:
    """Which days an expression names: the union of up to a few walks that croniter makes."""

    walks: tuple[str, ...]
    """croniter expressions, each at midnight."""
    nearest_weekdays: str | None = None
    """A further walk whose days move to the nearest weekday of their month (`15W`, `LW`)."""

    def on_or_after(self, day: date) -> date | None:
        """Return the first matching day from `day` on, None when there is none within 50 years."""
        if self is EVERY_DAY:
            return day
        days = _days_of_month(self, day.replace(day=1))
        at = bisect_left(days, day)
        if at < len(days):
            return days[at]
        month = _month_after(self, day.replace(day=1))
        return _days_of_month(self, month)[0] if month else None

    def on_or_before(self, day: date) -> date | None:
        """Return the last matching day up to `day`, None when there is none within 50 years."""
        if self is EVERY_DAY:
            return day
        days = _days_of_month(self, day.replace(day=1))
        at = bisect_right(days, day)
        if at:
            return days[at - 1]
        month = _month_before(self, day.replace(day=1))
        return _days_of_month(self, month)[-1] if month else None

    def count(self, first: date, stop: date) -> int:
        """Return how many days in [first, stop) match, a month at a time."""
        if self is EVERY_DAY:
            return max((stop - first).days, 0)
        total, day = 0, self.on_or_after(first)
        while day is not None and day < stop:
            days = _days_of_month(self, day.replace(day=1))
            total += bisect_left(days, stop) - bisect_left(days, day)
            day = self.on_or_after(days[-1] + _DAY)
        return total

    @property
    def all_walks(self) -> tuple[str, ...]:
        """Every walk; each names a day in exactly the months in which the rule has one for it."""
        return (*self.walks, self.nearest_weekdays) if self.nearest_weekdays else self.walks


EVERY_DAY = DayRule(("0 0 * * *",))
"""Every day there is; it needs no walking."""


@lru_cache(maxsize=16384)
def _days_of_month(rule: DayRule, first: date) -> tuple[date, ...]:
    days = {day for expression in rule.walks for day in _walk_month(expression, first)}
    if rule.nearest_weekdays:
        days.update(map(_nearest_weekday, _walk_month(rule.nearest_weekdays, first)))
    return tuple(sorted(days))


def _walk_month(expression: str, first: date) -> Iterator[date]:
    # A walker is mutable and not thread-safe, so it never outlives the month it walks.
    walker = croniter(expression, datetime.combine(first - _DAY, time.min))
    day = _step(walker, forward=True)
    while day and (day.year, day.month) == (first.year, first.month):
        yield day
        day = _step(walker, forward=True)


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
