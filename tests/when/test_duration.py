"""Durations are exact lengths. Other lengths are refused with a pointer to cron."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from rqsched.errors import InvalidDurationError
from rqsched.when.duration import (
    SpanLike,
    format_duration,
    format_short,
    parse_duration,
    parse_span,
    require_interval,
    to_span,
)

LENGTHS = {
    "PT30M": timedelta(minutes=30),
    "PT1H30M": timedelta(minutes=90),
    "P1D": timedelta(seconds=86_400),
    "P1DT12H": timedelta(hours=36),
    "P1W": timedelta(days=7),
    "P2W": timedelta(days=14),
    "PT1S": timedelta(seconds=1),
    "PT90S": timedelta(seconds=90),
    "PT1.5S": timedelta(seconds=1.5),
    "PT1,5S": timedelta(seconds=1.5),
    "PT1H0M0.25S": timedelta(hours=1, seconds=0.25),
    "P0DT1H": timedelta(hours=1),
    "30m": timedelta(minutes=30),
    "1h30m": timedelta(minutes=90),
    "2h": timedelta(hours=2),
    "45s": timedelta(seconds=45),
    "1h2m3s": timedelta(hours=1, minutes=2, seconds=3),
    "90m": timedelta(minutes=90),
    "1.5s": timedelta(seconds=1.5),
    "30d": timedelta(days=30),
    "1d12h": timedelta(hours=36),
    "2w": timedelta(days=14),
    "1w1d1h1m1s1ms": timedelta(days=8, hours=1, minutes=1, seconds=1, milliseconds=1),
    "1500ms": timedelta(seconds=1.5),
    "1s500ms": timedelta(seconds=1.5),
}

REFUSED = {
    "": "not a valid duration",
    "P": "not a valid duration",
    "PT": "not a valid duration",
    "P1DT": "not a valid duration",
    "T1H": "not a valid duration",
    "P1M": "cron expression",
    "P1Y": "cron expression",
    "P1Y2M3DT4H": "cron expression",
    "P0.5M": "cron expression",
    "P1W2D": "not a valid duration",
    "P1H": "not a valid duration",
    "PT1D": "not a valid duration",
    "PT1M1H": "not a valid duration",
    "PT0.5H": "not a valid duration",
    "P0.5D": "not a valid duration",
    "PT.5S": "not a valid duration",
    "pt30m": "not a valid duration",
    "-PT1H": "sign",
    "+PT1H": "sign",
    "P-1D": "sign",
    "-1h": "sign",
    "PT0S": "at least one second",
    "P0D": "at least one second",
    "0s": "at least one second",
    "PT0.999S": "at least one second",
    "1m1h": "not a valid duration",
    "1h 30m": "not a valid duration",
    "1D": "not a valid duration",
    "500ms": "at least one second",
    "1ms1s": "not a valid duration",
    "1mo": "not a valid duration",
    "1.5d": "not a valid duration",
    "1H": "not a valid duration",
    "30": "not a valid duration",
    "1:30:00": "not a valid duration",
    "PT30M\n": "not a valid duration",
    " PT30M": "not a valid duration",
    "PT٣M": "not a valid duration",
    "P" + "9" * 5000 + "D": "not a valid duration",
    "P" + "9" * 40 + "D": "longer than",
}


@pytest.mark.parametrize(("text", "length"), LENGTHS.items(), ids=LENGTHS)
def test_a_duration_is_its_exact_length(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=lambda text: text[:20] or "empty")
def test_a_text_without_an_exact_length_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidDurationError, match=reason):
        parse_duration(text)


@pytest.mark.parametrize("value", [None, 30, 1.5, timedelta(seconds=1)], ids=repr)
def test_a_duration_that_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidDurationError, match="is not a length"):
        parse_duration(value)  # type: ignore[arg-type]


def test_a_span_may_be_zero_or_under_a_second() -> None:
    assert parse_span("PT0S") == timedelta(0)
    assert parse_span("0.5s") == timedelta(seconds=0.5)


@pytest.mark.parametrize(
    "value", [timedelta(0), timedelta(seconds=-5), timedelta(microseconds=999_999), "PT0S", 0.5, True, None], ids=repr
)
def test_an_interval_is_at_least_one_second(value: object) -> None:
    with pytest.raises(InvalidDurationError):
        require_interval(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("length", "iso", "short"),
    [
        (timedelta(0), "PT0S", "0s"),
        (timedelta(minutes=90), "PT1H30M", "1h30m"),
        (timedelta(days=1), "P1D", "24h"),
        (timedelta(days=7), "P7D", "168h"),
        (timedelta(days=1, hours=2, seconds=3), "P1DT2H3S", "26h3s"),
        (timedelta(seconds=1.5), "PT1.5S", "1.5s"),
        (timedelta(microseconds=1), "PT0.000001S", "0.000001s"),
        (timedelta(seconds=100), "PT1M40S", "1m40s"),
    ],
    ids=str,
)
def test_a_length_has_one_canonical_text(length: timedelta, iso: str, short: str) -> None:
    assert (format_duration(length), format_short(length)) == (iso, short)
    assert parse_span(iso) == parse_span(short) == length


@pytest.mark.parametrize("value", [90, 90.0, "90s", "PT1M30S", timedelta(seconds=90)], ids=repr)
def test_a_length_may_be_a_timedelta_text_or_seconds(value: SpanLike) -> None:
    assert to_span(value) == require_interval(value) == timedelta(seconds=90)


@pytest.mark.parametrize("value", [None, True, [1], math.nan, math.inf, 1e40, "soon"], ids=repr)
def test_what_is_no_length_is_refused_by_the_name_of_its_field(value: Any) -> None:
    with pytest.raises(InvalidDurationError) as refusal:
        to_span(value, "jitter")
    assert refusal.value.field == "jitter"


def test_a_negative_length_has_no_text() -> None:
    with pytest.raises(InvalidDurationError, match="negative"):
        format_duration(timedelta(seconds=-1))
