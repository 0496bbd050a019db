"""Exclusions: valid and invalid forms, and the occurrences around them, against a scan of every minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from rqsched.errors import InvalidSpecError
from rqsched.when.exclusion import MAX_EXCLUSIONS, require_exclusions
from rqsched.when.spec import Cron, Every, Once, Spec
from tests.support.narrow import present

MINUTE, DAY, TICK = timedelta(minutes=1), timedelta(days=1), timedelta(microseconds=1)
NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Accepted forms and their stored form.


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((), ()),
        ("2026-12-25", ("2026-12-25",)),
        (date(2026, 12, 25), ("2026-12-25",)),
        ([" 2026-12-24 / 2027-01-01 "], ("2026-12-24/2027-01-01",)),
        ([(date(2026, 12, 24), "2026-12-24")], ("2026-12-24",)),
        (["Sat, Sun", "2026-05-01"], ("2026-05-01", "Sat, Sun")),
        (["2026-05-01", "sunday,SAT", "Sat-Sun"], ("2026-05-01", "Sat, Sun")),
        (["Fri-Mon"], ("Mon, Fri-Sun",)),
        (["mon-fri 0:00-06:00"], ("Mon-Fri 00:00-06:00",)),
        (["22:00-06:00"], ("22:00-06:00",)),
        (["Mon-Sun 22:00-06:00"], ("22:00-06:00",)),
        (["Sat 12:00-24:00", "Sun 12:00-00:00"], ("Sat 12:00-24:00", "Sun 12:00-24:00")),
        (["Sat 00:00-24:00"], ("Sat",)),
        (["12:00:30-12:01"], ("12:00:30-12:01",)),
    ],
)
def test_what_is_excluded_is_kept_in_one_spelling_and_order(given: Any, kept: tuple[str, ...]) -> None:
    spec = Spec("@hourly", exclude=given)

    assert spec.exclude == kept
    assert Spec.from_json(spec.to_json()) == spec
    assert require_exclusions(kept) == kept


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("Mon, Christmas", "is not a day of the week"),
        ("25.12.2026", "is not a date, a range or a weekly window"),
        ("2026-02-30", "is not a day of the calendar"),
        ("2026-12-25T00:00", "is not a date, a range or a weekly window"),
        ("2027-01-01/2026-12-24", "write 2026-12-24/2027-01-01"),
        ("2026-12-24/", "is not a date"),
        ("0050-01-01", "is too far away"),
        ("", "is not a date, a range or a weekly window"),
        ("Sat,,Sun", "is not a day of the week"),
        ("Sat 25:00-26:00", "is not a time of day"),
        ("Sat 06:60-07:00", "is not a time of day"),
        ("Sat 06:00-06:00", "is empty"),
        ("Sat 24:00-06:00", "is empty"),
        ("Sat 06:00", "is not a date, a range or a weekly window"),
        ("Mon-Sun", "covers every minute of the week"),
        (["Mon-Fri", "Fri 00:00-24:00", "Sat, Sun"], "covers every minute of the week"),
        (["06:00-22:00", "22:00-06:00"], "covers every minute of the week"),
        (datetime(2026, 12, 25, tzinfo=UTC), "is not a date"),
        (7, "is not a list"),
        ([7], "is not a date"),
        (
            [f"{1990 + n // 300}-{n % 300 // 28 + 1:02}-{n % 28 + 1:02}" for n in range(600)],
            f"at most {MAX_EXCLUSIONS}",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_an_exclusion_is_refused_with_what_to_write(given: Any, reason: str) -> None:
    with pytest.raises(InvalidSpecError, match=reason) as refused:
        Spec("@hourly", exclude=given)
    assert refused.value.field == "exclude"


# The remaining occurrences, against a scan of every minute without stretches or jumps.


class Part(NamedTuple):
    """One exclusion as text, and its meaning, computed without a parser."""

    text: str
    takes: Callable[[datetime], bool]


def some_dates(random: Random, around: date) -> Part:
    first = around + random.randrange(-3, 8) * DAY
    last = first + random.choice([0, 0, 1, 4]) * DAY
    return Part(f"{first}/{last}" if last > first else f"{first}", lambda local: first <= local.date() <= last)


def some_window(random: Random) -> Part:
    days = random.sample(range(7), random.randrange(1, 6))
    start, end = (time(random.randrange(24), random.choice([0, 0, 30, 59])) for _ in range(2))
    if random.random() < 0.4 or start == end:
        return Part(",".join(NAMES[day] for day in days), lambda local: local.weekday() in days)

    def takes(local: datetime) -> bool:
        of_today, of_yesterday = local.weekday() in days, (local.weekday() - 1) % 7 in days
        if start < end:
            return of_today and start <= local.time() < end
        return (of_today and local.time() >= start) or (of_yesterday and local.time() < end)

    return Part(f"{', '.join(NAMES[day] for day in days)} {start:%H:%M}-{end:%H:%M}", takes)


SPECS: list[Any] = [
    "* * * * *",
    "*/30 * * * *",
    "15 1,2,3 * * *",
    "0 0 * * *",
    "30 2 * * *",
    "0 12 * * SAT",
    Every("7m", offset="3m"),
    Every("7h", anchor=utc("2020-01-01")),
    ["*/45 1-4 * * *", Every("50m", offset="0s"), Cron("0 9 * * *", "Asia/Tokyo")],
]
AROUND = [
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Europe/Berlin", "2026-12-31"),
    ("Europe/Berlin", "2026-03-29"),
    ("Australia/Lord_Howe", "2024-10-06"),
    ("Australia/Lord_Howe", "2024-04-07"),
    ("America/Sao_Paulo", "2017-10-15"),  # its midnights are skipped
    ("America/Sao_Paulo", "2019-02-17"),  # and shown twice
    ("America/Havana", "2025-11-02"),
    ("Africa/Casablanca", "2024-03-10"),
    ("Africa/Cairo", "2024-04-26"),
    ("Antarctica/Troll", "2024-10-27"),
    ("Antarctica/Troll", "2024-03-31"),
    ("Pacific/Apia", "2011-12-30"),  # a day that was not shown
    ("Pacific/Kiritimati", "1994-12-31"),
    ("Pacific/Chatham", "2025-04-06"),
    ("Africa/Monrovia", "1972-01-07"),  # 44 minutes were left out after midnight
    ("Asia/Kathmandu", "2024-02-29"),
    ("UTC", "2099-12-31"),
]


@pytest.mark.parametrize(("zone", "day"), AROUND)
def test_what_is_left_is_every_instant_whose_local_time_is_not_excluded(zone: str, day: str) -> None:
    random, clock = Random(f"{zone} {day}"), ZoneInfo(zone)
    for _ in range(24):
        parts = [some_dates(random, date.fromisoformat(day)) for _ in range(random.randrange(3))]
        parts += [some_window(random) for _ in range(random.randrange(1 if parts else 2))]
        if not parts:
            parts = [some_window(random)]
        clocks: dict[str, Any] = {
            "dst_gap": random.choice(["skip", "shift"]),
            "dst_fold": random.choice(["first", "both"]),
        }
        plain = Spec(random.choice(SPECS), zone, **clocks)
        spec = Spec(plain.members, zone, exclude=[part.text for part in parts], **clocks)
        start = utc(day) + random.randrange(-4 * 1440, 1440) * MINUTE + random.choice([timedelta(0), TICK])
        end = start + random.randrange(1, 8 * 1440) * MINUTE
        named = list(plain.between(start, end))

        def is_taken(reading: datetime, parts: list[Part] = parts) -> bool:
            return any(part.takes(reading) for part in parts)

        def is_whole_day(reading: datetime, is_taken: Callable[[datetime], bool] = is_taken) -> bool:
            midnight = datetime.combine(reading.date(), time.min)
            return all(is_taken(midnight + minute * MINUTE) for minute in range(1440))

        # An excluded whole day takes precedence over clock changes: a gap on such a day is excluded, too.
        left_out = [gap for gap in plain.gaps_between(start - TICK, end - TICK) if is_whole_day(gap.reading)]

        def is_excluded(at: datetime, is_taken: Callable[[datetime], bool] = is_taken) -> bool:
            return is_taken(at.astimezone(clock).replace(tzinfo=None))

        kept = [at for at in named if not is_excluded(at)]
        taken = sorted({*named, *(gap.occurrence_at for gap in left_out)} - {*kept})
        assert list(spec.between(start, end)) == kept, spec.describe()
        assert spec.count_between(start - TICK, end - TICK, cap=20_000) == (len(kept), False), spec.describe()
        assert spec.last_between(start - TICK, end - TICK, 20_000) == kept, spec.describe()
        assert spec.last_between(start - TICK, end - TICK, 3) == kept[-3:]
        told = spec.excluded_between(start - TICK, end - TICK, cap=20_000)
        assert (told and (told.number.total, told.first, told.last)) == (
            (len(taken), taken[0], taken[-1]) if taken else None
        ), spec.describe()
        for at in random.sample(named, min(len(named), 5)):
            following = next((one for one in kept if one > at), None)
            assert following is None or spec.next_after(at) == following
            assert (spec.excluded_by(at) is not None) == is_excluded(at)


def test_an_exclusion_holds_for_both_showings_of_a_local_time() -> None:
    spec = Spec("*/30 * * * *", "America/New_York", exclude="Sun 01:00-02:00")
    shown = [f"{at:%H:%M}" for at in spec.between(utc("2026-11-01T04:30"), utc("2026-11-01T07:31"))]
    assert shown == ["04:30", "07:00", "07:30"]  # 00:30, and 02:00 and 02:30 after the second 01:30


def test_a_local_time_that_is_never_shown_is_no_gap_on_an_excluded_day() -> None:
    free, excluded = (Spec("30 2 * * *", "America/New_York", exclude=days) for days in ((), "2026-03-08"))
    range_ = utc("2026-03-07"), utc("2026-03-09")
    assert (len(free.gaps_between(*range_)), excluded.gaps_between(*range_)) == (1, [])


@pytest.mark.parametrize("dst_gap", ["skip", "shift"])
@pytest.mark.parametrize(
    ("on_excluded", "at"), [("skip", None), ("next", "2026-03-30T00:30"), ("previous", "2026-03-28T01:30")]
)
def test_an_excluded_day_is_decided_by_the_day_that_the_expression_names_before_the_clocks(
    dst_gap: str, on_excluded: str, at: str | None
) -> None:
    spec = Spec("30 2 29 3 *", "Europe/Berlin", exclude="2026-03-29", dst_gap=dst_gap, on_excluded=on_excluded)
    march = utc("2026-03-01"), utc("2026-04-01")
    assert list(spec.between(*march)) == ([] if at is None else [utc(at)])
    assert spec.count_between(*march) == (0 if at is None else 1, False)
    assert spec.gaps_between(*march) == []  # exactly one of the two tells it
    told = spec.excluded_between(*march)
    assert (told and told.first) == (utc("2026-03-29T01:30") if at is None else None)
    if at is not None:
        assert spec.nominals_of(utc(at)) == (utc("2026-03-29T01:30"),)


def test_a_part_of_a_day_is_excluded_after_the_clocks_and_the_gap_tells_what_these_leave_out() -> None:
    spec = Spec("30 2 * * *", "Europe/Berlin", exclude="02:00-04:00", dst_gap="skip")
    night = utc("2026-03-29"), utc("2026-03-29T12:00")
    assert [gap.occurrence_at for gap in spec.gaps_between(*night)] == [utc("2026-03-29T01:30")]
    assert spec.excluded_between(*night) is None


def test_a_named_day_that_is_excluded_takes_what_the_clock_shifts_to_the_next_one() -> None:
    spec = Spec("30 23 * * *", "America/Nuuk", exclude="Sat", dst_gap="shift")  # 23:00 to 24:00 is left out
    around = utc("2024-03-30T12:00"), utc("2024-03-31T12:00")
    assert list(spec.between(*around)) == []
    assert present(spec.excluded_between(*around)).first == utc("2024-03-31T01:30")


def test_the_zone_of_the_spec_says_when_a_day_begins_for_every_member() -> None:
    spec = Spec([Cron("0 9 * * *", "Asia/Tokyo"), Every("1d", anchor=utc("2026-01-01T04:00"))], "America/New_York",
                exclude="2026-05-02")  # fmt: skip
    found = [f"{at:%d %H}" for at in spec.between(utc("2026-05-02"), utc("2026-05-04"))]
    assert found == ["02 00", "03 04"]  # 2 May in New York is from 04:00 UTC; Tokyo's 9 o'clock of 3 May is in it


# Jumps, and how far is looked.


def test_a_year_of_minutes_is_jumped_over_and_counted_without_a_step() -> None:
    spec = Spec("* * * * *", exclude="2026-01-01/2026-12-31")
    drawn = list[datetime]()

    def walk(after: datetime) -> Iterator[datetime]:
        for at in Spec("* * * * *").between(after + TICK, utc("2030-01-01")):
            drawn.append(at)
            yield at

    exclusion = present(spec.exclusion)
    assert (
        next(exclusion.ascending(walk, utc("2025-12-31T23:59"), utc("2030-01-01")))
        == utc("2027-01-01")
        == spec.next_after(drawn[0])
    )
    assert len(drawn) == 2
    assert spec.last_between(utc("2025-12-31T23:00"), utc("2026-12-31"), 1) == [utc("2025-12-31T23:59")]
    assert spec.count_between(utc("2025-01-01"), utc("2028-01-01") - TICK) == (2 * 365 * 1440 - 1, False)
    told = present(spec.excluded_between(utc("2025-12-31"), utc("2027-01-01")))
    assert (told.number.total, told.first, told.last) == (365 * 1440, utc("2026-01-01"), utc("2026-12-31T23:59"))


def test_nothing_is_found_where_all_of_ten_years_is_excluded_and_the_eleventh_is_not_looked_at() -> None:
    start = utc("2026-01-01")
    weekly = Spec("0 0 * * SAT", exclude="Sat, Sun")
    assert weekly.next_after(start) is None
    assert weekly.is_all_excluded_after(start)
    assert weekly.last_between(utc("2000-01-01"), start, 1) == []
    assert Spec("@daily", exclude="2026-01-01/2035-12-30").next_after(start) == utc("2035-12-31")
    assert Spec("@daily", exclude="2026-01-01/2036-12-31").is_all_excluded_after(start)


def test_what_has_no_further_occurrence_anyway_is_not_all_excluded() -> None:
    once = Spec(Once(utc("2026-12-25T09:00")), exclude="2026-12-25")
    assert once.is_all_excluded_after(utc("2026-12-24"))
    assert not once.is_all_excluded_after(utc("2026-12-26"))
    assert not Spec("@daily").is_all_excluded_after(utc("2026-12-24"))
    assert not Spec("@daily", end_at=utc("2027-01-01"), exclude="Sat").is_all_excluded_after(utc("2027-01-01"))


def test_a_free_interval_takes_its_next_step_after_the_stretch() -> None:
    spec = Spec(Every("45m", from_completion=True), exclude="00:00-06:00")
    assert spec.next_after(utc("2026-01-01T23:50")) == utc("2026-01-02T06:35")


def test_nothing_is_excluded_beyond_the_years_of_the_time_zones() -> None:
    spec = Spec(Every("1d", offset="0s"), exclude="Mon-Sat")
    late = datetime(9950, 1, 1, tzinfo=UTC)
    assert list(islice(spec.between(late, datetime.max.replace(tzinfo=UTC)), 3)) == [late + n * DAY for n in range(3)]


def test_jitter_has_room_up_to_the_next_occurrence_or_stretch() -> None:
    spec = Spec("0 */6 * * *", exclude="Sat, Sun")
    assert spec.free_after(utc("2026-01-02T06:00")) == timedelta(hours=6)
    assert spec.free_after(utc("2026-01-02T18:00")) == timedelta(hours=6)  # Saturday's midnight
    assert Spec("0 18 * * *", exclude="Sat, Sun").free_after(utc("2026-01-02T18:00")) == timedelta(hours=6)
    assert Spec(Once(utc("2026-01-02"))).free_after(utc("2026-01-02")) is None
