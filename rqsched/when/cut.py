"""Cut: the instants of a source that are not excluded, or only the excluded ones.

A weekly window excludes the same times of a cron every week, so these are computed once for each weekday. An interval
that divides a week has the same instants every week, so one week is computed for each offset of the zone. Counts then
follow by arithmetic. For any other source, this file walks through the instants or the excluded stretches. Each instant
and each stretch of a walk costs steps (`when.steps`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import accumulate, chain, takewhile
from operator import itemgetter
from typing import NamedTuple, Protocol

from rqsched.when.cron import ClockChoice, CronExpression
from rqsched.when.exclusion import STRETCH_STEPS, Exclusion
from rqsched.when.steps import spend
from rqsched.when.zones import FIRST_YEAR, LAST_YEAR, Span, spans_from, spans_until

_TICK, _SECOND, _DAY, _WEEK = timedelta(microseconds=1), timedelta(seconds=1), timedelta(days=1), timedelta(days=7)
_DAY_SECONDS = 86_400
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_DAWN, _DUSK = datetime(FIRST_YEAR, 1, 1), datetime(LAST_YEAR + 1, 1, 1)  # noqa: DTZ001 - naive UTC, as spans are
_MONDAY = datetime.min  # noqa: DTZ901 - a Monday: the origin of all counts of microseconds here
_WEEK_TICKS = _WEEK // _TICK


class _Source(Protocol):
    def ascending(self, after: datetime) -> Iterator[datetime]: ...
    def descending(self, until: datetime) -> Iterator[datetime]: ...
    def count(self, after: datetime, until: datetime) -> int: ...


@dataclass(frozen=True, slots=True)
class NamedExpression(CronExpression):
    """An expression with its exclusion. On an excluded day it also names the times that a clock change leaves out.

    The exclusion of a whole day takes precedence over the clock-change rules: an occurrence on that day is excluded or
    moved, whatever the value of `dst_gap`. Its instant is computed with the offset before the change.
    """

    exclusion: Exclusion
    """The excluded times, on the clocks of the expression's zone."""

    def _obeyed(self, choice: ClockChoice) -> tuple[bool, bool]:
        is_once, _ = super(NamedExpression, self)._obeyed(choice)
        return is_once, not self.is_every_hour

    def _shifted(
        self, span: Span, start: datetime, end: datetime, choice: ClockChoice, *, is_back: bool = False
    ) -> Iterator[datetime]:
        for reading in super(NamedExpression, self)._shifted(span, start, end, choice, is_back=is_back):
            spend()
            if self._stands(reading, reading - span.gap, choice):
                yield reading

    def _stands(self, reading: datetime, named: datetime, choice: ClockChoice) -> bool:
        """Return whether the local time `named`, which the clock leaves out, happens at the local time `reading`."""
        # With dst_gap=skip, `named` happens only if both local times are excluded, because then it can be moved.
        return choice.is_shift or (self.exclusion.takes_day(named.date()) and self.exclusion.takes(reading))


class _Times(NamedTuple):
    """The times that an expression names within some parts of a day."""

    parts: tuple[tuple[int, int], ...]
    """The parts that hold times, in seconds from midnight, sorted and disjoint."""
    before: tuple[int, ...]
    """The number of times before each part; the last entry is their total."""


