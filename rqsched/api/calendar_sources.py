"""Where calendars come from: iCalendar files with recurrences, and public holidays. Needs the extra `calendars`.

What is read is somebody else's: it is bounded before it is expanded, and only whole days are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

from rqsched.errors import ConfigError, InvalidInputError, did_you_mean
from rqsched.spec.calendars import MAX_ENTRIES

MAX_BYTES = 5 * 1024 * 1024
"""The largest iCalendar file that is read."""
MAX_EVENTS = 20_000
"""The most events of one."""
MAX_OCCURRENCES = 50_000
"""The most days on which they may occur, all together."""
HORIZON = timedelta(days=5 * 366)
"""How far ahead recurrences are followed where no day is named."""
MAX_YEARS = 50
"""The most years of public holidays at once."""
_DAY = timedelta(days=1)
_OF_DAYS = {"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}
_OF_TIMES = {"BYHOUR", "BYMINUTE", "BYSECOND"}


class LeftOut(NamedTuple):
    """An event that a calendar cannot hold."""

    summary: str
    """What its file calls it, the first 100 characters."""
    starts: str
    """When it begins, as its file says: a date or an instant; empty where it does not say."""
    why: str
    """`a time of day`, `cancelled`, `repeats within a day` or `no start`."""


class FoundDays(NamedTuple):
    """What a calendar of others holds, as `scheduler.calendars.set` takes it."""

    exclude: tuple[str, ...]
    """Dates and ranges of dates."""
    reaches: date
    """The last day about which it says anything."""
    left_out: tuple[LeftOut, ...] = ()
    """Events that are no whole days, in the order of the file."""
    is_cut: bool = False
    """Whether recurrences go on after `reaches`."""


def read_icalendar(text: bytes, today: date, until: date | None = None) -> FoundDays:
    """Read the whole days of an iCalendar file, recurrences followed up to `until`, by default five years from today.

    What ended before last year is left out. Raises InvalidInputError for what is not iCalendar, is too large, or holds
    no whole day, and ConfigError where the extra is not installed.
    """
    if len(text) > MAX_BYTES:
        raise InvalidInputError("file", f"has {len(text)} bytes; give at most {MAX_BYTES}, or split it")
    if until is not None and not today < until <= today + 4 * HORIZON:
        raise InvalidInputError("until", f"{until} must be after today and within twenty years")
    icalendar, recurring = _installed("icalendar"), _installed("recurring_ical_events")
    try:
        parsed = icalendar.Calendar.from_ical(text)
        events = [*islice(parsed.walk("VEVENT"), MAX_EVENTS + 1)]
    except Exception as error:  # noqa: BLE001 - the parser raises of many kinds
        raise InvalidInputError("file", f"is not iCalendar ({_plain(error)}); give a file in that format") from None
    if len(events) > MAX_EVENTS:
        raise InvalidInputError("file", f"holds more than {MAX_EVENTS} events; give several files")
    whole = [event for event in events if not _left_out_for(event)]
    left_out = tuple(_told(event, why) for event in events if (why := _left_out_for(event)))
    begin, end = date(today.year - 1, 1, 1), until or today + HORIZON
    kept = icalendar.Calendar()
    for event in whole:
        kept.add_component(event)
    try:
        days = _days_of(recurring.of(kept), sum("RRULE" in one for one in whole), begin, end)
    except InvalidInputError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise InvalidInputError("file", f"cannot be followed ({_plain(error)}); correct the event") from None
    if not days:
        whys = ", ".join(sorted({one.why for one in left_out}))
        told = f"{len(left_out)} of its {len(events)} events are left out: {whys or 'none'}"
        raise InvalidInputError("file", f"holds no whole day from {begin} to {end} ({told}); give one that does")
    is_cut = any(_is_endless(event) for event in whole)
    return FoundDays(_ranges(days), end if is_cut else max(days), left_out, is_cut)


def public_holidays(country: str, subdivision: str | None, years: Iterable[int]) -> FoundDays:
    """Return the public holidays of a country, or of a subdivision of it, in some years.

    As the library `holidays` of this process knows them. Raises InvalidInputError for what it does not know, and
    ConfigError where the extra is not installed.
    """
    wanted = sorted({*islice(years, MAX_YEARS + 1)})
    if not wanted or len(wanted) > MAX_YEARS or not 1900 <= wanted[0] <= wanted[-1] <= 2100:
        raise InvalidInputError("years", f"must be 1 to {MAX_YEARS} years from 1900 to 2100")
    known = _installed("holidays")
    regions = known.list_supported_countries(include_aliases=False)
    if country not in regions:
        hint = did_you_mean(country, regions) or "; write an ISO code such as DE"
        raise InvalidInputError("country", f"{country[:64]!r} is not known{hint}")
    if subdivision is not None and subdivision not in regions[country]:
        hint = f"; those of {country} are {', '.join(regions[country])}" if regions[country] else "; leave it out"
        raise InvalidInputError("subdivision", f"{subdivision[:64]!r} is not known{hint}")
    found = known.country_holidays(country, subdiv=subdivision, years=wanted)
    days = {day for day in found if day.year in wanted}
    if not days:
        raise InvalidInputError("years", f"have no public holiday of {country} that the library knows; give others")
    return FoundDays(_ranges(days), date(wanted[-1], 12, 31))


def _installed(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed; pip install 'rqsched[calendars]' brings it.") from error


def _left_out_for(event: Any) -> str:
    """Say why an event is left out; nothing of one of whole days that is not cancelled and repeats by days at most."""
    start, rule = event.get("DTSTART"), event.get("RRULE")
    first = getattr(start, "dt", None)
    if not isinstance(first, date):
        return "no start"
    if str(event.get("STATUS", "")) == "CANCELLED":
        return "cancelled"
    if isinstance(first, datetime):
        return "a time of day"
    rules = rule if isinstance(rule, list) else [] if rule is None else [rule]
    is_by_days = ({str(one) for one in each.get("FREQ", [])} <= _OF_DAYS and not _OF_TIMES & {*each} for each in rules)
    return "" if all(is_by_days) else "repeats within a day"


def _told(event: Any, why: str) -> LeftOut:
    start = getattr(event.get("DTSTART"), "dt", None)
    return LeftOut(str(event.get("SUMMARY", ""))[:100], start.isoformat() if isinstance(start, date) else "", why)


def _is_endless(event: Any) -> bool:
    rule = event.get("RRULE")
    return rule is not None and not isinstance(rule, list) and not ("COUNT" in rule or "UNTIL" in rule)


def _days_of(events: Any, recurring: int, begin: date, end: date) -> set[date]:
    """Follow events, of which so many recur, in parts: what is followed at once is all in memory."""
    found, number = set[date](), 0
    part = timedelta(days=max(2 * MAX_OCCURRENCES // max(recurring, 1), 1))
    at = begin
    while at <= end:
        following = min(at + part, end + _DAY)
        for one in events.between(at, following):
            first = one["DTSTART"].dt
            number += first >= at or at == begin
            if number > MAX_OCCURRENCES:
                raise InvalidInputError("file", f"recurs more than {MAX_OCCURRENCES} times; give an earlier `until`")
            last = one["DTEND"].dt - _DAY if "DTEND" in one else first
            found.update(_each(max(first, begin), min(max(last, first), end)))
        at = following
    return found


def _each(first: date, last: date) -> Iterator[date]:
    return (first + number * _DAY for number in range((last - first).days + 1))


def _ranges(days: Iterable[date]) -> tuple[str, ...]:
    """Return days as texts, those in a row as one; raises InvalidInputError for more than a calendar holds."""
    runs = list[list[date]]()
    for day in sorted(days):
        if runs and day - runs[-1][-1] == _DAY:
            runs[-1][1:] = [day]
        else:
            runs.append([day])
    if len(runs) > MAX_ENTRIES:
        raise InvalidInputError("file", f"holds {len(runs)} stretches of days; give at most {MAX_ENTRIES}")
    return tuple("/".join(map(str, run)) for run in runs)


def _plain(error: Exception) -> str:
    """Return what an error says of somebody else's file in one line without controls."""
    return "".join(one if one.isprintable() else "?" for one in str(error))[:120]
