"""Move the excluded instants of a source to the next or previous day that is not excluded.

The source has one time of day. A nominal instant is an instant that the source names. If it is excluded, it moves to
the nearest day in the chosen direction that is not excluded, at the same local time. So all nominal instants of an
excluded stretch move to one instant. A search jumps over an excluded stretch without visiting the instants in it. This
file reads no clock and no database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from functools import partial
from itertools import filterfalse, takewhile
from operator import gt
from typing import Protocol
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError
from rqsched.when.cron import EVERY_DAY, ClockChoice, CronExpression
from rqsched.when.exclusion import LONGEST_LOOK, Dates, Exclusion, Stretch, parse_exclusion

ON_EXCLUDED = ("skip", "next", "previous")
"""The rules for an excluded occurrence: it is skipped, or it moves to the next or previous allowed day."""
FURTHEST = timedelta(days=31)
"""The furthest move; an occurrence that would move further is skipped."""
REACH = FURTHEST + timedelta(days=2)
"""The longest time between a nominal instant and its target, clock changes included."""

_TICK = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_SHIFT = ClockChoice(is_shift=True)


class _Source(Protocol):
    def ascending(self, after: datetime) -> Iterator[datetime]: ...
    def descending(self, until: datetime) -> Iterator[datetime]: ...
    def count(self, after: datetime, until: datetime) -> int: ...


def require_on_excluded(value: object) -> str:
    """Return the rule for an excluded occurrence, by default `skip`; raises InvalidSpecError."""
    if value is None:
        return ON_EXCLUDED[0]
    if isinstance(value, str) and value in ON_EXCLUDED:
        return value
    raise InvalidSpecError("on_excluded", f"{value!r} is not one of {', '.join(ON_EXCLUDED)}")


def require_whole_days(texts: tuple[str, ...], on_excluded: str) -> None:
    """Check that the exclusions are whole days, as a move needs; raises InvalidSpecError."""
    for text in texts:
        parsed = parse_exclusion(text)
        if not isinstance(parsed, Dates) and not parsed.is_whole_days:
            how = "write dates, ranges and whole days of the week, or on_excluded='skip'"
            raise InvalidSpecError("on_excluded", f"{on_excluded!r} moves over whole days only, not {text!r}; {how}")


@dataclass(frozen=True, slots=True)
class Moved:
    """A source with one time of day. Its excluded instants move to other days."""

    source: _Source
    """The nominal instants: at most one a day, or two on a day when the clock shows the time twice."""
    clock_time: CronExpression
    """An expression that fires every day at the time of day of the nominal instants."""
    zone: ZoneInfo
    """The zone of the time of day."""
    exclusion: Exclusion
    """The excluded days, all of them whole."""
    is_back: bool
    """Whether excluded instants move to the previous day that is not excluded. Otherwise they move to the next."""
    is_shift: bool
    """Whether a moved occurrence is shifted if a clock change leaves out its time on the new day. Otherwise it is
    skipped."""
    fraction: timedelta = timedelta(0)
    """The fraction of a second of the time of day."""
    settled: frozenset[datetime] = frozenset()
    """Nominal instants that are ignored because their outcome is already recorded."""

    def target(self, nominal: datetime) -> datetime | None:
        """Return `nominal`, or if it is excluded, the instant to which it moves; None if no day is near enough."""
        if not self.exclusion.holds(nominal):
            return nominal
        if self.is_back:
            found = self.exclusion.descending(self._days_back, nominal - REACH, nominal)
        else:
            found = self.exclusion.ascending(self._days, nominal, nominal + REACH)
        at = next(found, None)
        if at is None:
            return None
        local = at.astimezone(self.zone)
        if abs(local.date() - nominal.astimezone(self.zone).date()) > FURTHEST:
            return None
        return at if self.is_shift or at_time_of(local) == self.clock_time else None

    def nominals_of(self, instant: datetime) -> list[datetime]:
        """Return the nominal instants that are moved to an instant, in order."""
        found = list[datetime]()
        for nominal in self._nominals(instant) if self.is_back else self._nominals_back(instant - _TICK):
            if abs(nominal - instant) > REACH or not self.exclusion.holds(nominal) or self.target(nominal) != instant:
                break
            found.append(nominal)
        return sorted(found)

    def early(self, instant: datetime) -> list[datetime]:
        """Return the nominal instants after `instant` that move to `instant` or earlier."""
        ahead = self._nominals(instant) if self.is_back else ()
        return [*takewhile(lambda at: (self.target(at) or at) <= instant, ahead)]

    def late(self, instant: datetime) -> list[datetime]:
        """Return the nominal instants at or before `instant` that move to a later time than `instant`, in order."""
        behind = () if self.is_back else self._nominals_back(instant)
        return [*takewhile(lambda at: (self.target(at) or at) > instant, behind)][::-1]

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after `after`, in order. Stop if the next ten years have no instant."""
        last = after
        for nominal, stretch in self._units(after if self.is_back else self._begin_behind(after)):
            at = nominal if stretch is None else self._target_of(nominal, stretch)
            if at is not None and at > last and (stretch is None or at - last <= LONGEST_LOOK):
                yield at
                last = at
            if stretch is not None and stretch.end - last > LONGEST_LOOK:
                return

    def descending(self, until: datetime) -> Iterator[datetime]:
        """Yield the instants at or before `until`, newest first."""
        last = min(until, _LAST - _TICK) + _TICK
        walk = self._nominals_back(self._end_ahead(until) if self.is_back else until)
        while (nominal := next(walk, None)) is not None:
            at: datetime | None = nominal
            if self.exclusion.holds(nominal):
                start = self.exclusion.start_of(nominal)
                at = self.target(next(self._nominals(start - _TICK)) if self.is_back else nominal)
                walk = self._nominals_back(start - _TICK)
            if at is not None and at < last:
                yield at
                last = at

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]; the cost grows with the number of excluded stretches."""
        begin, end = (after, self._end_ahead(until)) if self.is_back else (self._begin_behind(after), until)
        total, last = self.count_nominals(after, until), after
        for stretch, at in self._targets(begin, end):
            total -= self.count_nominals(max(stretch.start - _TICK, after), min(stretch.end - _TICK, until))
            if at is not None and last < at <= until:
                total += not self.count_nominals(at - _TICK, at)
                last = at
        return total

    def lost(self, after: datetime, until: datetime, admits: Callable[[datetime], bool]) -> Iterator[Stretch]:
        """Yield the parts of (after, until] whose nominal instants never happen.

        Each part has at least one nominal instant. `admits` says whether an occurrence may happen at an instant.
        """
        for stretch, at in self._targets(after, until):
            start, end = stretch
            if at is not None and admits(at):
                away = FURTHEST + timedelta(days=1) if self.is_back else -FURTHEST
                day = at.astimezone(self.zone).date() + away
                edge = datetime.combine(day, time.min, self.zone).astimezone(UTC)
                start, end = (max(start, edge), end) if self.is_back else (start, min(end, edge))
            if start < end and self.count_nominals(start - _TICK, end - _TICK):
                yield Stretch(start, end)

    def nominals_within(self, parts: Iterable[Stretch]) -> Iterator[datetime]:
        """Yield the nominal instants in some stretches."""
        for start, end in parts:
            yield from takewhile(partial(gt, end), self._nominals(start - _TICK))

    def last_within(self, parts: Sequence[Stretch]) -> datetime:
        """Return the last nominal instant in some stretches; each stretch must have one."""
        return next(self._nominals_back(parts[-1].end - _TICK))

    def count_nominals(self, after: datetime, until: datetime) -> int:
        """Return how many nominal instants lie in (after, until] before any of them is moved."""
        if after >= until:
            return 0
        return self.source.count(after, until) - sum(after < at <= until for at in self.settled)

    def _targets(self, after: datetime, until: datetime) -> Iterator[tuple[Stretch, datetime | None]]:
        """Yield each excluded stretch in (after, until] with nominal instants, and where they move, or None."""
        for stretch in self.exclusion.stretches(after, until):
            first = next(self._nominals(stretch.start - _TICK), _LAST)
            if first < stretch.end:
                yield stretch, self._target_of(first, stretch)

    def _target_of(self, first: datetime, stretch: Stretch) -> datetime | None:
        """Return the instant to which the nominal instants of a stretch move, or None. `first` is the first of them."""
        return self.target(first if self.is_back else next(self._nominals_back(stretch.end - _TICK)))

    def _units(self, after: datetime) -> Iterator[tuple[datetime, Stretch | None]]:
        """Yield `(instant, None)` for each nominal instant after `after` that is not excluded, in order.

        For an excluded stretch, yield one pair: its first nominal instant, and the stretch.
        """
        walk, stretch = self._nominals(after), Stretch(after, after)
        while (nominal := next(walk, None)) is not None:
            if nominal >= stretch.end:
                stretch = self.exclusion.stretch_after(nominal) or Stretch(_LAST, _LAST)
            if nominal < stretch.start or stretch.start == _LAST:
                yield nominal, None
            else:
                yield nominal, stretch
                walk = self._nominals(stretch.end - _TICK)

    def _begin_behind(self, after: datetime) -> datetime:
        """Return an instant before all nominal instants that move to an instant after `after`."""
        begin, least = after, max(after, _FIRST + REACH) - REACH
        while begin > least:
            day = next(self._days_back(begin), None)
            if day is None or not self.exclusion.holds(day):
                break
            begin = max(self.exclusion.start_of(day) - _TICK, least)
        return begin

    def _end_ahead(self, until: datetime) -> datetime:
        """Return an instant after all nominal instants that move to `until` or earlier."""
        end, most = until, min(until, _LAST - REACH) + REACH
        while end < most:
            day = next(self._days(end), None)
            stretch = None if day is None else self.exclusion.stretch_after(day)
            if day is None or stretch is None or day < stretch.start:
                break
            end = min(stretch.end - _TICK, most)
        return end

    def _nominals(self, after: datetime) -> Iterator[datetime]:
        found = self.source.ascending(after)
        return filterfalse(self.settled.__contains__, found) if self.settled else found

    def _nominals_back(self, until: datetime) -> Iterator[datetime]:
        found = self.source.descending(until)
        return filterfalse(self.settled.__contains__, found) if self.settled else found

    def _days(self, after: datetime) -> Iterator[datetime]:
        days = self.clock_time.ascending(after - self.fraction, self.zone, _SHIFT)
        return (day + self.fraction for day in days) if self.fraction else days

    def _days_back(self, until: datetime) -> Iterator[datetime]:
        days = self.clock_time.descending(until - self.fraction, self.zone, _SHIFT)
        return (day + self.fraction for day in days) if self.fraction else days


def on_every_day(expression: CronExpression) -> CronExpression:
    """Return an expression with the same times of day that fires on every day."""
    return replace(expression, days=EVERY_DAY)


def at_time_of(local: datetime) -> CronExpression:
    """Return an expression that fires every day at the time of day of a local time, to the second."""
    return CronExpression((local.hour,), (local.minute * 60 + local.second,), EVERY_DAY)
