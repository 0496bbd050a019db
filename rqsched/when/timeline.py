"""Timelines: questions about a sequence of instants.

A `Timeline` merges one or more `Source`s within a start and an end. It tells which instant is next, which instants lie
in a range, how many they are, and which of them are the newest. A source has no start and no end, and reads no clock.
Every instant is aware UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import merge
from itertools import filterfalse, groupby, islice, takewhile
from typing import NamedTuple, Protocol, cast
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError
from rqsched.when.cron import SKIP_AND_FIRST, ClockChoice, CronExpression
from rqsched.when.cut import CutGrid, CutWalk, NamedExpression, cut_expression, divides_a_week
from rqsched.when.exclusion import LONGEST_LOOK, Exclusion
from rqsched.when.moved import Moved
from rqsched.when.steps import spend

_TICK = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Count(NamedTuple):
    """The number of occurrences in a range."""

    total: int
    """The number, or the cap if there are more."""
    is_capped: bool
    """Whether there are more than `total`."""


class Excluded(NamedTuple):
    """The excluded instants of a range."""

    number: Count
    """How many instants are excluded."""
    first: datetime
    """The oldest excluded instant."""
    last: datetime
    """The newest excluded instant."""


class Source(Protocol):
    """A sequence of instants without a window."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order."""

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first."""

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until], by arithmetic."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal steps from an origin in both directions: `origin + k * every`."""

    every: timedelta
    """The step."""
    origin: datetime
    """Any one instant of the grid."""

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, up to the last `datetime`."""
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
    """A single instant."""

    at: datetime
    """The instant."""

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
    """The expression, which names local times."""
    zone: ZoneInfo
    """The zone of the local times."""
    choice: ClockChoice = SKIP_AND_FIRST
    """The rules for clock changes."""

    def ascending(self, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order, up to `until`."""
        return self.expression.ascending(after, self.zone, self.choice, until)

    def descending(self, until: datetime, after: datetime | None = None) -> Iterator[datetime]:
        """Yield the instants at or before `until` and, if given, later than `after`, newest first."""
        return self.expression.descending(until, self.zone, self.choice, after)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        return self.expression.count(after, until, self.zone, self.choice)


class Cut(Protocol):
    """The instants of a source that are not excluded, or only the excluded ones."""

    def ascending(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], in order."""

    def descending(self, until: datetime, after: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], newest first."""

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""


def cut(source: Source, exclusion: Exclusion, *, takes: bool) -> Cut:
    """Return the instants of a source that are not excluded; with `takes`, the excluded ones."""
    if isinstance(source, ZonedCron) and source.zone is exclusion.zone:
        return replace(source, expression=cut_expression(source.expression, exclusion, takes=takes))
    if isinstance(source, Grid) and divides_a_week(source.every):
        return CutGrid(source.every, source.origin, exclusion, takes)
    return CutWalk(source, exclusion, takes)


def named_beside(source: ZonedCron, exclusion: Exclusion) -> ZonedCron:
    """Return a cron that, on excluded days, also names the local times that a clock change leaves out."""
    if source.zone is not exclusion.zone:
        return source
    of = source.expression
    return replace(source, expression=NamedExpression(of.hours, of.seconds_of_hour, of.days, exclusion))


