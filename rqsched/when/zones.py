"""Timezones: which names are accepted, and the spans of constant offset that make up a zone.

The rest of the package sees a zone as a sequence of `Span`s, so that daylight saving is plain arithmetic: local time
jumps forward in a gap, and steps back in an overlap. This file reads only the tzdata files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zoneinfo import TZPATH, ZoneInfo, available_timezones

from rqsched.errors import InvalidSpecError, InvalidTimezoneError

FIRST_YEAR, LAST_YEAR = 100, 9900
"""Crons fire in these years only, so that offsets and a search of 50 years stay in the range of `datetime`."""

# The shortest span between two changes of offset in tzdata is just under 4 days (Freetown, 1939). So a probe never
# passes over two changes. An overlap lasts at most a day, so it ends within its own span.
_PROBE = timedelta(days=2)
_MARGIN = timedelta(days=3)
_HOW = "write an IANA area name such as 'Europe/Berlin', or 'UTC' (abbreviations and offsets have no DST rules)"


GAPS, FOLDS = ("shift", "skip"), ("first", "both")
"""The rules for local times that a clock change leaves out, and for local times that it shows twice."""


def require_choice(name: str, value: object) -> str | None:
    """Check a `dst_gap` or `dst_fold`; None leaves it unset. Raises InvalidSpecError."""
    choices = GAPS if name == "dst_gap" else FOLDS
    if value is None or (isinstance(value, str) and value in choices):
        return value
    raise InvalidSpecError(name, f"{value!r} is not one of {', '.join(choices)}")


class Span(NamedTuple):
    """A stretch of time in which a zone's offset from UTC does not change. All instants here are naive."""

    start: datetime
    """The first UTC instant."""
    end: datetime
    """The first UTC instant after the span."""
    offset: timedelta
    """Local time minus UTC."""
    seen_until: datetime
    """The first local time that no earlier span shows. In an overlap it is later than `local_start`. In a gap it is
    earlier: no span shows the local times from `seen_until` to `local_start`."""
    gap: timedelta = timedelta(0)
    """How much local time the change before this span left out; zero if there is no gap."""
    shifted_until: datetime = datetime.min  # noqa: DTZ901 - naive UTC, as all here
    """If left-out local times are read with the offset before the change, they are the instants from `start` up to this
    UTC instant. It is `datetime.min` if there is no gap."""

    @property
    def local_start(self) -> datetime:
        """The first local time."""
        return self.start + self.offset

    @property
    def local_end(self) -> datetime:
        """The first local time after the span."""
        return self.end + self.offset


def require_timezone(name: str) -> ZoneInfo:
    """Return the zone of an IANA area name such as `Europe/Berlin`, or `UTC`.

    Raises InvalidTimezoneError for offsets, abbreviations and other names without daylight-saving rules. `zoneinfo`
    would load many of these.
    """
    if not isinstance(name, str):
        raise InvalidTimezoneError("timezone", f"{type(name).__name__} is not text; {_HOW}")
    return _zone(name)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if not _is_accepted(name):
        raise InvalidTimezoneError("timezone", f"{name[:64]!r} is refused; {_hint(name)}")
    return ZoneInfo(name)


def _is_accepted(name: str) -> bool:
    if name.startswith("Etc/"):
        return name == "Etc/UTC"
    return name == "UTC" or ("/" in name and name in known_timezones())


@lru_cache(maxsize=1)
def known_timezones() -> frozenset[str]:
    """Return the names that this machine knows; the first call reads them."""
    return frozenset(available_timezones())


def _hint(name: str) -> str:
    wanted = name.strip().casefold()
    for known in ("UTC", *sorted(known_timezones())):
        if known.casefold() == wanted and _is_accepted(known):
            return f"write {known!r}"
    return _HOW


@lru_cache(maxsize=1)
def tzdata_version() -> str:
    """Return the release of the timezone rules in use, such as `2025b`; if it changes, stored times are recomputed.

    Like `zoneinfo`, this prefers the system's files to the PyPI package. The package gives a text like `pypi-2026.6`.
    """
    for folder in map(Path, TZPATH):
        if (folder / "Etc" / "UTC").exists():
            return _release_of(folder)
    return f"pypi-{version('tzdata')}"


def _release_of(folder: Path) -> str:
    for marker in (folder / "tzdata.zi", folder / "+VERSION"):
        if marker.exists():
            with marker.open(encoding="ascii", errors="replace") as lines:
                return re.sub(r"^#?\s*(version)?\s*", "", lines.readline()).strip()
    return "system-unnumbered"


def spans_from(zone: ZoneInfo, instant: datetime) -> Iterator[Span]:
    """Yield the spans of `zone` that end after the naive UTC `instant`, in order."""
    for year in range(max(instant.year, FIRST_YEAR), LAST_YEAR + 1):
        for span in spans_of_year(zone, year):
            if span.end > instant:
                yield span


def spans_until(zone: ZoneInfo, instant: datetime) -> Iterator[Span]:
    """Yield the spans of `zone` that start at or before the naive UTC `instant`, newest first."""
    for year in range(min(instant.year, LAST_YEAR), FIRST_YEAR - 1, -1):
        for span in reversed(spans_of_year(zone, year)):
            if span.start <= instant:
                yield span


@lru_cache(maxsize=4096)
def spans_of_year(zone: ZoneInfo, year: int) -> tuple[Span, ...]:
    """Return the spans of one UTC year, cut at its first and last instant."""
    first, last = (datetime.combine(date(edge, 1, 1), time.min) for edge in (year, year + 1))
    spans, seen_until, before = list[Span](), first - 2 * _MARGIN, _offset(zone, first - _MARGIN)
    for start, end in pairwise([first - _MARGIN, *_transitions(zone, first - _MARGIN, last), last]):
        offset = _offset(zone, start)
        if end > first:
            # The edge of the year may cut a span in two. The offset does not change there, so there is no gap.
            cut = max(seen_until, first + offset)
            shifted = (offset - before, start + offset - before) if start + offset - before > max(start, first) else ()
            spans.append(Span(max(start, first), end, offset, seen_until if start >= first else cut, *shifted))
        seen_until, before = end + offset, offset
    return tuple(spans)


def _transitions(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        probe = min(start + _PROBE, end)
        if _offset(zone, probe) != _offset(zone, start):
            change = _first_change(zone, start, probe)
            if change < end:
                yield change
        start = probe


def _first_change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime:
    before, low, high = _offset(zone, start), 0, int((end - start).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        is_before = _offset(zone, start + timedelta(seconds=middle)) == before
        low, high = (middle, high) if is_before else (low, middle)
    return start + timedelta(seconds=high)


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return zone.fromutc(instant.replace(tzinfo=zone)).utcoffset() or timedelta(0)
