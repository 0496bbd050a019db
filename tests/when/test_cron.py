"""The cron dialect: the 60 checked vectors, days, times, refusals, and the bounds of the calendar."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rqsched.errors import InvalidCronError, InvalidTimezoneError
from rqsched.when.cron import ALIASES, parse_cron
from rqsched.when.spec import Cron, Spec
from rqsched.when.zones import require_timezone, tzdata_version
from tests.support.narrow import present

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "cron-vectors.json").read_text(encoding="utf-8")
)["vectors"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, start: str, count: int, timezone: str = "UTC") -> list[str]:
    ascending = Spec([Cron(expression, seconds="first")], timezone).between(at(start), at("2199-01-01"))
    return [fire.strftime("%Y-%m-%d %H:%M:%S") for fire in islice(ascending, count)]


def days(expression: str, start: str = "2026-01-01", count: int = 4) -> list[str]:
    return [fire[:10] for fire in fires(expression, start, count)]


def wanted(vector: dict[str, Any]) -> list[datetime]:
    fires_utc = vector.get("fires_utc_hourly_rule", vector["fires_utc"])
    return [datetime.fromisoformat(fire) for fire in fires_utc]


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{v['expr']} {v['tz']} {v['tag']}" for v in VECTORS])
def test_a_vector_fires_as_checked(vector: dict[str, Any]) -> None:
    cron, instant, found = (
        Spec(Cron(vector["expr"], seconds="first"), vector["tz"], dst_gap="skip"),
        datetime.fromisoformat(vector["start_utc"]),
        [],
    )
    for _ in wanted(vector):
        following = present(cron.next_after(instant))
        found.append(following)
        instant = following
    assert found == wanted(vector)
    assert all(fire.tzinfo is UTC for fire in found)


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{v['expr']} {v['tz']} {v['tag']}" for v in VECTORS])
def test_a_vector_walked_backwards_is_the_same(vector: dict[str, Any]) -> None:
    start, fires_utc = datetime.fromisoformat(vector["start_utc"]), wanted(vector)
    cron = Spec(Cron(vector["expr"], seconds="first"), vector["tz"], dst_gap="skip")
    assert cron.last_between(start, fires_utc[-1], 99) == fires_utc
    assert cron.count_between(start, fires_utc[-1]) == (len(fires_utc), False)


DAYS = {
    "LW": ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31", "2026-04-30"]),
    "W-list": ("0 0 1W,15W * *", ["2026-01-01", "2026-01-15", "2026-02-02", "2026-02-16"]),
    "W-and-plain": ("0 0 1,15W,L * *", ["2026-01-01", "2026-01-15", "2026-01-31", "2026-02-01"]),
    "31W-not-in-short-months": ("0 0 31W * *", ["2026-01-30", "2026-03-31", "2026-05-29", "2026-07-31"]),
    "30W-in-february": ("0 0 30W 2,3 *", ["2026-03-30", "2027-03-30", "2028-03-30", "2029-03-30"]),
    "L5": ("0 0 * * L5", ["2026-01-30", "2026-02-27", "2026-03-27", "2026-04-24"]),
    "5L": ("0 0 * * 5l", ["2026-01-30", "2026-02-27", "2026-03-27", "2026-04-24"]),
    "7L": ("0 0 * * 7L", ["2026-01-25", "2026-02-22", "2026-03-29", "2026-04-26"]),
    "FRI#3": ("0 0 * * fri#3", ["2026-01-16", "2026-02-20", "2026-03-20", "2026-04-17"]),
    "7#2": ("0 0 * * 7#2", ["2026-01-11", "2026-02-08", "2026-03-08", "2026-04-12"]),
    "plain-and-nth": ("0 0 * * 1,FRI#3", ["2026-01-05", "2026-01-12", "2026-01-16", "2026-01-19"]),
    "or-step": ("0 0 */10 * 1", ["2026-01-01", "2026-01-05", "2026-01-11", "2026-01-12"]),
    "or-L": ("0 0 L * 1", ["2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26"]),
    "or-W": ("0 0 15W * 6", ["2026-01-03", "2026-01-10", "2026-01-15", "2026-01-17"]),
    "or-nth": ("0 0 20 * 1#1", ["2026-01-05", "2026-01-20", "2026-02-02", "2026-02-20"]),
    "or-step-weekday": ("0 0 1 * */3", ["2026-01-01", "2026-01-03", "2026-01-04", "2026-01-07"]),
    "star-monthday": ("0 0 * * 1", ["2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26"]),
    "star-weekday": ("0 0 13 * *", ["2026-01-13", "2026-02-13", "2026-03-13", "2026-04-13"]),
    "question-monthday": ("0 0 ? * 1", ["2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26"]),
    "question-weekday": ("0 0 13 * ?", ["2026-01-13", "2026-02-13", "2026-03-13", "2026-04-13"]),
    "question-both": ("0 0 ? 2 ?", ["2026-02-01", "2026-02-02", "2026-02-03", "2026-02-04"]),
    "range-to-7": ("0 0 * * 6-7", ["2026-01-03", "2026-01-04", "2026-01-10", "2026-01-11"]),
    "equal-range": ("0 0 * 5-5 7-7", ["2026-05-03", "2026-05-10", "2026-05-17", "2026-05-24"]),
    "range-step": ("0 0 10-20/5 * *", ["2026-01-10", "2026-01-15", "2026-01-20", "2026-02-10"]),
    "value-step": ("0 0 25/3 * *", ["2026-01-25", "2026-01-28", "2026-01-31", "2026-02-25"]),
    "29-february": ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29", "2040-02-29"]),
    "fifth-monday-of-february": ("0 0 * 2 1#5", ["2044-02-29", "2072-02-29", "2112-02-29", "2140-02-29"]),
    "day-31": ("0 0 31 * *", ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31"]),
    "month-names": ("0 0 1 jan-MAR/2 *", ["2026-01-01", "2026-03-01", "2027-01-01", "2027-03-01"]),
    "every-day-by-L": ("0 0 1-30,L 2 *", ["2026-02-01", "2026-02-02", "2026-02-03", "2026-02-04"]),
}


@pytest.mark.parametrize(("expression", "expected"), DAYS.values(), ids=DAYS)
def test_days_of_the_dialect(expression: str, expected: list[str]) -> None:
    assert days(expression) == expected


NAMES_ALL = {
    "1-31 or Monday": "0 0 1-31 * MON",
    "*/1 or Monday": "0 0 */1 * 1",
    "1/1 or Monday": "0 0 1/1 * MON",
    "a list of all, or Monday": f"0 0 {','.join(map(str, range(1, 32)))} * MON",
    "the 6th or SUN-SAT": "0 0 6 * SUN-SAT",
    "the 6th or 0-6": "0 0 6 * 0-6",
    "the 13th or 0-7": "0 0 13 * 0-7",
    "the 6th or */1": "0 0 6 * */1",
    "the last or a list of all": "0 0 L * 0-3,4-6",
    "all of both": "0 0 1-31 * 0-6",
    "1-31 alone": "0 0 1-31 * *",
    "0-6 alone": "0 0 ? * 0-6",
    "1-30 and L": "0 0 1-30,L * MON,1-6,0",
}


@pytest.mark.parametrize("expression", NAMES_ALL.values(), ids=NAMES_ALL)
def test_a_day_field_that_names_all_its_days_is_restricted_and_fires_every_day(expression: str) -> None:
    year = Cron(expression).count_between(at("2025-12-31 12:00"), at("2026-12-31 12:00"))
    assert year == (365, False)


TIMES = {
    "step": ("*/25 0 * * *", ["00:00:00", "00:25:00", "00:50:00"]),
    "seconds-first": ("30 15 10 * * *", ["10:15:30", "10:15:30", "10:15:30"]),
    "seconds-step": ("*/40 59 23 * * *", ["23:59:00", "23:59:40", "23:59:00"]),
    "n/step": ("50/5 8 * * *", ["08:50:00", "08:55:00", "08:50:00"]),
    "list-of-ranges": ("0 1-2,22-23 * * *", ["01:00:00", "02:00:00", "22:00:00"]),
    "equal-range": ("0 9-9 * * *", ["09:00:00", "09:00:00", "09:00:00"]),
    "large-step": ("*/100 5 * * *", ["05:00:00", "05:00:00", "05:00:00"]),
    "leading-zeros": ("05 09 * * *", ["09:05:00", "09:05:00", "09:05:00"]),
    "tabs-and-blanks": ("\t5  9\t* * * ", ["09:05:00", "09:05:00", "09:05:00"]),
}


@pytest.mark.parametrize(("expression", "expected"), TIMES.values(), ids=TIMES)
def test_times_of_the_dialect(expression: str, expected: list[str]) -> None:
    assert [fire[11:] for fire in fires(expression, "2026-01-01", 3)] == expected


@pytest.mark.parametrize("alias", [*ALIASES, "@Daily", "@HOURLY", " @weekly\t"])
def test_an_alias_is_its_expression_in_any_case(alias: str) -> None:
    assert parse_cron(alias) == parse_cron(ALIASES[alias.strip().lower()])


REFUSED = {
    "": "0 fields",
    "   ": "0 fields",
    "* * * *": "4 fields",
    "0 0 0 * * * 2026": "7 fields",
    "60 * * * *": "write 0-59",
    "60 * * * * *": "write 0-59",
    "* 24 * * *": "write 0-23",
    "* * 0 * *": "write 1-31",
    "* * 32 * *": "write 1-31",
    "* * * 0 *": "write 1-12",
    "* * * 13 *": "write 1-12",
    "* * * * 8": "write 0-7",
    "* * * * 8#1": "write 0-7",
    "* * 0W * *": "write 1-31",
    "* * 32W * *": "write 1-31",
    "-5 * * * *": "not a valid minute",
    "1- * * * *": "not a valid minute",
    "1-2-3 * * * *": "not a valid minute",
    "*-5 * * * *": "not a valid minute",
    "1.5 * * * *": "not a valid minute",
    "*/ * * * *": "not a valid minute",
    "*/-1 * * * *": "not a valid minute",
    "*/2/3 * * * *": "not a valid minute",
    "** * * * *": "not a valid minute",
    "MON * * * *": "write 0-59",
    "* * * XYZ *": "write 1-12",
    "* * * * JAN": "write 0-7",
    "* * * JANUARY *": "not a valid month",
    "*/0 * * * *": "step of 0",
    "1-5/00 * * * *": "step of 0",
    "1,,2 * * * *": "empty item",
    ",1 * * * *": "empty item",
    "1, * * * *": "empty item",
    "0 22-2 * * *": "22-23,0-2",
    "* * * * FRI-MON": "5-6,0-1",
    "* * * * FRI-SUN": "write 5-6,0",
    "* * * NOV-FEB *": "11-12,1-2",
    "* * * * 7-2": "runs backwards",
    "* * 20-10 * *": "20-31,1-10",
    "R * * * *": "random",
    "? 0 * * *": "write *",
    "0 0 ?,5 * *": "write *",
    "0 0 * ? *": "write *",
    "0 0 * * ?/2": "not a valid day of week",
    "L * * * *": "refused",
    "0 0 * * L": "5L",
    "0 0 L-3 * *": "not a valid day of month",
    "0 0 W * *": "not a valid day of month",
    "0 0 L15 * *": "not a valid day of month",
    "0 0 1-15W * *": "not a valid day of month",
    "0 0 15W/2 * *": "not a valid day of month",
    "0 0 * * 5#0": "not a valid day of week",
    "0 0 * * 5#6": "not a valid day of week",
    "0 0 * * 5#": "not a valid day of week",
    "0 0 * * #3": "not a valid day of week",
    "0 0 * * 1-5L": "not a valid day of week",
    "0 0 5#3 * *": "not a valid day of month",
    "@reboot": "@every 1h",
    "@fortnightly": "not an alias",
    "@every": "not an alias",
    "TZ=UTC 0 0 * * *": "own parameter",
    "CRON_TZ=Asia/Tokyo 0 0 * * *": "own parameter",
    "0 0 30 2 *": "never fires",
    "0 0 31 4,6,9,11 *": "never fires",
    "0 0 30W 2 *": "never fires",
    "٣ * * * *": "ASCII",
    "\uff10 \uff10 * * *": "ASCII",
    "0\u00a00 * * *": "ASCII",
    "0 0 * * *\n": "not a valid day of week",
    "0 0 * *\n*": "4 fields",
    "0," * 130 + "0 * * * *": "255",
    "9" * 200 + " * * * *": "write 0-59",
    "every day at noon": "4 fields",
}


@pytest.mark.parametrize(("expression", "reason"), REFUSED.items(), ids=lambda text: repr(text[:30]))
def test_an_expression_outside_the_dialect_is_refused_with_its_reason(expression: str, reason: str) -> None:
    with pytest.raises(InvalidCronError) as refusal:
        Cron(expression)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["* * * * *"]], ids=repr)
def test_an_expression_that_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidCronError, match="is not text"):
        Cron(value)  # type: ignore[arg-type]


def test_an_instant_inside_a_second_is_strictly_before_the_next_fire() -> None:
    cron = Cron("* * * * * *")
    assert cron.next_after(at("2026-01-01 00:00:00.000001")) == at("2026-01-01 00:00:01")
    assert cron.next_after(at("2026-01-01 00:00:00.999999")) == at("2026-01-01 00:00:01")
    assert cron.next_after(at("2026-01-01 00:00:01")) == at("2026-01-01 00:00:02")


def test_the_calendar_ends_without_an_error() -> None:
    assert Cron("* * * * *").next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert Cron("0 0 29 2 *").next_after(at("9897-06-01")) is None
    assert Cron("0 0 1 1 *").next_after(datetime.min.replace(tzinfo=UTC)) is not None


def test_an_hour_set_of_all_24_by_any_spelling_fires_in_both_passes_of_an_overlap() -> None:
    for hours in ("*", "*/1", "0-23", "0-11,12-23"):
        count = Cron(f"0 {hours} * * *", "America/New_York").count_between(
            at("2025-11-02 04:30"), at("2025-11-02 08:30")
        )
        assert count.total == 4
    assert Cron("*/15 1 * * *", "America/New_York").count_between(at("2025-11-02"), at("2025-11-03")).total == 4


def test_an_overlap_that_straddles_midnight_keeps_utc_order() -> None:
    """St John's went from 00:01 back to 23:01 until 2010: the second pass of one day follows the first of the next."""
    fires_utc = list(Cron("0 * * * *", "America/St_Johns").between(at("2010-11-07 00:00"), at("2010-11-07 06:00")))
    assert fires_utc == sorted(fires_utc)
    assert [fire.strftime("%H:%M") for fire in fires_utc] == ["00:30", "01:30", "02:30", "03:30", "04:30", "05:30"]


