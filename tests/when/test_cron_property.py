"""Random expressions around changes of offset, against an enumerator that scans every minute and knows no croniter."""

from __future__ import annotations

import calendar
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from rqsched.errors import InvalidCronError
from rqsched.when.spec import Cron, Spec

Predicate = Callable[[date], bool]
MINUTE = timedelta(minutes=1)
DAYS_PER_WINDOW, TIMES_PER_DAYS = 24, 4

WINDOWS = [
    ("America/New_York", "2026-03-07T00:00"),
    ("America/New_York", "2025-10-31T12:00"),
    ("America/New_York", "2026-01-30T00:00"),
    ("Europe/London", "2024-03-30T00:00"),
    ("Europe/London", "2024-10-26T06:00"),
    ("Australia/Lord_Howe", "2024-10-05T00:00"),
    ("Australia/Lord_Howe", "2024-04-06T00:00"),
    ("America/Sao_Paulo", "2017-10-14T06:00"),
    ("America/Sao_Paulo", "2019-02-16T00:00"),
    ("America/Havana", "2025-11-01T00:00"),
    ("Africa/Casablanca", "2024-03-09T00:00"),
    ("Africa/Casablanca", "2024-04-13T00:00"),
    ("Asia/Tehran", "2021-03-20T12:00"),
    ("Asia/Beirut", "2024-03-30T00:00"),
    ("Africa/Cairo", "2024-04-25T00:00"),
    ("Antarctica/Troll", "2024-10-26T00:00"),
    ("Antarctica/Troll", "2024-03-30T00:00"),
    ("Pacific/Apia", "2011-12-28T12:00"),
    ("Pacific/Chatham", "2025-04-04T12:00"),
    ("America/St_Johns", "2010-11-06T12:00"),
    ("Asia/Kathmandu", "2024-02-28T00:00"),
    ("Pacific/Kiritimati", "1994-12-30T00:00"),
    ("Europe/Dublin", "2027-12-30T12:00"),
    ("UTC", "2100-02-27T00:00"),
]