class Timeline(ABC):
    """A sequence of distinct instants in order. `Cron`, `Every`, `Once` and `Spec` are timelines.

    An interval without an anchor is measured from the instant that a call gives.
    """

    start_at: datetime | None = None
    """The first instant that may be yielded."""
    end_at: datetime | None = None
    """The end, exclusive: no later instant is yielded, and not this instant itself."""
    exclusion: Exclusion | None = None
    """The excluded local times; None excludes nothing."""
    is_moving: bool = False
    """Whether excluded instants move to other days. If so, the sources yield the moved instants."""
    left_out: frozenset[datetime] = frozenset()
    """Instants of the sources that the timeline does not yield."""

    @abstractmethod
    def sources(self, anchor: datetime) -> tuple[Source, ...]:
        """Return the sources of the instants; an interval without an anchor is measured from `anchor`."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly after `instant`, aware UTC and without jitter, or None.

        Raises InvalidSpecError for a naive `instant`.
        """
        after = require_utc(instant)
        return next(self._ascending(after, anchor=after), None)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the instants in [start, end) in order, each once.

        Raises InvalidSpecError for naive bounds, at the call itself and not at the first item.
        """
        first, stop = require_utc(start, "start"), require_utc(end, "end")
        return takewhile(lambda at: at < stop, self._ascending(just_before(first), anchor=first))

    def count_between(self, after: datetime, until: datetime, cap: int = 1000) -> Count:
        """Return the number of instants in (after, until].

        With one source the number is exact. Several sources may share instants, so their instants are enumerated, up to
        `cap`.
        """
        after, until = require_utc(after, "after"), require_utc(until, "until")
        sources = self.sources(after)
        kept = sources if self.exclusion is None or self.is_moving else self._cut(sources, takes=False)
        low, high = self._within(after, until)
        spend(len(kept))
        counts = [source.count(low, high) for source in kept]
        if len(counts) == 1:
            return Count(counts[0] - sum(low < at <= high for at in self.left_out), is_capped=False)
        if max(counts, default=0) > cap:
            return Count(cap, is_capped=True)
        return _counted(takewhile(lambda at: at <= until, self._ascending(after, anchor=after)), cap)

    def excluded_between(self, after: datetime, until: datetime, cap: int = 1000) -> Excluded | None:
        """Return the excluded instants in (after, until], or None. They are counted as in `count_between`.

        If excluded instants move to other days, only the instants that find no such day are counted.
        """
        after, until = require_utc(after, "after"), require_utc(until, "until")
        if self.exclusion is None:
            return None
        sources = self.sources(after)
        if self.is_moving:
            return self._lost_between([one for one in sources if isinstance(one, Moved)], after, until, cap)
        low, high = self._within(after, until)
        taken = self._cut(sources, takes=True)
        spend(len(taken))
        counts = [source.count(low, high) for source in taken]
        if not any(counts):
            return None
        found = [source for source, many in zip(taken, counts, strict=True) if many]
        if len(sources) == 1:
            count = Count(counts[0], is_capped=False)
        elif max(counts) > cap:
            count = Count(cap, is_capped=True)
        else:
            count = _counted(_distinct(merge(*(source.ascending(low, high) for source in found))), cap)
        firsts, lasts = (
            [next(one.ascending(low, high)) for one in found],
            [next(one.descending(high, low)) for one in found],
        )
        return Excluded(count, min(firsts), max(lasts))

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
        """Return the newest `limit` instants in (after, until], oldest first, without visiting the older instants."""
        return list(islice(self.backwards(after, until), limit))[::-1]

    def backwards(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], newest first, each once."""
        after, until = require_utc(after, "after"), require_utc(until, "until")
        low, high = self._within(after, until)
        sources = self.sources(after)
        if self.exclusion is None or self.is_moving:
            found = _distinct(merge(*(source.descending(high) for source in sources), reverse=True))
        else:
            kept = self._cut(sources, takes=False)
            found = _distinct(merge(*(source.descending(high, low) for source in kept), reverse=True))
        if self.left_out:
            found = filterfalse(self.left_out.__contains__, found)
        return takewhile(lambda at: at > low, found)

    def excluded(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the excluded instants in (after, until], in order, each once; none if they move to other days."""
        after, until = require_utc(after, "after"), require_utc(until, "until")
        if self.exclusion is None or self.is_moving:
            return iter(())
        low, high = self._within(after, until)
        taken = self._cut(self.sources(after), takes=True)
        return _distinct(merge(*(source.ascending(low, high) for source in taken)))

    def _within(self, after: datetime, until: datetime) -> tuple[datetime, datetime]:
        """Return (after, until] cut to the window; both ends are equal if nothing is left."""
        low = max(after, self._opens_after)
        return low, max(low, min(until, just_before(self.end_at or _LAST)))

    def admits(self, instant: datetime) -> bool:
        """Return whether an instant is within `start_at` and `end_at`."""
        return instant > self._opens_after and (self.end_at is None or instant < self.end_at)

    @cached_property
    def _opens_after(self) -> datetime:
        return just_before(self.start_at or _FIRST)

    def _ascending(self, after: datetime, anchor: datetime) -> Iterator[datetime]:
        sources, after = self.sources(anchor), max(after, self._opens_after)
        if self.exclusion is not None and not self.is_moving:
            found = self._kept_ascending(sources, after)
        elif len(sources) == 1:
            found = sources[0].ascending(after)
        else:
            found = _distinct(merge(*(source.ascending(after) for source in sources)))
        if self.left_out:
            found = filterfalse(self.left_out.__contains__, found)
        end_at = self.end_at
        return found if end_at is None else takewhile(lambda at: at < end_at, found)

    def _cut(self, sources: tuple[Source, ...], *, takes: bool) -> tuple[Cut, ...]:
        """Return the part of each source that is not excluded, or with `takes` the excluded part; cached."""
        known = self.__dict__.setdefault("_cuts", {})
        found: tuple[tuple[Source, ...], tuple[Cut, ...]] | None = known.get(takes)
        if found is None or found[0] is not sources:
            exclusion = cast(Exclusion, self.exclusion)
            found = known[takes] = (sources, tuple(cut(one, exclusion, takes=takes) for one in sources))
        return found[1]

    def _kept_ascending(self, sources: tuple[Source, ...], after: datetime) -> Iterator[datetime]:
        """Yield the instants that are not excluded. Stop if all instants of the next ten years are excluded."""
        kept = self._cut(sources, takes=False)
        last, base = after, None
        while last != base:
            base, horizon = last, last + LONGEST_LOOK if _LAST - last > LONGEST_LOOK else _LAST
            spend(len(kept))
            for last in _distinct(merge(*(source.ascending(base, horizon) for source in kept))):
                yield last
            if last == base and (beyond := self._beyond(sources, kept, base, horizon)) is not None:
                yield beyond
                last = beyond

    def _beyond(
        self, sources: Sequence[Source], kept: Sequence[Cut], after: datetime, horizon: datetime
    ) -> datetime | None:
        """Return the first instant after the horizon. All instants up to the horizon are excluded.

        Return None if that instant is excluded too, or if an excluded stretch that has an instant crosses the horizon.
        """
        behind = [at for source in sources if (at := next(source.descending(horizon), after)) > after]
        stretch = self.exclusion and behind and self.exclusion.stretch_after(max(behind))
        if stretch and stretch.end > horizon:
            return None
        ahead = min((at for source in sources for at in islice(source.ascending(horizon), 1)), default=None)
        is_kept = ahead is not None and any(source.count(ahead - _TICK, ahead) for source in kept)
        return ahead if is_kept else None


def require_utc(value: datetime, field: str = "instant") -> datetime:
    """Return an aware datetime in UTC; raises InvalidSpecError for any other value."""
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


def just_before(instant: datetime) -> datetime:
    """Return the instant a microsecond earlier; the earliest `datetime` is returned as it is."""
    return instant - _TICK if instant > _FIRST else instant


def _counted(instants: Iterable[datetime], cap: int) -> Count:
    total = sum(1 for _ in islice(instants, cap + 1))
    return Count(min(total, cap), is_capped=total > cap)


def _distinct(instants: Iterable[datetime]) -> Iterator[datetime]:
    return (at for at, _ in groupby(instants))