GAPS = {
    "new-york": ("30 2 * * *", "America/New_York", "2026-03-07", "2026-03-10", ["2026-03-08 07:30"]),
    "seconds": (
        "0,30 0 2 * * *",
        "America/New_York",
        "2026-03-07",
        "2026-03-10",
        ["2026-03-08 07:00", "2026-03-08 07:00"],
    ),
    "midnight": ("@daily", "America/Havana", "2025-03-08", "2025-03-11", ["2025-03-09 05:00"]),
    "half-hour": ("0,30 2 * * *", "Australia/Lord_Howe", "2024-10-05", "2024-10-07", ["2024-10-05 15:30"]),
    "whole-day": ("0 9 * * *", "Pacific/Apia", "2011-12-28", "2012-01-02", ["2011-12-30 19:00"]),
    "before-it": ("59 1 * * *", "America/New_York", "2026-03-07", "2026-03-10", []),
    "after-it": ("0 3 * * *", "America/New_York", "2026-03-07", "2026-03-10", []),
    "until-is-inside": ("30 2 * * *", "America/New_York", "2026-03-07", "2026-03-08 07:30", ["2026-03-08 07:30"]),
    "after-is-outside": ("30 2 * * *", "America/New_York", "2026-03-08 07:30", "2026-03-10", []),
    "across-new-year": ("0 20 * * *", "Pacific/Kiritimati", "1995-01-01 02:00", "1995-01-02", ["1995-01-01 06:00"]),
    "at-new-year": ("0 6 * * *", "Antarctica/Casey", "1968-12-31 12:00", "1969-01-02", ["1969-01-01 06:00"]),
    "autumn": ("30 1 * * *", "America/New_York", "2025-11-01", "2025-11-04", []),
    "every-hour-has-none": ("30 * * * *", "America/New_York", "2026-03-07", "2026-03-10", []),
    "utc": ("30 2 * * *", "UTC", "2026-03-07", "2026-03-10", []),
}


