"""Sources of calendars: iCalendar files with recurrences, and public holidays. Needs the extra `calendars`.

A file is untrusted: its recurrences are computed in a limited number of steps, and only whole days are imported. An
event that cannot be read is left out and reported. The other events are still read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

from rqsched.errors import ConfigError, InvalidInputError, TooMuchWorkError, did_you_mean, install
from rqsched.features.calendars.recurrence_rule import RecurrenceRule
from rqsched.when.calendars import MAX_ENTRIES
from rqsched.when.exclusion import Dates
from rqsched.when.steps import Steps

MAX_BYTES = 5 * 1024 * 1024
"""The largest iCalendar file that is read."""
MAX_EVENTS = 20_000
"""The maximum number of events of one file."""
MAX_OCCURRENCES = 50_000
"""The maximum number of days on which all events of a file together may occur."""
MAX_STEPS = 250_000
"""The maximum number of days that are examined to find the days of all events of a file."""
HORIZON = timedelta(days=5 * 366)
"""How far ahead recurrences are computed by default."""
MAX_YEARS = 50
"""The maximum number of years of public holidays at once."""
_DAY = timedelta(days=1)
_OF_DAYS = {"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}
_OF_TIMES = {"BYHOUR", "BYMINUTE", "BYSECOND"}
_READ = ("DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID", "SEQUENCE", "STATUS", "UID")
"""The properties of an event that decide about its days."""
_FOLDED = re.compile(r"\r?\n[ \t]")
_DATES = re.compile(r"(?:DTSTART|DTEND|EXDATE|RDATE|RECURRENCE-ID)[;:]", re.IGNORECASE)
_ZONE = re.compile(r';TZID=("[^"]*"|[^;:]*)', re.IGNORECASE)
_WHOLE_DAYS = re.compile(r"[0-9]{8}(,[0-9]{8})*")


class LeftOut(NamedTuple):
    """An event that a calendar cannot hold."""

    summary: str
    """The first 100 characters of its name in the file."""
    starts: str
    """The date or instant of its start, as in the file; empty without a start."""
    why: str
    """`a time of day`, `cancelled`, `repeats within a day`, `no start`, or why it cannot be read or followed."""


class FoundDays(NamedTuple):
    """The days of an external calendar, as `scheduler.calendars.set` takes them."""

    exclude: tuple[str, ...]
    """Dates and ranges of dates."""
    reaches: date
    """The last day that the calendar covers."""
    left_out: tuple[LeftOut, ...] = ()
    """Events that are not of whole days or cannot be read, in the order of the file."""
    is_cut: bool = False
    """Whether recurrences continue after `reaches`."""


def read_icalendar(text: bytes, today: date, until: date | None = None) -> FoundDays:
    """Read the whole days of an iCalendar file. Recurrences are computed up to `until`, by default for five years.

    Events that ended before last year are left out. Raises InvalidInputError for a text that is not iCalendar, is too
    large, takes too many steps, or holds no whole day. Raises ConfigError without the extra.
    """
    if len(text) > MAX_BYTES:
        raise InvalidInputError("file", f"has {len(text)} bytes; give at most {MAX_BYTES}, or split it")
    if until is not None and not today < until <= today + 4 * HORIZON:
        raise InvalidInputError("until", f"{until} must be after today and within twenty years")
    begin, end = date(today.year - 1, 1, 1), until or today + HORIZON
    events = _events_of(text)
    following = _Following(begin, end)
    why = {event.place: reason for event in events if (reason := event.left_out_for())}
    spans = list[tuple[date, date]]()
    for series in _series_of(event for event in events if event.place not in why):
        try:
            spans += following.spans_of(series)
        except InvalidInputError:
            raise
        except Exception as error:  # noqa: BLE001 - an event of an untrusted file may be wrong in any way
            why |= {event.place: f"cannot be followed ({_plain(error)})" for event in series}
    left_out = tuple(event.told(why[event.place]) for event in events if event.place in why)
    runs = _runs(spans)
    if not runs:
        whys = ", ".join(f"{one.why} ({one.starts[:10]} {_plain(one.summary)})" for one in left_out[:3])
        told = f"{len(left_out)} of its {len(events)} events are left out: {whys or 'none'}"
        raise InvalidInputError("file", f"holds no whole day from {begin} to {end} ({told}); give one that does")
    is_cut = any(event.is_endless for event in events if event.place not in why)
    return FoundDays(_texts(runs), end if is_cut else runs[-1][1], left_out, is_cut)


def public_holidays(country: str, subdivision: str | None, years: Iterable[int]) -> FoundDays:
    """Return the public holidays of a country, or of its subdivision, in some years.

    They come from the installed library `holidays`. Raises InvalidInputError for a country or subdivision that the
    library does not know, and ConfigError without the extra.
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
    return FoundDays(_texts(_runs((day, day) for day in days)), date(wanted[-1], 12, 31))


