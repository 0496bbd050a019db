"""Clock changes: shifted, skipped, single and double occurrences, against the clock of a year in many zones."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import islice, product
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from rqsched.when.spec import Spec

MINUTE, STEP, DAY = timedelta(minutes=1), timedelta(minutes=5), timedelta(days=1)
"""STEP divides every offset and every expression here."""
YEARS = [
    ("America/New_York", 2027), ("Europe/Dublin", 2026), ("Australia/Lord_Howe", 2026), ("Pacific/Apia", 2011),
    ("America/Sao_Paulo", 2018), ("UTC", 2026),
]  # fmt: skip
"""Zones, and the middle of each year from its July on, so that changes at the edge of a calendar year are inside."""
MORE_YEARS = [
    ("Europe/Berlin", 2026), ("Africa/Cairo", 2026), ("Antarctica/Troll", 2026), ("Asia/Kathmandu", 1985),
    ("America/Santiago", 2026), ("Africa/Casablanca", 2026), ("Pacific/Kiritimati", 1994), ("America/Havana", 2025),
    ("Asia/Gaza", 2026),
]  # fmt: skip
"""Further zones and years, which only `make test-all` checks."""
EXPRESSIONS = [
    "30 2 * * *", "0 0 * * *", "*/15 2 * * *", "0 2,3 * * *", "0 */2 * * *", "10 * * * *", "15 2 * * SUN",
    "20 0-22 * * *", "5,35 1 * * *",
]  # fmt: skip


class Shown(NamedTuple):
    """Every five minutes of a year, and the clock's reading then."""

    instants: list[datetime]
    readings: list[datetime]
    """Naive."""
    seconds: set[datetime]
    """The instants at which the clock shows a reading for the second time."""
    left_out: list[tuple[datetime, datetime]]
    """The readings that it does not show, with the instants given by the offset before."""


@lru_cache(maxsize=1)
def shown(name: str, year: int) -> Shown:
    zone, at = ZoneInfo(name), datetime(year, 7, 1, tzinfo=UTC)
    instants = [at + STEP * k for k in range(366 * 24 * 12)]
    local = [one.astimezone(zone) for one in instants]
    readings = [one.replace(tzinfo=None, fold=0) for one in local]
    seen, left_out = set(readings), list[tuple[datetime, datetime]]()
    reading = readings[0]
    while reading < readings[-1]:
        if reading not in seen:
            left_out.append((reading, reading.replace(tzinfo=zone, fold=0).astimezone(UTC)))
        reading += STEP
    return Shown(instants, readings, {one for one, at in zip(instants, local, strict=True) if at.fold}, left_out)


def names(expression: str, reading: datetime) -> bool:
    return _at(expression, reading.hour, reading.minute, reading.weekday())


@cache
def _at(expression: str, hour: int, minute: int, weekday: int) -> bool:
    minutes, hours, _, _, days = expression.split()
    return _names(minutes, minute, 60) and _names(hours, hour, 24) and (days == "*" or weekday == 6)


@lru_cache(maxsize=1)
def named(name: str, year: int, expression: str) -> list[int]:
    return [number for number, reading in enumerate(shown(name, year).readings) if names(expression, reading)]


def _names(field: str, value: int, count: int) -> bool:
    return any(value in _values(item, count) for item in field.split(","))


def _values(item: str, count: int) -> range:
    span, _, step = item.partition("/")
    first, _, last = span.partition("-")
    if span == "*":
        return range(0, count, int(step or 1))
    return range(int(first), int(last or first) + 1, int(step or 1))


def expected(name: str, number: int, expression: str, spec: Spec) -> list[datetime]:
    """Return what fires, by looking at the clock all the time."""
    year, is_every_hour = shown(name, number), names_all_hours(expression)
    instants = (year.instants[at] for at in named(name, number, expression))
    found = {at for at in instants if is_every_hour or spec.dst_fold == "both" or at not in year.seconds}
    if spec.dst_gap == "shift" and not is_every_hour:
        found |= {at for reading, at in year.left_out if names(expression, reading)}
    return sorted(at for at in found if spec.exclusion is None or not spec.exclusion.holds(at))


def names_all_hours(expression: str) -> bool:
    return all(_names(expression.split()[1], hour, 24) for hour in range(24))