@pytest.mark.parametrize(("expression", "timezone", "after", "until", "expected"), GAPS.values(), ids=GAPS)
def test_local_times_that_a_clock_change_skips_are_listed(
    expression: str, timezone: str, after: str, until: str, expected: list[str]
) -> None:
    gaps = Spec([Cron(expression, seconds="first")], timezone).gaps_between(at(after), at(until))
    assert [gap.occurrence_at.strftime("%Y-%m-%d %H:%M") for gap in gaps] == expected


def test_a_gap_tells_what_the_clock_would_have_shown() -> None:
    (gap,) = Spec("30 2 * * *", "America/New_York").gaps_between(at("2026-03-08"), at("2026-03-09"))
    assert gap.reading.isoformat() == "2026-03-08T02:30:00"
    assert gap.occurrence_at.tzinfo is UTC


@pytest.mark.parametrize(
    "name",
    ["UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Asia/Kathmandu", "US/Eastern"],
)
def test_an_area_name_is_a_timezone(name: str) -> None:
    assert require_timezone(name).key == name


BAD_TIMEZONES = [
    *("", "EST", "EST5EDT", "GMT", "CET", "Japan", "localtime", "posix/Europe/Berlin", "right/Europe/Berlin"),
    *("Etc/GMT+5", "Etc/GMT", "Etc/Zulu", "+05:00", "UTC+1", "Mars/Olympus", "../etc/passwd", "/etc/passwd"),
    *("europe/berlin", "utc", "Europe/Berlin ", "Europe/Berlin\n", "Europe", "America/New_York\x00", "Zürich/Ä"),
]


