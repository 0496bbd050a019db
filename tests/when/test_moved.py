"""Moved occurrences: their target days, against a scan that tries each day, and the refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from rqsched.errors import InvalidSpecError, NewerReleaseError
from rqsched.when.moved import Moved
from rqsched.when.spec import Cron, Every, Member, Once, Spec
from tests.support.narrow import present
from tests.when.test_exclusion import AROUND, NAMES, utc

DAY, TICK = timedelta(days=1), timedelta(microseconds=1)


def days_of(spec: Spec, start: str, end: str) -> list[str]:
    return [f"{at:%m-%d %H:%M}" for at in spec.between(utc(start), utc(end))]


# Examples.


def test_payroll_on_a_holiday_is_paid_the_day_before_and_says_for_which_day() -> None:
    spec = Spec("0 9 25 * *", exclude=["2026-12-25"], on_excluded="previous")

    assert days_of(spec, "2026-11-20", "2027-01-31") == ["11-25 09:00", "12-24 09:00", "01-25 09:00"]
    assert spec.moved_from(utc("2026-12-24T09:00")) == (utc("2026-12-25T09:00"),)
    assert spec.moved_to(utc("2026-12-25T09:00")) == utc("2026-12-24T09:00")
    assert spec.moved_from(utc("2026-11-25T09:00")) == ()


def test_what_falls_on_a_weekend_runs_on_monday_once_for_all_of_its_days() -> None:
    spec = Spec("0 9 * * *", exclude=["Sat, Sun"], on_excluded="next")

    assert days_of(spec, "2026-11-20", "2026-11-25") == ["11-20 09:00", "11-23 09:00", "11-24 09:00"]
    assert spec.moved_from(utc("2026-11-23T09:00")) == (utc("2026-11-21T09:00"), utc("2026-11-22T09:00"))
    assert spec.count_between(utc("2026-01-01"), utc("2027-01-01") - TICK) == (261, False)


def test_a_day_that_is_moved_to_is_the_first_that_nothing_excludes() -> None:
    spec = Spec("0 9 25 * *", exclude=["2026-12-25/2026-12-26", "Sun", "2026-12-28"], on_excluded="next")
    assert spec.next_after(utc("2026-12-01")) == utc("2026-12-29T09:00")


def test_a_single_instant_moves_too_with_its_seconds_and_their_fraction() -> None:
    at = utc("2026-12-25T08:30:15.250000")
    spec = Spec(Once(at), "Europe/Berlin", exclude="2026-12-25/2026-12-27", on_excluded="next")

    assert spec.next_after(utc("2026-01-01")) == at + 3 * DAY
    assert spec.last_between(utc("2026-01-01"), utc("2027-01-01"), 5) == [at + 3 * DAY]
    assert spec.next_after(at + 3 * DAY) is None


def test_it_keeps_its_local_time_over_a_change_of_the_clocks() -> None:
    spec = Spec("0 9 * * SAT", "Europe/Berlin", exclude="2026-03-28", on_excluded="next")
    assert spec.next_after(utc("2026-03-27")) == utc("2026-03-29T07:00")  # 09:00 in summer time


@pytest.mark.parametrize(("gap", "moved"), [("shift", "2026-03-29T01:30"), ("skip", None)])
def test_a_time_that_the_clock_of_that_day_leaves_out_is_shifted_or_skipped(gap: str, moved: str | None) -> None:
    spec = Spec("30 2 * * SAT", "Europe/Berlin", exclude="2026-03-28", dst_gap=gap, on_excluded="next")

    assert spec.moved_to(utc("2026-03-28T01:30")) == (moved and utc(moved))
    lost = spec.excluded_between(utc("2026-03-01"), utc("2026-04-01"))
    assert (lost is None) == (moved is not None)


def test_a_time_that_was_shifted_moves_by_the_clock_time_that_its_cron_names() -> None:
    spec = Spec("30 2 29 3 *", "Europe/Berlin", exclude="2026-03-29", dst_gap="shift", on_excluded="next")
    assert spec.next_after(utc("2026-03-01")) == utc("2026-03-30T00:30")  # 02:30, not 03:30


def test_no_occurrence_is_moved_further_than_31_days_and_those_that_are_not_are_told() -> None:
    forward = Spec("0 9 * * *", exclude="2026-12-25/2027-02-15", on_excluded="next")
    back = Spec("0 9 * * *", exclude="2026-12-25/2027-02-15", on_excluded="previous")

    assert forward.moved_from(utc("2027-02-16T09:00"))[0] == utc("2027-01-16T09:00")
    assert back.moved_from(utc("2026-12-24T09:00"))[-1] == utc("2027-01-24T09:00")
    lost = [present(one.excluded_between(utc("2026-12-01"), utc("2027-03-01"))) for one in (forward, back)]
    assert [(one.number.total, one.first, one.last) for one in lost] == [
        (22, utc("2026-12-25T09:00"), utc("2027-01-15T09:00")),
        (22, utc("2027-01-25T09:00"), utc("2027-02-15T09:00")),
    ]


@pytest.mark.parametrize(
    ("direction", "window"), [("next", {"end_at": utc("2026-12-26")}), ("previous", {"start_at": utc("2026-12-25")})]
)
def test_no_occurrence_is_moved_out_of_the_window_and_those_that_would_be_are_told(
    direction: str, window: dict[str, Any]
) -> None:
    spec = Spec("0 9 25 12 *", exclude="2026-12-25", on_excluded=direction, **window)

    assert spec.moved_to(utc("2026-12-25T09:00")) is None
    assert spec.last_between(utc("2026-12-01"), utc("2027-01-01"), 9) == []
    assert present(spec.excluded_between(utc("2026-12-01"), utc("2027-01-01"))).number == (1, False)


def test_the_window_is_of_the_days_that_are_moved_to() -> None:
    spec = Spec("0 9 25 12 *", start_at=utc("2026-12-26"), exclude="2026-12-25", on_excluded="next")
    assert spec.next_after(utc("2026-01-01")) == utc("2026-12-26T09:00")


# Combinations with other options.


@pytest.mark.parametrize(
    "timing",
    ["*/15 * * * *", "0 9,17 * * *", "0 9-17 * * *", "0,30 9 * * *", "0,30 0 9 * * *", Every("1d"), "@every 24h",
     ["0 9 25 * *", Every("1d", offset="9h")], Every("1h", from_completion=True), "H/6 * * * *", "@hourly"],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("direction", ["next", "previous"])
def test_what_has_more_than_one_time_of_day_is_refused_with_what_can_be_moved(timing: Any, direction: str) -> None:
    with pytest.raises(InvalidSpecError, match="moves Once and crons with one time of day") as refused:
        Spec(timing, exclude="2026-12-25", on_excluded=direction)
    assert refused.value.field == "on_excluded"
    assert Spec(timing, exclude="2026-12-25", on_excluded="skip") == Spec(timing, exclude="2026-12-25")


@pytest.mark.parametrize("exclude", ["22:00-06:00", "Sat 12:00-24:00", ["2026-12-25", "Mon-Fri 00:00-06:00"]])
def test_part_of_a_day_is_refused_to_be_moved_over(exclude: Any) -> None:
    with pytest.raises(InvalidSpecError, match="moves over whole days only") as refused:
        Spec("0 9 25 * *", exclude=exclude, on_excluded="next")
    assert refused.value.field == "on_excluded"


@pytest.mark.parametrize("given", ["later", "NEXT", "", 7, True, ["next"]])
def test_another_word_of_on_excluded_is_refused_with_those_that_there_are(given: Any) -> None:
    with pytest.raises(InvalidSpecError, match="is not one of skip, next, previous"):
        Spec("0 9 25 * *", on_excluded=given)


@pytest.mark.parametrize("timing", ["0 9 25 * *", "30 15 9 L * *", "@daily", Once(utc("2026-12-25")), "H H * * *"])
def test_what_has_one_time_of_day_is_accepted_and_comes_back_from_json(timing: Any) -> None:
    spec = Spec(timing, "Europe/Berlin", exclude=["Sat, Sun", "Mon 00:00-24:00"], on_excluded="previous")

    assert Spec.from_json(spec.to_json()) == spec
    assert spec.to_json()["on_excluded"] == "previous"
    assert "on_excluded" not in Spec(timing, exclude="Sat").to_json()  # as releases wrote it that do not know it


def test_a_way_that_a_newer_release_knows_is_left_to_it() -> None:
    stored = Spec("0 9 25 * *", exclude="Sat", on_excluded="next").to_json() | {"on_excluded": "nearest"}
    spec = Spec.from_stored(stored)
    assert "on_excluded" in spec.newer
    with pytest.raises(NewerReleaseError):
        spec.next_after(utc("2026-01-01"))


# Against a scan that knows neither stretches nor jumps.


class Part(NamedTuple):
    """Some excluded days as text, and their dates, computed without a parser."""

    text: str
    takes: Callable[[date], bool]


def some_dates(random: Random, around: date) -> Part:
    first = around + random.randrange(-60, 60) * DAY
    last = first + random.choice([0, 0, 1, 4, 12, 29, 31, 45]) * DAY
    return Part(f"{first}/{last}" if last > first else f"{first}", lambda day: first <= day <= last)


def some_days(random: Random) -> Part:
    days = random.choice([[5, 6], [4, 5], [6], random.sample(range(7), random.randrange(1, 7))])
    return Part(",".join(NAMES[day] for day in days), lambda day: day.weekday() in days)


class Scan:
    """The instants to which the nominal instants of a spec move, each found by trying one day after the other."""

    def __init__(self, spec: Spec, parts: Iterable[Part], start: datetime, end: datetime) -> None:
        self.spec, self.parts, self.zone = spec, list(parts), ZoneInfo(spec.timezone)
        self.moved: dict[datetime, set[datetime]] = {}
        self.lost: set[datetime] = set()
        for member in spec.members:
            plain = Spec([member], spec.timezone, dst_gap=spec.dst_gap, dst_fold=spec.dst_fold)
            for nominal in sorted({*plain.between(start, end), *self.left_out(member, plain, start, end)}):
                at = self.target(member, nominal)
                if at is not None and self.admits(at):
                    self.moved.setdefault(at, set()).add(nominal)
                elif self.is_excluded(nominal) and self.admits(nominal):
                    self.lost.add(nominal)

    def left_out(self, member: Member, plain: Spec, start: datetime, end: datetime) -> set[datetime]:
        """Return the gaps on excluded days. The exclusion is decided by the day that the expression names."""
        if isinstance(member, Cron) and member.timezone not in {None, self.spec.timezone}:
            return set()
        gaps = (
            gap for gap in plain.gaps_between(start, end) if any(one.takes(gap.reading.date()) for one in self.parts)
        )
        return {gap.occurrence_at for gap in gaps if self.is_excluded(gap.occurrence_at)}

    def admits(self, at: datetime) -> bool:
        spec = self.spec
        return (spec.start_at is None or at >= spec.start_at) and (spec.end_at is None or at < spec.end_at)

    def is_excluded(self, at: datetime) -> bool:
        return any(part.takes(at.astimezone(self.zone).date()) for part in self.parts)

    def target(self, member: Member, nominal: datetime) -> datetime | None:
        if not self.is_excluded(nominal):
            return nominal
        clock = ZoneInfo(member.timezone or self.spec.timezone) if isinstance(member, Cron) else self.zone
        local = nominal.astimezone(clock)
        shown = local.time() if isinstance(member, Once) else clock_time(member)
        for days in range(1, 32):
            day = local.date() + days * (DAY if self.spec.on_excluded == "next" else -DAY)
            at = datetime.combine(day, shown, clock).astimezone(UTC)  # the first of two, or by the offset before a gap
            if not self.is_excluded(at):
                is_shown = at.astimezone(clock).time() == shown
                is_near = abs(at.astimezone(clock).date() - local.date()) <= 31 * DAY
                return at if is_near and (is_shown or self.spec.dst_gap == "shift") else None
        return None


def clock_time(member: Member) -> time:
    assert isinstance(member, Cron)
    second, minute, hour = (["0", *member.expression.split()])[-6:][:3]
    return time(int(hour), int(minute), int(second))


def some_member(random: Random, around: date) -> Member:
    hour, minute = random.choice(
        [(9, 0), (0, 0), (2, 30), (2, 15), (1, 30), (23, 30), (12, 0), (random.randrange(24), 7)]
    )
    if random.random() < 0.2:
        at = datetime.combine(around + random.randrange(-40, 40) * DAY, time(hour, minute, 5, 250_000), UTC)
        return Once(at)
    days = random.choice(["* * *", "* * *", "25 * *", "* * SAT", "* * MON-FRI", "1,15 * *", "L * *", "* * SUN#2"])
    zone = random.choice([None, None, None, "Asia/Tokyo", "America/New_York", "Europe/Berlin"])
    return Cron(f"{minute} {hour} {days}", zone)


@pytest.mark.parametrize(("zone", "day"), AROUND)
def test_what_happens_is_each_nominal_instant_on_its_day_or_the_nearest_other_one(zone: str, day: str) -> None:
    random = Random(f"moved {zone} {day}")
    for _ in range(24):
        parts = [some_dates(random, date.fromisoformat(day)) for _ in range(random.randrange(4))]
        parts += [some_days(random) for _ in range(random.randrange(2) if parts else 1)]
        members = [some_member(random, date.fromisoformat(day)) for _ in range(random.choice([1, 1, 2, 3]))]
        start = (
            utc(day) + random.randrange(-90 * 24, 30 * 24) * timedelta(hours=1) + random.choice([timedelta(0), TICK])
        )
        end = start + random.randrange(1, 120 * 24) * timedelta(hours=1)
        spec = Spec(
            members, zone, exclude=[part.text for part in parts], on_excluded=random.choice(["next", "previous"]),
            dst_gap=random.choice([None, "shift", "skip"]), dst_fold=random.choice([None, "first", "both"]),
            start_at=random.choice([None, None, start + 9 * DAY]), end_at=random.choice([None, None, end + 9 * DAY]),
        )  # fmt: skip
        scan = Scan(spec, parts, start - 40 * DAY, end + 40 * DAY)
        happens = [at for at in sorted(scan.moved) if start <= at < end]

        assert list(spec.between(start, end)) == happens, spec.to_json()
        assert spec.count_between(start - TICK, end - TICK) == (len(happens), False), spec.to_json()
        assert spec.last_between(start - TICK, end - TICK, 999) == happens, spec.to_json()
        assert spec.last_between(start - TICK, end - TICK, 3) == happens[-3:]
        for at in happens:
            assert spec.moved_from(at) == tuple(sorted(scan.moved[at] - {at})), (at, spec.to_json())
        for at in random.sample(happens, min(len(happens), 4)):
            before, after = at - TICK, next((one for one in happens if one > at), None)
            assert spec.next_after(before) == at
            assert after is None or spec.next_after(at) == after
            for edge in (start - TICK, before, at):
                expected = sum(edge < one <= end - TICK for one in happens)
                assert spec.count_between(edge, end - TICK).total == expected, (edge, spec.to_json())
        lost = sorted(at for at in scan.lost if start <= at < end)
        told = spec.excluded_between(start - TICK, end - TICK)
        assert (told and (told.number.total, told.first, told.last)) == (
            (len(lost), lost[0], lost[-1]) if lost else None
        ), spec.to_json()


@pytest.mark.parametrize("direction", ["next", "previous"])
def test_what_has_had_its_outcome_does_not_happen_and_the_others_of_its_day_do(direction: str) -> None:
    random = Random(f"settled {direction}")
    for _ in range(60):
        day = date(2026, 11, 1)
        parts = [some_dates(random, day), some_days(random)]
        members = [some_member(random, day) for _ in range(random.choice([1, 1, 2]))]
        spec = Spec(members, "America/New_York", exclude=[part.text for part in parts], on_excluded=direction)
        start, end = utc("2026-09-20"), utc("2026-12-20")
        scan = Scan(spec, parts, start - 40 * DAY, end + 40 * DAY)
        nominals = sorted({one for found in scan.moved.values() for one in found})
        settled = frozenset(random.sample(nominals, min(len(nominals), random.randrange(1, 8))))
        rest = spec.settled_at(settled)
        happens = [at for at, found in sorted(scan.moved.items()) if found - settled and start <= at < end]

        assert rest == spec
        assert list(rest.between(start, end)) == happens, (settled, spec.to_json())
        assert rest.last_between(start - TICK, end - TICK, 999) == happens
        assert rest.count_between(start - TICK, end - TICK).total == len(happens), (settled, spec.to_json())
        skipped = frozenset(random.sample(happens, min(len(happens), 2)))
        assert list(rest.without(skipped).between(start, end)) == [at for at in happens if at not in skipped]
        plain = Spec(members, "America/New_York").settled_at(settled)
        assert list(plain.between(start, end)) == [
            at for at in Spec(members, "America/New_York").between(start, end) if at not in settled
        ]


# Jumps, and how far is looked.


def test_ten_years_of_days_are_jumped_over_and_counted_without_a_step() -> None:
    spec = Spec("0 9 * * *", exclude="2026-01-01/2034-12-31", on_excluded="next")
    moved = spec.sources(utc("2026-01-01"))[0]
    assert isinstance(moved, Moved)
    asked, inner = list[datetime](), moved.source

    class Watched:
        def ascending(self, after: datetime) -> Any:
            for at in inner.ascending(after):
                asked.append(at)
                yield at

        def descending(self, until: datetime) -> Any:
            for at in inner.descending(until):
                asked.append(at)
                yield at

        def count(self, after: datetime, until: datetime) -> int:
            return inner.count(after, until)

    watched = Moved(Watched(), moved.clock_time, moved.zone, moved.exclusion, moved.is_back, moved.is_shift)
    assert next(watched.ascending(utc("2025-12-31T09:00"))) == utc("2035-01-01T09:00")
    assert next(watched.descending(utc("2035-01-01"))) == utc("2025-12-31T09:00")
    assert watched.count(utc("2025-01-01"), utc("2036-01-01") - TICK) == 2 * 365
    assert len(asked) < 50  # a stretch is cut where a year of the time zone ends


def test_nothing_is_found_where_all_of_ten_years_is_excluded_and_too_far_to_be_moved() -> None:
    start = utc("2026-01-01")
    for direction in ("next", "previous"):
        spec = Spec("@daily", exclude="2025-06-01/2036-12-31", on_excluded=direction)
        assert spec.next_after(start) is None
        assert spec.is_all_excluded_after(start)
    assert Spec("0 0 * * SAT", exclude="Sat, Sun", on_excluded="next").next_after(start) == utc("2026-01-05")


def test_jitter_has_room_up_to_the_next_occurrence_or_stretch() -> None:
    spec = Spec("0 18 * * *", exclude="Sat, Sun", on_excluded="previous")
    assert spec.free_after(utc("2026-01-02T18:00")) == timedelta(hours=6)  # Saturday's midnight
    assert spec.free_after(utc("2026-01-05T18:00")) == DAY