@pytest.mark.parametrize(
    ("name", "year"), [*YEARS, *(pytest.param(*one, marks=pytest.mark.broad) for one in MORE_YEARS)]
)
def test_what_fires_is_what_the_clock_of_each_minute_says(name: str, year: int) -> None:
    for expression in Random(name).sample(EXPRESSIONS, 4):
        check(name, year, expression)


def check(name: str, year: int, expression: str) -> None:
    minutes, chance = shown(name, year), Random(f"{name} {expression}")
    first, last = minutes.instants[0], minutes.instants[-1] - 2 * DAY
    for gap, fold in product(["shift", "skip"], ["first", "both"]):
        exclude = chance.choice(["", "Sun 03:00-03:20"])
        spec = Spec(expression, name, exclude=exclude or (), dst_gap=gap, dst_fold=fold)
        wanted = [at for at in expected(name, year, expression, spec) if first < at <= last]

        assert list(spec.between(first + MINUTE, last + MINUTE)) == wanted
        assert spec.last_between(first, last, 1000) == wanted[-1000:]
        assert spec.count_between(first, last).total == len(wanted)
        edges = [at for _, at in minutes.left_out[::5]] + sorted(minutes.seconds)[::5]
        for at in [*edges, *(first + (last - first) * chance.random() for _ in range(3))]:
            after, until = (
                at - chance.choice([1, 0, -1, -59]) * MINUTE,
                at + timedelta(days=chance.choice([0.02, 1, 30])),
            )
            if not first <= after <= until <= last:
                continue
            low, high = bisect_right(wanted, after), bisect_right(wanted, until)
            assert spec.count_between(after, until).total == high - low
            assert spec.last_between(after, until, 3) == wanted[low:high][-3:]
            assert low == len(wanted) or spec.next_after(after) == wanted[low]
        if not exclude and not names_all_hours(expression):
            readings = [reading for reading, at in minutes.left_out if names(expression, reading) and at <= last]
            assert [one.reading for one in spec.gaps_between(first, last)] == readings[:1000]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "fires"),
    [
        ("30 2 * * *", "America/New_York", "2026-03-08T05", "07:30 06:30"),
        ("*/15 2 * * *", "America/New_York", "2026-03-08T05", "07:00 07:15 07:30 07:45 06:00"),
        ("0 2,3 * * *", "America/New_York", "2026-03-08T05", "07:00 06:00"),
        ("0 */2 * * *", "America/New_York", "2026-03-08T05", "07:00 08:00 10:00"),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12", "15:45 15:15"),
        ("0 12 * * *", "Pacific/Apia", "2011-12-30T00", "22:00 22:00"),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12", "22:00 21:00"),
        ("30 2 * * *", "Antarctica/Troll", "2026-03-28T12", "02:30 00:30"),
        ("0 20 31 12 *", "Pacific/Kiritimati", "1994-12-31T22", "06:00"),
    ],
)
def test_a_reading_that_is_left_out_fires_by_the_offset_before(
    expression: str, zone: str, after: str, fires: str
) -> None:
    spec, at = Spec(expression, zone, dst_gap="shift"), datetime.fromisoformat(after).replace(tzinfo=UTC)
    wanted = fires.split()
    found = list(islice(spec.between(at + timedelta(seconds=1), at + 4 * DAY), len(wanted)))
    assert [f"{one:%H:%M}" for one in found] == wanted
    assert spec.last_between(at, found[-1], 9) == found
    assert spec.count_between(at, found[-1]).total == len(found)


def test_an_expression_of_all_hours_knows_neither_option() -> None:
    plain = Spec("*/30 * * * *", "America/New_York")
    for at in (datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)):
        for gap, fold in product(["shift", "skip"], ["first", "both"]):
            spec = Spec("*/30 * * * *", "America/New_York", dst_gap=gap, dst_fold=fold)
            assert list(spec.between(at, at + DAY)) == list(plain.between(at, at + DAY))
            assert spec.gaps_between(at, at + DAY) == []


def test_a_spec_keeps_in_json_what_it_says_and_nothing_else() -> None:
    assert not {"dst_gap", "dst_fold"} & Spec("30 2 * * *").to_json().keys()
    spec = Spec("30 2 * * *", "Europe/Berlin", dst_gap="skip", dst_fold="both")
    assert Spec.from_json(spec.to_json()) == Spec.from_stored(spec.to_json()) == spec
    assert spec != Spec("30 2 * * *", "Europe/Berlin")
    assert Spec.from_stored(spec.to_json() | {"dst_gap": "other"}).newer == "dst_gap: 'other' is not one of shift, skip"