@pytest.mark.parametrize("name", [*BAD_TIMEZONES, None, 5, ["UTC"]], ids=repr)
def test_what_has_no_rules_of_daylight_saving_is_refused(name: object) -> None:
    with pytest.raises(InvalidTimezoneError, match="write"):
        require_timezone(name)  # type: ignore[arg-type]


def test_a_misspelt_timezone_is_answered_with_the_right_spelling() -> None:
    with pytest.raises(InvalidTimezoneError, match="write 'America/New_York'"):
        require_timezone("america/new_york")


def test_the_release_of_the_timezone_rules_is_known() -> None:
    assert tzdata_version().removeprefix("pypi-").startswith("20")


def test_parsing_is_done_once_per_expression() -> None:
    assert parse_cron("7 3 * * 2") is parse_cron("7 3 * * 2")


def test_a_year_of_minutes_is_a_lazy_sequence_without_repeats() -> None:
    spec = Spec([Cron("* * * * *"), Cron("*/5 * * * *")], "America/New_York")
    first_week = list(spec.between(at("2026-03-05"), at("2026-03-12")))
    assert len(first_week) == len(set(first_week)) == 7 * 24 * 60
    assert next(spec.between(at("2026-01-01"), at("9990-01-01"))) == at("2026-01-01")
    assert timedelta(minutes=1) == first_week[1] - first_week[0]


def test_an_overlap_across_the_new_year_still_fires_once() -> None:
    """São Tomé went from midnight back to 22:56:19, so 23:30 was shown again in the next year of UTC."""
    fires_utc = Cron("30 23 31 12 *", "Africa/Sao_Tome").between(at("1883-12-31"), at("1884-01-02"))
    assert [fire.isoformat() for fire in fires_utc] == ["1883-12-31T23:03:04+00:00"]
