"""Timelines: questions about a sequence of instants, from whatever source.

A `Timeline` answers "when next", "which between", "how many" and "the newest" for one or many `Source`s, inside a
window. Sources are endless in both directions and read no clock; every instant here is aware UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from heapq import merge
from itertools import chain, filterfalse, groupby, islice, takewhile
from operator import gt
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError
from rqsched.spec.cron import SKIP_AND_FIRST, ClockChoice, CronExpression
from rqsched.spec.exclusion import Exclusion
from rqsched.spec.moved import Moved

_TICK = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Count(NamedTuple):
    """How many occurrences a range holds."""

    total: int
    """Their number, or the cap."""
    is_capped: bool
    """Whether there are more than `total`."""


class Excluded(NamedTuple):
    """Instants of a range that did not happen because they are excluded."""

    number: Count
    """How many."""
    first: datetime
    """The oldest."""
    last: datetime
    """The newest."""


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
    choice: ClockChoice = SKIP_AND_FIRST
    """What it does about a change of clocks."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order."""
        return self.expression.ascending(after, self.zone, self.choice)

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first."""
        return self.expression.descending(until, self.zone, self.choice)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        return self.expression.count(after, until, self.zone, self.choice)


class Timeline(ABC):
    """A sequence of distinct instants in order. `Cron`, `Every`, `Once` and `Spec` are timelines.

    A part that has no anchor yet counts from the instant that is asked about.
    """

    start_at: datetime | None = None
    """The first instant that may be yielded."""
    end_at: datetime | None = None
    """No instant at or after this one is yielded."""
    exclusion: Exclusion | None = None
    """The local times of which none is yielded; None excludes nothing."""
    is_moving: bool = False
    """Whether what is excluded happens on other days: then its sources yield nothing that is."""
    left_out: frozenset[datetime] = frozenset()
    """Instants of its own that are not yielded."""

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
        low, high = self._within(after, until)
        counts = [source.count(low, high) for source in sources]
        if self.exclusion is not None and not self.is_moving:
            for start, end in self.exclusion.stretches(low, high):
                inner = (start - _TICK, end - _TICK)
                counts = [n - source.count(*inner) for n, source in zip(counts, sources, strict=True)]
        if len(counts) == 1:
            return Count(counts[0] - sum(low < at <= high for at in self.left_out), is_capped=False)
        if max(counts, default=0) > cap:
            return Count(cap, is_capped=True)
        return _counted(takewhile(lambda at: at <= until, self._ascending(after, anchor=after)), cap)

    def excluded_between(self, after: datetime, until: datetime, cap: int = 1000) -> Excluded | None:
        """Return what in (after, until] is excluded, counted as by `count_between`; None when nothing is.

        Where excluded instants happen on other days, only those that happen on none are counted.
        """
        after, until = require_utc(after, "after"), require_utc(until, "until")
        if self.exclusion is None:
            return None
        sources = self.sources(after)
        if self.is_moving:
            return self._lost_between([one for one in sources if isinstance(one, Moved)], after, until, cap)
        walk, back = partial(_merged, sources), partial(_merged_back, sources)
        stretches = self.exclusion.stretches(*self._within(after, until))
        parts = [(start - _TICK, end) for start, end in stretches if next(walk(start - _TICK), end) < end]
        if not parts:
            return None
        if len(sources) == 1:
            count = Count(sum(sources[0].count(before, end - _TICK) for before, end in parts), is_capped=False)
        else:
            named = (takewhile(partial(gt, end), walk(before)) for before, end in parts)
            count = _counted(chain.from_iterable(named), cap)
        return Excluded(count, next(walk(parts[0][0])), next(back(parts[-1][1] - _TICK)))

    def _lost_between(self, sources: Sequence[Moved], after: datetime, until: datetime, cap: int) -> Excluded | None:
        span = self._within(after, until)
        lost = [(source, [*source.lost(*span, self.admits)]) for source in sources]
        found = [source.nominals_within(parts) for source, parts in lost if parts]
        if not found:
            return None
        if len(sources) == 1:
            source, parts = lost[0]
            count = Count(sum(source.count_nominals(a - _TICK, b - _TICK) for a, b in parts), is_capped=False)
        else:
            count = _counted(_distinct(merge(*found)), cap)
        firsts = [next(source.nominals_within(parts)) for source, parts in lost if parts]
        lasts = [source.last_within(parts) for source, parts in lost if parts]
        return Excluded(count, min(firsts), max(lasts))

    def last_between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the newest `limit` instants in (after, until], oldest first, without walking the older ones."""
        after, until = require_utc(after, "after"), require_utc(until, "until")
        low, high = self._within(after, until)
        walk = partial(_merged_back, self.sources(after))
        cuts = None if self.is_moving else self.exclusion
        found = walk(high) if cuts is None else cuts.descending(walk, low, high)
        if self.left_out:
            found = filterfalse(self.left_out.__contains__, found)
        newest = list(islice(takewhile(lambda at: at > low, found), limit))
        return newest[::-1]

    def _within(self, after: datetime, until: datetime) -> tuple[datetime, datetime]:
        """Return (after, until] cut at the window; where nothing is left both are the same."""
        low = max(after, self._opens_after)
        return low, max(low, min(until, _just_before(self.end_at or _LAST)))

    def admits(self, instant: datetime) -> bool:
        """Return whether an instant is within `start_at` and `end_at`."""
        return instant > self._opens_after and (self.end_at is None or instant < self.end_at)

    @cached_property
    def _opens_after(self) -> datetime:
        return _just_before(self.start_at or _FIRST)

    def _ascending(self, after: datetime, anchor: datetime) -> Iterator[datetime]:
        sources, after = self.sources(anchor), max(after, self._opens_after)
        if self.exclusion is not None and not self.is_moving:
            found = self.exclusion.ascending(partial(_merged, sources), after)
        elif len(sources) == 1:
            found = sources[0].ascending(after)
        else:
            found = _merged(sources, after)
        if self.left_out:
            found = filterfalse(self.left_out.__contains__, found)
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


def _merged(sources: Sequence[Source], after: datetime) -> Iterator[datetime]:
    """Yield the instants of all sources after one, in order, each once."""
    return _distinct(merge(*(source.ascending(after) for source in sources)))


def _merged_back(sources: Sequence[Source], until: datetime) -> Iterator[datetime]:
    """Yield the instants of all sources up to one, newest first, each once."""
    return _distinct(merge(*(source.descending(until) for source in sources), reverse=True))


def _counted(instants: Iterable[datetime], cap: int) -> Count:
    total = sum(1 for _ in islice(instants, cap + 1))
    return Count(min(total, cap), is_capped=total > cap)


def _distinct(instants: Iterable[datetime]) -> Iterator[datetime]:
    return (at for at, _ in groupby(instants))
