"""Timelines: questions about a sequence of instants, from whatever source.

A `Timeline` answers "when next", "which between", "how many" and "the newest" for one or many `Source`s, inside a
window. Sources are endless in both directions and read no clock; every instant here is aware UTC.
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
    """The local times that it names."""
    zone: ZoneInfo
    """The zone of the local times."""
    choice: ClockChoice = SKIP_AND_FIRST
    """Its clock-change rules."""

    def ascending(self, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order, up to `until`."""
        return self.expression.ascending(after, self.zone, self.choice, until)

    def descending(self, until: datetime, after: datetime | None = None) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first, those after `after`."""
        return self.expression.descending(until, self.zone, self.choice, after)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        return self.expression.count(after, until, self.zone, self.choice)


class Cut(Protocol):
    """The instants of a source outside an exclusion, or inside it."""

    def ascending(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], in order."""

    def descending(self, until: datetime, after: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], newest first."""

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many lie in (after, until]."""


def cut(source: Source, exclusion: Exclusion, *, takes: bool) -> Cut:
    """Return the instants of a source that are not excluded, or those that are (`takes`)."""
    if isinstance(source, ZonedCron) and source.zone is exclusion.zone:
        return replace(source, expression=cut_expression(source.expression, exclusion, takes=takes))
    if isinstance(source, Grid) and divides_a_week(source.every):
        return CutGrid(source.every, source.origin, exclusion, takes)
    return CutWalk(source, exclusion, takes)


def named_beside(source: ZonedCron, exclusion: Exclusion) -> ZonedCron:
    """Return all that a cron names, on excluded days also what the clock leaves out."""
    if source.zone is not exclusion.zone:
        return source
    of = source.expression
    return replace(source, expression=NamedExpression(of.hours, of.seconds_of_hour, of.days, exclusion))


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
        """Return the sources of the instants; `anchor` is for parts that have no anchor."""

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
        return takewhile(lambda at: at < stop, self._ascending(just_before(first), anchor=first))

    def count_between(self, after: datetime, until: datetime, cap: int = 1000) -> Count:
        """Return the number of instants in (after, until]: exact for one member, else enumerated up to `cap`.

        Members may share instants, which only an enumeration shows.
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
        """Return the excluded instants in (after, until], counted as by `count_between`; None when there are none.

        Where excluded instants move to other days, only instants that find no day are counted.
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
        """Return the newest `limit` instants in (after, until], oldest first, without walking the older ones."""
        return list(islice(self.backwards(after, until), limit))[::-1]

    def backwards(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], newest first, each once."""
        after, until = require_utc(after, "after"), require_utc(until, "until")
        low, high = self._within(after, until)
        sources = self.sources(after)
        if self.exclusion is None or self.is_moving:
            found = _merged_back(sources, high)
        else:
            kept = self._cut(sources, takes=False)
            found = _distinct(merge(*(source.descending(high, low) for source in kept), reverse=True))
        if self.left_out:
            found = filterfalse(self.left_out.__contains__, found)
        return takewhile(lambda at: at > low, found)

    def excluded(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield what in (after, until] is excluded, in order, each once; nothing where it happens on other days."""
        after, until = require_utc(after, "after"), require_utc(until, "until")
        if self.exclusion is None or self.is_moving:
            return iter(())
        low, high = self._within(after, until)
        taken = self._cut(self.sources(after), takes=True)
        return _distinct(merge(*(source.ascending(low, high) for source in taken)))

    def _within(self, after: datetime, until: datetime) -> tuple[datetime, datetime]:
        """Return (after, until] cut at the window; where nothing is left both are the same."""
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
            found = _merged(sources, after)
        if self.left_out:
            found = filterfalse(self.left_out.__contains__, found)
        end_at = self.end_at
        return found if end_at is None else takewhile(lambda at: at < end_at, found)

    def _cut(self, sources: tuple[Source, ...], *, takes: bool) -> tuple[Cut, ...]:
        """Return what the exclusion leaves of each source, or takes; made once for the same sources."""
        known = self.__dict__.setdefault("_cuts", {})
        found: tuple[tuple[Source, ...], tuple[Cut, ...]] | None = known.get(takes)
        if found is None or found[0] is not sources:
            exclusion = cast(Exclusion, self.exclusion)
            found = known[takes] = (sources, tuple(cut(one, exclusion, takes=takes) for one in sources))
        return found[1]

    def _kept_ascending(self, sources: tuple[Source, ...], after: datetime) -> Iterator[datetime]:
        """Yield the instants that are not excluded; ends where ten years after the last one, or `after`, all are."""
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
        """Return the next instant beyond a horizon up to which all are excluded.

        None where a stretch that takes an instant reaches beyond the horizon.
        """
        behind = [at for source in sources if (at := next(source.descending(horizon), after)) > after]
        stretch = self.exclusion and behind and self.exclusion.stretch_after(max(behind))
        if stretch and stretch.end > horizon:
            return None
        ahead = min((at for source in sources for at in islice(source.ascending(horizon), 1)), default=None)
        is_kept = ahead is not None and any(source.count(ahead - _TICK, ahead) for source in kept)
        return ahead if is_kept else None


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


def just_before(instant: datetime) -> datetime:
    """Return the instant a microsecond earlier; of the first one of the calendar itself."""
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