@dataclass(frozen=True, slots=True)
class CutExpression(NamedExpression):
    """The instants of an expression that are not excluded, or only the excluded ones."""

    takes: bool
    """Whether the instants are the excluded ones."""
    week: tuple[_Times, ...] = field(compare=False, repr=False)
    """The times of each weekday, Monday first, on days that no date excludes."""
    whole: _Times = field(compare=False, repr=False)
    """The times of a day that a date excludes."""

    def _obeyed(self, choice: ClockChoice) -> tuple[bool, bool]:
        is_once, shifts = super(CutExpression, self)._obeyed(choice)
        return is_once, shifts and (self.takes or choice.is_shift)

    def _stands(self, reading: datetime, named: datetime, choice: ClockChoice) -> bool:
        is_taken = self.exclusion.takes_day(named.date())
        if self.takes and not choice.is_shift:
            is_own = self.is_named(reading) and not self.exclusion.takes(reading)
            return is_taken and not is_own
        if not self.takes:
            return not is_taken and not self.exclusion.takes(reading)
        if self.exclusion.takes(reading):
            return True
        return is_taken and not self.is_named(reading)

    def readings(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the naive local times in [start, end) that are not excluded, or only the excluded ones."""
        day = self._day_from(start.date(), end) if start < end else None
        while day is not None:
            midnight = datetime.combine(day, time.min)
            low = int((start - midnight).total_seconds()) if midnight < start else 0
            parts = self._times_of(day).parts
            for first, stop in parts[bisect_right(parts, low, key=itemgetter(1)) :]:
                spend()
                for second in self._times_from(timedelta(seconds=max(first, low))):
                    if second >= stop:
                        break
                    reading = midnight + timedelta(seconds=second)
                    if reading >= end:
                        return
                    yield reading
            day = self._day_from(day + _DAY, end)

    def _readings_back(self, start: datetime, end: datetime) -> Iterator[datetime]:
        day = self._day_back(end.date(), start) if start <= end else None
        while day is not None:
            midnight = datetime.combine(day, time.min)
            high = int(min(end - midnight, _DAY - _SECOND).total_seconds())
            parts = self._times_of(day).parts
            for first, stop in reversed(parts[: bisect_right(parts, (high, _DAY_SECONDS + 1))]):
                spend()
                for second in self._times_until(timedelta(seconds=min(stop - 1, high))):
                    if second < first:
                        break
                    reading = midnight + timedelta(seconds=second)
                    if reading < start:
                        return
                    yield reading
            day = self._day_back(day - _DAY, start)

    def _day_from(self, day: date, end: datetime) -> date | None:
        """Return the first day, `day` or later, that has times and begins before `end`."""
        has_week = any(times.parts for times in self.week)
        while (found := self.days.on_or_after(day)) is not None:
            midnight = datetime.combine(found, time.min)
            if midnight >= end:
                return None
            spend()
            if self._times_of(found).parts:
                return found
            dates = self.exclusion.dates_after(midnight)
            if dates is None and not has_week:
                return None
            if dates is not None and dates[0] <= midnight:
                day = dates[1].date()
            elif dates is not None and not has_week:
                day = dates[0].date() if self.takes else found + _DAY
            else:
                day = found + _DAY
        return None

    def _day_back(self, day: date, start: datetime) -> date | None:
        """Return the last day, `day` or earlier, that has times and ends after `start`."""
        while (found := self.days.on_or_before(day)) is not None:
            midnight = datetime.combine(found, time.min)
            if midnight + _DAY <= start:
                return None
            spend()
            if self._times_of(found).parts:
                return found
            dates = self.exclusion.dates_after(midnight)
            day = (midnight if dates is None or dates[0] > midnight else dates[0]).date() - _DAY
        return None

    def _times_of(self, day: date) -> _Times:
        dates = self.exclusion.dates_after(datetime.combine(day, time.min))
        is_taken = dates is not None and dates[0].date() <= day
        return self.whole if is_taken else self.week[day.weekday()]

    def _count_readings(self, start: datetime, end: datetime) -> int:
        total, day, stop = self._count_that_day(end) - self._count_that_day(start), start.date(), end.date()
        while day < stop:
            spend()
            dates = self.exclusion.dates_after(datetime.combine(day, time.min))
            opens = stop if dates is None else min(dates[0].date(), stop)
            if day < opens:
                named = self.days.count_by_weekday(day, opens)
                total += sum(many * times.before[-1] for many, times in zip(named, self.week, strict=True))
            if dates is None:
                break
            day, closes = max(day, opens), min(dates[1].date(), stop)
            if self.takes and day < closes:
                total += self.days.count(day, closes) * self.whole.before[-1]
            day = closes
        return total

    def _count_that_day(self, end: datetime) -> int:
        """Return how many times lie between midnight and `end`."""
        if not self.days.count(end.date(), end.date() + _DAY):
            return 0
        parts, before = self._times_of(end.date())
        second = end.hour * 3600 + end.minute * 60 + end.second
        at = bisect_left(parts, (second, 0))
        if not at:
            return 0
        first, stop = parts[at - 1]
        return before[at - 1] + self.count_times(min(second, stop)) - self.count_times(first)


def cut_expression(expression: CronExpression, exclusion: Exclusion, *, takes: bool) -> CutExpression:
    """Return the part of an expression that is not excluded; with `takes`, the excluded part."""
    spend(len(exclusion.week))
    windows = exclusion.by_weekday
    parts = windows if takes else tuple(map(_rest_of, windows))
    week = tuple(_times_in(expression, of_day) for of_day in parts)
    whole = _times_in(expression, [(0, _DAY_SECONDS)] if takes else [])
    hours, seconds = expression.hours, expression.seconds_of_hour
    return CutExpression(hours, seconds, expression.days, exclusion, takes, week, whole)


def _times_in(expression: CronExpression, parts: Sequence[tuple[int, int]]) -> _Times:
    counted = [(part, expression.count_times(part[1]) - expression.count_times(part[0])) for part in parts]
    found = [(part, many) for part, many in counted if many]
    before = accumulate((many for _, many in found), initial=0)
    return _Times(tuple(part for part, _ in found), tuple(before))


def _rest_of(windows: Sequence[tuple[int, int]], end: int = _DAY_SECONDS) -> list[tuple[int, int]]:
    """Return the parts between windows, which must be sorted and disjoint."""
    edges = [0, *(edge for window in windows for edge in window), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


class _Steps(NamedTuple):
    """The steps of an interval within some parts of a week, in microseconds from Monday's midnight."""

    firsts: tuple[int, ...]
    """The first step of each part that holds a step."""
    before: tuple[int, ...]
    """The number of steps before each part; the last entry is their total."""


class _Part(NamedTuple):
    """A range of local time in which the steps of one week repeat."""

    start: int
    """Its first local time, in microseconds."""
    end: int
    """The first local time after it."""
    offset: int
    """The offset of local time from UTC, in microseconds."""
    steps: _Steps
    """The steps of each of its weeks."""


@dataclass(frozen=True)
class CutGrid:
    """The instants of a grid whose step divides a week: those that are not excluded, or only the excluded ones."""

    every: timedelta
    """The step, which divides a week."""
    origin: datetime
    """Any one instant of the grid."""
    exclusion: Exclusion
    """The excluded local times."""
    takes: bool
    """Whether the instants are the excluded ones."""

    def ascending(self, after: datetime, until: datetime = _LAST) -> Iterator[datetime]:
        """Yield the instants in (after, until], in order."""
        for part in self._parts(after, until):
            for number in range(self._rank(part, part.start), self._rank(part, part.end)):
                yield self._step(part, number)

    def descending(self, until: datetime, after: datetime = _FIRST) -> Iterator[datetime]:
        """Yield the instants in (after, until], newest first."""
        for part in self._parts(after, until, is_back=True):
            for number in reversed(range(self._rank(part, part.start), self._rank(part, part.end))):
                yield self._step(part, number)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        return sum(self._rank(part, part.end) - self._rank(part, part.start) for part in self._parts(after, until))

    def _rank(self, part: _Part, reading: int) -> int:
        """Return how many steps lie before a local time."""
        firsts, before = part.steps
        weeks, rest = divmod(reading, _WEEK_TICKS)
        at = bisect_left(firsts, rest)
        if not at:
            return weeks * before[-1]
        inside = -((firsts[at - 1] - rest) // self._ticks)
        return weeks * before[-1] + min(before[at - 1] + inside, before[at])

    def _step(self, part: _Part, number: int) -> datetime:
        """Return the instant of the step with this rank."""
        firsts, before = part.steps
        weeks, number = divmod(number, before[-1])
        at = bisect_right(before, number) - 1
        reading = weeks * _WEEK_TICKS + firsts[at] + (number - before[at]) * self._ticks
        return (_MONDAY + timedelta(microseconds=reading - part.offset)).replace(tzinfo=UTC)

    def _parts(self, after: datetime, until: datetime, *, is_back: bool = False) -> Iterator[_Part]:
        """Cut (after, until] at clock changes and at excluded dates, and yield the parts."""
        if until <= after:
            return
        begin, last = (edge.replace(tzinfo=None) for edge in (after, until))
        zone = self.exclusion.zone
        nothing = timedelta(0)
        dawn, dusk = Span(datetime.min, _DAWN, nothing, _DAWN), Span(_DUSK, datetime.max, nothing, _DUSK)  # noqa: DTZ901
        spans = (
            chain((dusk,), spans_until(zone, last), (dawn,))
            if is_back
            else chain((dawn,), spans_from(zone, begin), (dusk,))
        )
        for span in spans:
            if span.start > last if not is_back else span.end <= begin:
                return
            if span.end <= begin or span.start > last:
                continue
            spend()
            offset = span.offset // _TICK
            start = (max(begin - _MONDAY + _TICK, span.start - _MONDAY)) // _TICK + offset
            end = (min(last - _MONDAY + _TICK, span.end - _MONDAY)) // _TICK + offset
            found = [*self._cut(start, end, offset, is_bare=span is dawn or span is dusk)]
            yield from reversed(found) if is_back else found

    def _cut(self, start: int, end: int, offset: int, *, is_bare: bool) -> Iterator[_Part]:
        phase = ((self.origin.replace(tzinfo=None) - _MONDAY) // _TICK + offset) % self._ticks
        if is_bare:
            if not self.takes:
                yield _Part(start, end, offset, self._all(phase))
            return
        while start < end:
            spend()
            dates = self.exclusion.dates_after(_MONDAY + timedelta(microseconds=start))
            opens, closes = (end, end) if dates is None else ((edge - _MONDAY) // _TICK for edge in dates)
            if start < opens:
                steps = self._week(phase)
                if steps.firsts:
                    yield _Part(start, min(opens, end), offset, steps)
            if opens < end and self.takes:
                yield _Part(max(start, opens), min(closes, end), offset, self._all(phase))
            start = max(closes, start + 1) if opens < end else end

    def _week(self, phase: int) -> _Steps:
        """Return the steps of a week whose first step is `phase` microseconds after Monday's midnight."""
        known = self._weeks.get(phase)
        if known is None:
            spend(len(self.exclusion.week))
            windows = [(start // _TICK, end // _TICK) for start, end in self.exclusion.week]
            parts = windows if self.takes else _rest_of(windows, _WEEK_TICKS)
            known = self._weeks[phase] = self._steps_in(parts, phase)
        return known

    def _all(self, phase: int) -> _Steps:
        return self._steps_in([(0, _WEEK_TICKS)], phase)

    def _steps_in(self, parts: Sequence[tuple[int, int]], phase: int) -> _Steps:
        firsts, many = list[int](), [0]
        for start, end in parts:
            first = start + (phase - start) % self._ticks
            if first < end:
                firsts.append(first)
                many.append(-((first - end) // self._ticks))
        return _Steps(tuple(firsts), tuple(accumulate(many)))

    @cached_property
    def _ticks(self) -> int:
        return self.every // _TICK

    @cached_property
    def _weeks(self) -> dict[int, _Steps]:
        return {}


@dataclass(frozen=True, slots=True)
class CutWalk:
    """The instants of any source that are not excluded, or only the excluded ones, found by walking."""

    source: _Source
    """The source of all instants."""
    exclusion: Exclusion
    """The excluded local times."""
    takes: bool
    """Whether the instants are the excluded ones."""

    def ascending(self, after: datetime, until: datetime = _LAST) -> Iterator[datetime]:
        """Yield the instants in (after, until], in order."""
        if not self.takes:
            yield from takewhile(until.__ge__, self.exclusion.ascending(self.source.ascending, after, until))
            return
        at = next(self.source.ascending(after), None)
        while at is not None and at <= until:
            spend(STRETCH_STEPS)
            stretch = self.exclusion.stretch_after(at)
            if stretch is None:
                return
            if at < stretch.start:
                at = next(self.source.ascending(stretch.start - _TICK), None)
                continue
            for one in takewhile(stretch.end.__gt__, self.source.ascending(at - _TICK)):
                if one > until:
                    return
                spend()
                yield one
            at = next(self.source.ascending(stretch.end - _TICK), None)

    def descending(self, until: datetime, after: datetime = _FIRST) -> Iterator[datetime]:
        """Yield the instants in (after, until], newest first."""
        if not self.takes:
            yield from self.exclusion.descending(self.source.descending, after, until)
            return
        for at in takewhile(after.__lt__, self.source.descending(until)):
            spend(STRETCH_STEPS)
            if self.exclusion.holds(at):
                yield at

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until]."""
        if after >= until:
            return 0
        total = self.source.count(after, until)
        if total <= (1 + (until - after) // _WEEK) * len(self.exclusion.week) + len(self.exclusion.dates):
            taken = 0
            for at in takewhile(until.__ge__, self.source.ascending(after)):
                spend(STRETCH_STEPS)
                taken += self.exclusion.holds(at)
        else:
            taken = sum(self.source.count(a - _TICK, b - _TICK) for a, b in self.exclusion.stretches(after, until))
        return taken if self.takes else total - taken


def divides_a_week(every: timedelta) -> bool:
    """Return whether equal steps of this length come at the same times of every week."""
    return not _WEEK % every
