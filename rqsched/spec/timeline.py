"""Timelines: questions about a sequence of instants, from whatever source.

A `Timeline` answers "when next", "which between", "how many" and "the newest" for one or many `Source`s, inside a
window. Sources are endless in both directions and read no clock; every instant here is aware UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import merge
from itertools import groupby, islice, takewhile
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError
from rqsched.spec.cron import CronExpression

_TICK = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Count(NamedTuple):
    """How many occurrences a range holds."""

    total: int
    """Their number, or the cap."""
    is_capped: bool
    """Whether there are more than `total`."""


class Source(Protocol):
    """Something that yields instants."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order."""

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first."""

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many lie in (after, until], by arithmetic."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal steps from an origin in both directions: `origin + k * every`."""

    every: timedelta
    """The step."""
    origin: datetime
    """Any one instant of the grid."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, until the calendar ends."""
        try:
            at = self.origin + ((after - self.origin) // self.every + 1) * self.every
            while True:
                yield at
                at += self.every
        except OverflowError:
            return

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first."""
        try:
            at = self.origin + ((until - self.origin) // self.every) * self.every
            while True:
                yield at
                at -= self.every
        except OverflowError:
            return

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        return (until - self.origin) // self.every - (after - self.origin) // self.every


@dataclass(frozen=True, slots=True)
class Moment:
    """One single instant."""

    at: datetime
    """When."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instant if it is after `after`."""
        yield from (self.at,) * (self.at > after)

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instant if it is not after `until`."""
        yield from (self.at,) * (self.at <= until)

    def count(self, after: datetime, until: datetime) -> int:
        """Return 1 if the instant lies in (after, until]."""
        return int(after < self.at <= until)


@dataclass(frozen=True, slots=True)
class ZonedCron:
    """A cron expression in the local time of one zone."""

    expression: CronExpression
    """Which local times it names."""
    zone: ZoneInfo
    """The zone of the local times."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order."""
        return self.expression.ascending(after, self.zone)

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first."""
        return self.expression.descending(until, self.zone)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        return self.expression.count(after, until, self.zone)


class Timeline(ABC):
    """A sequence of distinct instants in order. `Cron`, `Every`, `Once` and `Spec` are timelines.

    A part that has no anchor yet counts from the instant that is asked about.
    """

    start_at: datetime | None = None
    """The first instant that may be yielded."""
    end_at: datetime | None = None
    """No instant at or after this one is yielded."""

    @abstractmethod
    def sources(self, anchor: datetime) -> tuple[Source, ...]:
        """Return the sources of the instants; `anchor` is used for parts that have none of their own."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly after `instant`, aware UTC and unjittered; None when there is none.

        Raises InvalidSpecError for a naive `instant`.
        """
        after = require_utc(instant)
        return next(self._ascending(after, anchor=after), None)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the instants in [start, end) in order, each once.

        Raises InvalidSpecError at the call, not at the first instant, for naive bounds.
        """
        first, stop = require_utc(start, "start"), require_utc(end, "end")
        return takewhile(lambda at: at < stop, self._ascending(_just_before(first), anchor=first))

    def count_between(self, after: datetime, until: datetime, cap: int = 1000) -> Count:
        """Return the number of instants in (after, until]: exact for one member, else enumerated up to `cap`.

        Members may share instants, which only an enumeration shows.
        """
        after, until = require_utc(after, "after"), require_utc(until, "until")
        sources = self.sources(after)
        low, high = max(after, self._opens_after), min(until, _just_before(self.end_at or _LAST))
        counts = [source.count(low, max(low, high)) for source in sources]
        if len(counts) == 1:
            return Count(counts[0], is_capped=False)
        if max(counts) > cap:
            return Count(cap, is_capped=True)
        found = takewhile(lambda at: at <= until, self._ascending(after, anchor=after))
        total = sum(1 for _ in islice(found, cap + 1))
        return Count(min(total, cap), is_capped=total > cap)

    def last_between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the newest `limit` instants in (after, until], oldest first, without walking the older ones."""
        after, until = require_utc(after, "after"), require_utc(until, "until")
        low, high = max(after, self._opens_after), min(until, _just_before(self.end_at or _LAST))
        found = _distinct(merge(*(s.descending(high) for s in self.sources(after)), reverse=True))
        newest = list(islice(takewhile(lambda at: at > low, found), limit))
        return newest[::-1]

    @cached_property
    def _opens_after(self) -> datetime:
        return _just_before(self.start_at or _FIRST)

    def _ascending(self, after: datetime, anchor: datetime) -> Iterator[datetime]:
        sources, after = self.sources(anchor), max(after, self._opens_after)
        if len(sources) == 1:
            found = sources[0].ascending(after)
        else:
            found = _distinct(merge(*(source.ascending(after) for source in sources)))
        end_at = self.end_at
        return found if end_at is None else takewhile(lambda at: at < end_at, found)


def require_utc(value: datetime, field: str = "instant") -> datetime:
    """Return `value` in UTC. Raises InvalidSpecError for a naive datetime and for anything else."""
    if not isinstance(value, datetime):
        raise InvalidSpecError(field, f"{type(value).__name__} is not a datetime; give an aware one")
    if value.tzinfo is UTC:
        return value
    if value.utcoffset() is None:
        raise InvalidSpecError(field, f"{value.isoformat()} has no timezone; give an aware datetime (tzinfo=UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidSpecError(field, f"{value.isoformat()} is outside the calendar in UTC; name another") from error


def _just_before(instant: datetime) -> datetime:
    return instant - _TICK if instant > _FIRST else instant


def _distinct(instants: Iterable[datetime]) -> Iterator[datetime]:
    return (at for at, _ in groupby(instants))
