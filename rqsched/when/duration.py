"""Durations: text to exact `timedelta` and back.

Two spellings are read: ISO 8601 (`PnW`, `PnDTnHnMnS`), and Go's units with days and weeks added (`1h30m45s`, `30d`). A
number means seconds. A day is exactly 86 400 s and a week seven days. Months and years have no fixed length, so they
are refused; a cron expression can name them. Other libraries are less strict: isodate reads P1M as nothing, pydantic as
30 days.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias, cast

from rqsched.errors import InvalidDurationError

SHORTEST = timedelta(seconds=1)
"""The shortest interval a schedule may have."""

SpanLike: TypeAlias = timedelta | str | float
"""The forms of a length: a timedelta, text such as `30m`, or a number of seconds."""

_LONGEST_TEXT = 64
_ISO = re.compile(
    r"P(?:(?P<weeks>[0-9]+)W|(?=[0-9T])(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?(?:(?P<seconds>[0-9]+(?:[.,][0-9]+)?)S)?)?)"
)
_UNITS = re.compile(
    r"(?=[0-9])(?:(?P<weeks>[0-9]+)w)?(?:(?P<days>[0-9]+)d)?(?:(?P<hours>[0-9]+)h)?(?:(?P<minutes>[0-9]+)m)?"
    r"(?:(?P<seconds>[0-9]+(?:\.[0-9]+)?)s)?(?:(?P<milliseconds>[0-9]+)ms)?"
)
_CALENDAR = re.compile(r"P(?:[0-9.,]+[YMWD])*[0-9.,]+[YM].*", re.IGNORECASE)
_HOW = "write units such as 30d, 10m or 1h30m, or ISO 8601 such as PT30M or P1DT12H"


def parse_duration(text: str) -> timedelta:
    """Return the exact length in `text`, at least one second.

    >>> parse_duration("PT1H30M") == parse_duration("1h30m")
    True

    Raises InvalidDurationError for anything malformed, signed, zero, shorter than a second, or calendar-dependent.
    """
    return require_interval(parse_span(text))


def parse_span(text: str) -> timedelta:
    """Return the exact length in `text`. Unlike an interval, it may be zero or shorter than a second."""
    if not isinstance(text, str):
        raise InvalidDurationError("duration", f"{type(text).__name__} is not a length; {_HOW}")
    shown = text[:_LONGEST_TEXT]
    if _CALENDAR.fullmatch(shown):
        raise InvalidDurationError(
            "duration",
            f"{shown!r} uses months or years, whose length varies; use a cron expression such as '0 0 1 * *'",
        )
    if text[:1] in {"-", "+"} or text[:2] in {"P-", "P+"}:
        raise InvalidDurationError("duration", f"{shown!r} has a sign; {_HOW}, without one")
    match = _ISO.fullmatch(text) or _UNITS.fullmatch(text)
    if match is None or len(text) > _LONGEST_TEXT:
        raise InvalidDurationError("duration", f"{shown!r} is not a valid duration; {_HOW}")
    given = [(unit, number) for unit, number in match.groupdict().items() if number is not None]
    try:
        return timedelta(**{unit: float(n.replace(",", ".")) if unit == "seconds" else int(n) for unit, n in given})
    except OverflowError as error:
        raise InvalidDurationError("duration", f"{text!r} is longer than a timedelta can hold; shorten it") from error


def require_interval(value: SpanLike) -> timedelta:
    """Return `value` as a length; raises InvalidDurationError under one second."""
    length = to_span(value)
    if length < SHORTEST:
        raise InvalidDurationError("duration", f"{length} is too short; an interval must be at least one second (PT1S)")
    return length


def to_span(value: SpanLike, field: str = "duration") -> timedelta:
    """Return a length as a timedelta: text is read by `parse_span`, a number is seconds.

    Raises InvalidDurationError, which names `field`, for anything else.
    """
    try:
        if isinstance(value, timedelta):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return timedelta(seconds=value)
        return parse_span(cast("str", value))
    except (OverflowError, ValueError) as error:
        no_length = f"{value!r} seconds is not a length; {_HOW}"
        reason = error.reason if isinstance(error, InvalidDurationError) else no_length
        raise InvalidDurationError(field, reason) from error


def is_duration(text: str) -> bool:
    """Return whether text looks like a length, valid or not: `10m`, `P1M`, `1h 30m`."""
    return re.match(r"P[0-9T]|[0-9]+(\.[0-9]+)?(w|d|h|ms?|s)", text) is not None


def format_duration(value: timedelta) -> str:
    """Return the canonical ISO 8601 text of a length that is not negative: `PT1H30M`, `P7D`, `PT0S`."""
    days, hours, minutes, seconds = _split(value)
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{seconds}S" if seconds else "")
    if not date and not time:
        return "PT0S"
    return f"P{date}T{time}" if time else f"P{date}"


def format_short(value: timedelta) -> str:
    """Return the Go-style text of a length that is not negative: `1h30m`, `168h`, `0s`."""
    days, hours, minutes, seconds = _split(value)
    hours += 24 * days
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "") + (f"{seconds}s" if seconds else "")
    return text or "0s"


def in_one_unit(value: timedelta) -> str:
    """Return a length as a whole number of one unit, the largest possible: `26h`, `90m`, `0s`.

    A length with a fraction of a second is written in ISO 8601.
    """
    if value.microseconds or not value:
        return format_duration(value) if value else "0s"
    seconds = int(value.total_seconds())
    return next(f"{seconds // size}{unit}" for size, unit in _WHOLE if seconds % size == 0)


_WHOLE = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def _split(value: timedelta) -> tuple[int, int, int, str]:
    if value < timedelta(0):
        raise InvalidDurationError("duration", f"{value} is negative; write it without a sign")
    minutes, seconds = divmod(value.seconds, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0").rstrip(".")
    return value.days, minutes // 60, minutes % 60, f"{seconds}{fraction}" if seconds or fraction else ""