def _installed(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed: run {install('calendars')}.") from error


class _Event:
    """An event of a file."""

    def __init__(self, place: int, parsed: Any, broken: str) -> None:
        self.place = place
        """Its position in the file, from 0."""
        self.parsed = parsed
        """Its properties, as parsed by icalendar."""
        self._broken = broken
        """The error of a property that cannot be read; empty without one."""

    @property
    def first(self) -> object:
        """Its DTSTART; None without a readable one."""
        start = self.parsed.get("DTSTART")
        return None if self._broken or start is None else getattr(start, "dt", None)

    @property
    def rules(self) -> list[Any]:
        """Its RRULEs except empty ones."""
        return [rule for rule in _several(self.parsed.get("RRULE")) if rule]

    @property
    def is_endless(self) -> bool:
        """Whether its only rule has no end."""
        return len(self.rules) == 1 and not ("COUNT" in self.rules[0] or "UNTIL" in self.rules[0])

    @property
    def sequence(self) -> int:
        """The number of its revision. Among events with the same uid, the event with the highest revision counts."""
        return int(self.parsed.get("SEQUENCE", -1))

    def left_out_for(self) -> str:
        """Return why the event is left out; empty if it is not.

        An event is imported if it has whole days, is not cancelled, and does not repeat within a day.
        """
        if self._broken:
            return f"cannot be read ({self._broken})"
        first = self.first
        if not isinstance(first, date):
            return "no start"
        if str(self.parsed.get("STATUS", "")) == "CANCELLED":
            return "cancelled"
        if isinstance(first, datetime):
            return "a time of day"
        by_days = (
            {str(one) for one in each.get("FREQ", [])} <= _OF_DAYS and not _OF_TIMES & {*each} for each in self.rules
        )
        return "" if all(by_days) else "repeats within a day"

    def told(self, why: str) -> LeftOut:
        """Return the LeftOut of the event."""
        first = self.first
        summary = str(self.parsed.get("SUMMARY", ""))[:100]
        return LeftOut(summary, first.isoformat() if isinstance(first, date) else "", why)

    def span(self) -> tuple[date, date]:
        """Return its first day and the day after its last. Raises ValueError if it ends within a day."""
        first: date = self.parsed["DTSTART"].dt
        end, length = self.parsed.get("DTEND"), self.parsed.get("DURATION")
        if end is not None:
            after = end.dt
        elif length is not None:
            if length.dt % _DAY:
                raise ValueError("its DURATION is not of whole days")
            after = first + length.dt
        else:
            after = first + _DAY
        if isinstance(after, datetime):
            raise ValueError("its DTEND is a time of day")  # noqa: TRY004 - of a file, no argument of ours
        return min(first, after), max(first, after)


def _events_of(text: bytes) -> list[_Event]:
    """Read the events of a file separately; raises InvalidInputError for a text that is not iCalendar."""
    icalendar = _installed("icalendar")
    try:
        whole = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError("file", f"is not iCalendar ({error.reason}); give a file in that format") from None
    found, block = list[_Event](), None
    is_open = is_calendar = False
    for line in _FOLDED.sub("", whole).splitlines():
        word = line.strip().upper()
        is_open = (is_open or word == "BEGIN:VCALENDAR") and word != "END:VCALENDAR"
        is_calendar = is_calendar or word in {"BEGIN:VCALENDAR", "BEGIN:VEVENT"}
        if word == "BEGIN:VEVENT" or (word == "END:VCALENDAR" and block):
            if block:
                found.append(_event_of(icalendar, len(found), [*block, "END:VEVENT"], "it has no END:VEVENT"))
            block = [line] if word == "BEGIN:VEVENT" else None
        elif block is not None:
            block.append(line)
            if word == "END:VEVENT":
                found.append(_event_of(icalendar, len(found), block))
                block = None
        if len(found) > MAX_EVENTS:
            raise InvalidInputError("file", f"holds more than {MAX_EVENTS} events; give several files")
    if not is_calendar or is_open or block:
        told = "its end is missing" if is_calendar else "it has no BEGIN:VCALENDAR"
        raise InvalidInputError("file", f"is not iCalendar ({told}); give a file in that format")
    return found


def _event_of(icalendar: Any, place: int, lines: Sequence[str], broken: str = "") -> _Event:
    try:
        parsed = icalendar.Event.from_ical("\r\n".join(_without_zone(line) for line in lines) + "\r\n")
    except Exception as error:  # noqa: BLE001 - the parser raises of many kinds
        return _Event(place, icalendar.Event(), broken or _plain(error))
    for name, told in parsed.errors:
        if name in _READ or (name is None and any(f"'{one}" in str(told) for one in _READ)):
            broken = broken or f"{name or 'a line'}: {_plain(told)}"
    return _Event(place, parsed, broken)


def _without_zone(line: str) -> str:
    """Return a line about whole days without a time zone. Some files add one, but a whole day has none (RFC 5545)."""
    if not _DATES.match(line):
        return line
    head, _, value = line.rpartition(":")
    return f"{_ZONE.sub('', head)}:{value}" if _WHOLE_DAYS.fullmatch(value.strip()) else line


def _series_of(events: Iterable[_Event]) -> Iterable[list[_Event]]:
    """Return the events grouped by uid. An event without a uid is a separate group."""
    found = defaultdict[object, list[_Event]](list)
    for event in events:
        found[str(event.parsed["UID"]) if "UID" in event.parsed else event.place].append(event)
    return found.values()


class _Following:
    """Computes the occurrences of a file's events within a range, within limits for the whole file."""

    def __init__(self, begin: date, end: date) -> None:
        self._begin, self._end = begin, end
        self._steps = Steps(MAX_STEPS)
        self._days = 0
        self._event = ""
        """The name of the event whose occurrences are computed now."""

    def _step(self) -> None:
        try:
            self._steps.spend()
        except TooMuchWorkError:
            told = f"takes more than {MAX_STEPS} steps to follow, the last of them for {self._event}"
            raise InvalidInputError("file", f"{told}; write its RRULE in another way, or remove that event") from None

    def spans_of(self, series: Sequence[_Event]) -> list[tuple[date, date]]:
        """Return the first and the last day of each occurrence within the range, for the events that share a uid.

        An event with a RECURRENCE-ID replaces the occurrence of that id. With RANGE=THISANDFUTURE it also replaces the
        later occurrences.
        """
        core, instead = None, dict[date, _Event]()
        later = set[date]()
        for event in series:
            replaced = event.parsed.get("RECURRENCE-ID")
            if replaced is None:
                core = event if core is None or event.sequence > core.sequence else core
                continue
            at = _day(replaced.dt)
            if at not in instead or event.sequence > instead[at].sequence:
                instead[at] = event
            if replaced.params.get("RANGE") == "THISANDFUTURE":
                later.add(at)
        left_out = set[date]()
        found = list[tuple[date, date]]()
        if core is not None:
            left_out = {*self._listed(core, "EXDATE")}
            changes = sorted(later)
            # First the days of the event itself, then the days of each event that replaces an occurrence and all later
            # ones.
            lasts = [(core.span()[0], *core.span()), *((at, *instead[at].span()) for at in changes)]
            for start in self._starts_of(core, lasts):
                if start not in left_out and start not in instead:
                    at, first, after = lasts[bisect_left(changes, start)]
                    begin = start + (first - at)
                    found.append((begin, _later(begin, after - first)))
        found += [event.span() for at, event in instead.items() if at not in left_out]
        clipped = ((max(first, self._begin), min(max(after - _DAY, first), self._end)) for first, after in found)
        return [(first, last) for first, last in clipped if first <= last]

    def _starts_of(self, core: _Event, lasts: Sequence[tuple[date, date, date]]) -> Iterator[date]:
        """Yield the days on which an occurrence begins, if the occurrence may reach into the range."""
        first, _ = core.span()
        shown = core.told("")
        self._event = f"the event {_plain(shown.summary)!r} of {shown.starts}"
        begin = _later(self._begin, -max(_DAY, *(after - at for at, _, after in lasts)))
        end = _later(self._end, max(_DAY, *(at - start for at, start, _ in lasts)))
        rules = [RecurrenceRule(rule, first) for rule in core.rules]
        ends = [rule.until for rule in rules if rule.until is not None]
        if not ends or first <= max(ends):
            yield first
        yield from self._listed(core, "RDATE")
        for rule in rules:
            for day in rule.between(begin, end, self._step):
                self._days += 1
                if self._days > MAX_OCCURRENCES:
                    told = f"recurs more than {MAX_OCCURRENCES} times, the last of them {self._event}"
                    raise InvalidInputError("file", f"{told}; give an earlier `until`, or remove that event")
                yield day

    def _listed(self, event: _Event, name: str) -> Iterator[date]:
        for each in _several(event.parsed.get(name)):
            for one in each.dts:
                self._step()
                yield _day(one.dt)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _later(day: date, by: timedelta) -> date:
    """Return a day that is `by` later, clamped to the dates that Python supports."""
    return date.fromordinal(min(max(day.toordinal() + by.days, 1), date.max.toordinal()))


def _day(value: Any) -> date:
    if not isinstance(value, date):
        raise ValueError(f"{str(value)[:64]} is not a day")  # noqa: TRY004 - of a file, no argument of ours
    return value.date() if isinstance(value, datetime) else value


def _runs(spans: Iterable[tuple[date, date]]) -> list[tuple[date, date]]:
    """Return sorted stretches of days; stretches that adjoin or overlap are merged."""
    runs = list[tuple[date, date]]()
    for first, last in sorted(spans):
        if runs and first <= runs[-1][1] + _DAY:
            runs[-1] = runs[-1][0], max(runs[-1][1], last)
        else:
            runs.append((first, last))
    return runs


def _texts(runs: Sequence[tuple[date, date]]) -> tuple[str, ...]:
    """Return stretches of days as texts; raises InvalidInputError for more than a calendar holds."""
    if len(runs) > MAX_ENTRIES:
        raise InvalidInputError("file", f"holds {len(runs)} stretches of days; give at most {MAX_ENTRIES}")
    return tuple(str(Dates(*run)) for run in runs)


def _plain(error: object) -> str:
    """Return the message of an error about an untrusted file, in one line without control characters."""
    return "".join(one if one.isprintable() else "?" for one in str(error))[:120]