@dataclass(frozen=True)
class Window:
    """Three days of a zone, minute by minute."""

    zone: str
    start: datetime

    @property
    def end(self) -> datetime:
        return self.start + timedelta(days=3)

    def shown(self) -> list[tuple[datetime, datetime]]:
        """Every minute of UTC and the clock's reading then."""
        zone = ZoneInfo(self.zone)
        minutes = (self.start + n * MINUTE for n in range(3 * 1440))
        return [(at, at.astimezone(zone)) for at in minutes]

    def never_shown(self) -> list[datetime]:
        """The readings between two neighbouring minutes that the clock jumped over."""
        readings = [local.replace(tzinfo=None) for _, local in self.shown()]
        jumps = [(before + MINUTE, after) for before, after in pairwise(readings) if after - before > MINUTE]
        return [low + n * MINUTE for low, high in jumps for n in range((high - low) // MINUTE)]


class Case(NamedTuple):
    """A random expression, and its meaning, computed without a parser."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    is_day: Predicate

    def names(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and self.is_day(local.date())


def last_day(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def weekday(day: date) -> int:
    return day.isoweekday() % 7


def nearest_weekday(target: int, day: date) -> int | None:
    """The day of the month nearest to `target` that is no weekend, by trying distances."""
    if target > last_day(day):
        return None
    candidates = [target + step for step in (0, -1, 1, -2, 2) if 1 <= target + step <= last_day(day)]
    return next(n for n in candidates if day.replace(day=n).isoweekday() <= 5)


def numbers(draw: random.Random, low: int, high: int) -> tuple[str, frozenset[int]]:
    """A plain field: `*`, a step, a list, a range, a range with a step, or an open step."""
    first, last = sorted((draw.randint(low, high), draw.randint(low, high)))
    step = draw.randint(1, 12)
    several = [draw.randint(low, high) for _ in range(3)]
    choices = [
        ("*", range(low, high + 1)),
        (f"*/{step}", range(low, high + 1, step)),
        (f"{first}", (first,)),
        (",".join(map(str, several)), several),
        (f"{first}-{last}", range(first, last + 1)),
        (f"{first}-{last}/{step}", range(first, last + 1, step)),
        (f"{first}/{step}", range(first, high + 1, step)),
    ]
    text, values = draw.choice(choices)
    return text, frozenset(values)


def monthday_item(draw: random.Random) -> tuple[str, Predicate]:
    n = draw.randint(1, 31)
    choices: list[tuple[str, Predicate]] = [
        (f"{n}", lambda day: day.day == n),
        (f"{n}W", lambda day: day.day == nearest_weekday(n, day)),
        ("L", lambda day: day.day == last_day(day)),
        ("lw", lambda day: day.day == nearest_weekday(last_day(day), day)),
    ]
    return draw.choice(choices)


def weekday_item(draw: random.Random) -> tuple[str, Predicate]:
    n, nth = draw.randint(0, 7), draw.randint(1, 5)
    name = draw.choice([str(n), ("SUN", "Mon", "tue", "WED", "thu", "Fri", "SAT", "sun")[n]])
    choices: list[tuple[str, Predicate]] = [
        (name, lambda day: weekday(day) == n % 7),
        (f"{name}#{nth}", lambda day: weekday(day) == n % 7 and (day.day + 6) // 7 == nth),
        (f"{name}L", lambda day: weekday(day) == n % 7 and day.day + 7 > last_day(day)),
        (f"L{n}", lambda day: weekday(day) == n % 7 and day.day + 7 > last_day(day)),
    ]
    return draw.choice(choices)


def union(items: list[tuple[str, Predicate]]) -> tuple[str, Predicate]:
    return ",".join(text for text, _ in items), lambda day: any(is_day(day) for _, is_day in items)


def monthdays(draw: random.Random) -> tuple[str, Predicate | None]:
    if draw.random() < 0.5:
        text, values = numbers(draw, 1, 31)
        return text, None if text == "*" else lambda day: day.day in values
    return union([monthday_item(draw) for _ in range(draw.randint(1, 3))])


def weekdays(draw: random.Random) -> tuple[str, Predicate | None]:
    if draw.random() < 0.6:
        text, values = numbers(draw, 0, 6)
        return text, None if text == "*" else lambda day: weekday(day) in values
    return union([weekday_item(draw) for _ in range(draw.randint(1, 3))])


class Days(NamedTuple):
    """The three day fields and their meaning."""

    text: str
    is_day: Predicate


def random_days(draw: random.Random, month: int) -> Days:
    monthday, by_monthday = monthdays(draw)
    weekday_, by_weekday = weekdays(draw)
    months = draw.choice(["*", f"{month}", f"{month}-12", "*/1"])

    def is_day(day: date) -> bool:
        if (months == f"{month}" and day.month != month) or (months == f"{month}-12" and day.month < month):
            return False
        restricting = [rule for rule in (by_monthday, by_weekday) if rule is not None]
        return not restricting or any(rule(day) for rule in restricting)

    return Days(f"{monthday} {months} {weekday_}", is_day)


def random_cases(draw: random.Random, month: int) -> Iterator[Case]:
    """Several times of day for each set of days, as croniter's walk of the days is what takes the time."""
    for _ in range(DAYS_PER_WINDOW):
        days = random_days(draw, month)
        for _ in range(TIMES_PER_DAYS):
            minute, minutes = numbers(draw, 0, 59)
            hour, hours = numbers(draw, 0, 23) if draw.random() < 0.7 else ("*/1", frozenset(range(24)))
            yield Case(f"{minute} {hour} {days.text}", minutes, hours, days.is_day)


def named_days(case: Case, window: Window) -> set[date]:
    around = (window.start.date() + timedelta(days=n) for n in range(-2, 6))
    return {day for day in around if case.is_day(day)}


@pytest.mark.parametrize(("zone", "start"), WINDOWS, ids=[f"{zone} {start}" for zone, start in WINDOWS])
def test_random_expressions_agree_with_a_scan_of_every_minute(zone: str, start: str) -> None:
    draw = random.Random(f"{zone} {start}")
    window = Window(zone, datetime.fromisoformat(start).replace(tzinfo=UTC))
    shown: dict[date, list[tuple[datetime, int, int, int]]] = {}
    for at, local in window.shown():
        shown.setdefault(local.date(), []).append((at, local.hour, local.minute, local.fold))
    never_shown, fired = window.never_shown(), 0
    for case in random_cases(draw, window.start.month):
        try:
            spec = Spec([Cron(case.text)], zone, dst_gap="skip")
        except InvalidCronError:
            assert "never fires" in refusal_of(case.text)
            continue
        days, is_every_hour = named_days(case, window), len(case.hours) == 24
        expected = sorted(
            at
            for day in days
            for at, hour, minute, fold in shown.get(day, ())
            if minute in case.minutes and hour in case.hours and (is_every_hour or not fold)
        )
        before = window.start - timedelta(microseconds=1)
        assert list(spec.between(window.start, window.end)) == expected, case.text
        assert spec.last_between(before, window.end - MINUTE, 5000) == expected, case.text
        gaps = [] if is_every_hour else [reading for reading in never_shown if case.names(reading)]
        assert [gap.reading for gap in spec.gaps_between(before, window.end, 5000)] == gaps, case.text
        fired += len(expected)
    assert fired > 1000


def refusal_of(text: str) -> str:
    with pytest.raises(InvalidCronError) as refusal:
        Cron(text)
    return str(refusal.value)


@pytest.mark.parametrize("seed", range(4))
def test_days_agree_with_a_scan_of_every_day_over_years(seed: int) -> None:
    draw, start = random.Random(seed), datetime(2023, 6, 1, tzinfo=UTC)
    every_day = [start + timedelta(days=n) for n in range(3 * 366)]
    for _ in range(12):
        (monthday, by_monthday), (weekday_, by_weekday) = monthdays(draw), weekdays(draw)
        rules = [rule for rule in (by_monthday, by_weekday) if rule is not None]
        spec = Spec(f"0 0 {monthday} * {weekday_}")
        expected = [day for day in every_day if not rules or any(rule(day.date()) for rule in rules)]
        end = start + timedelta(days=3 * 366)
        assert list(spec.between(start, end)) == expected, spec.primary_cron
        assert spec.last_between(start - MINUTE, end - MINUTE, 5000) == expected, spec.primary_cron
