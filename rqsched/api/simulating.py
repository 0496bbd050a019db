"""Simulating: which schedules take part, what of a span is decided and what is counted, on how many processes.

Every fire is decided as long as there are at most MOST_DECIDED of them. Beyond that fires are counted, as the load is,
and what is decided is the busiest day and where clocks change.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

from rqsched.api.load import (
    MOST_PEAKS,
    NAMED,
    Counting,
    Window,
    busiest_first,
    highest_minutes,
    is_alone,
    queue_load,
    usual_most,
)
from rqsched.api.side_by_side import in_turn, side_by_side
from rqsched.api.simulation_entries import MEASURED_DAYS, Entry
from rqsched.core.delays import base_of
from rqsched.core.limit import Bounds, split_key
from rqsched.core.model import Schedule, ScheduleStatus, changed
from rqsched.core.occurrences import TICK
from rqsched.core.results import Load, Peak, QueueLoad
from rqsched.core.simulation import Expected, Simulated, Spans, Told, Walk, begin, walk
from rqsched.core.simulation_lines import Line
from rqsched.core.simulation_report import (
    ClockEffect,
    ClockNight,
    LimitOutcome,
    NotSimulated,
    QueueBehind,
    QueueOutcome,
    ScheduleOutcome,
    SimulatedDay,
    SimulatedSchedule,
    Simulation,
    Stretch,
)
from rqsched.core.simulation_targets import FanOut
from rqsched.errors import InvalidDurationError, InvalidInputError, did_you_mean
from rqsched.spec.duration import SpanLike, to_span
from rqsched.spec.members import Cron
from rqsched.spec.spec import Spec
from rqsched.spec.words import after_in_words
from rqsched.spec.zones import require_timezone, spans_from

MOST_DECIDED = 3_000_000
"""More fires than these are not decided one by one: a fire and the end of its run take a third of a millisecond."""
MOST_DAYS = 1_100
"""The longest span that is simulated: three years."""
MAX_YEAR = 9990
"""A span begins and ends before this year: the calendar of datetime ends soon after."""
MOST_WORKERS = 1_000_000
"""The most workers of a queue: more wait for nothing in any simulation."""
MOST_TARGETS = 1_000_000
"""The most targets of a run: each costs as much as a fire."""
MOST_PROCESSES = 1_000
"""The most processes that compute a simulation: no machine has more to give."""
YEAR = timedelta(days=365)
"""The span where none is given."""
_MINUTE, _DAY, _HOUR = timedelta(minutes=1), timedelta(days=1), timedelta(hours=1)
_WINDOW = 28 * 24 * 60
_NIGHT = timedelta(hours=6)
_MOST_NAMED = 10
_MOST_WALKED = 20_000_000
_COUNTED = 100_000
"""Up to here occurrences are counted where only enumeration tells their number."""


class Wanted(NamedTuple):
    """What is asked of a simulation."""

    start: datetime
    """Where it begins: a whole minute."""
    end: datetime
    """The first instant after it: a whole minute."""
    seed: int = 0
    """What is drawn is a hash of this."""
    workers: Mapping[str, int] = {}
    """How many attempts a queue executes at once; one that is not named executes any number."""
    duration: timedelta | None = None
    """How long attempts take of which nothing is measured."""
    durations: Mapping[str, timedelta] = {}
    """How long those of a schedule or of a workflow take, whatever is measured."""
    failure_rate: float | None = None
    """Which part of all attempts fails; None is what was measured."""
    targets: Mapping[str, int] = {}
    """How many targets each run of a schedule or of a workflow has, whatever its newest run had."""
    processes: int = 1
    """How many processes compute it."""
    most_decided: int = MOST_DECIDED
    """The most fires that are decided one by one."""
    least_shared: int = 20_000
    """Fewer fires are decided in this process before others have begun."""


def wanted_of(
    now: datetime,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    seed: int = 0,
    workers: Mapping[str, int] | None = None,
    duration: SpanLike | None = None,
    durations: Mapping[str, SpanLike] | None = None,
    failure_rate: float | None = None,
    targets: Mapping[str, int] | None = None,
    processes: int = 1,
) -> Wanted:
    """Check what is asked of a simulation; raises a kind of InvalidInputError that names the argument."""
    _require_instants(start=start, end=end)
    began = (start or now).astimezone(UTC).replace(second=0, microsecond=0)
    ends = began + YEAR if end is None else end.astimezone(UTC).replace(second=0, microsecond=0)
    if ends <= began:
        raise InvalidInputError("end", "must be a minute or more after the begin, or nothing happens")
    if ends - began > MOST_DAYS * _DAY:
        raise InvalidInputError("end", f"is more than {MOST_DAYS} days after the begin; simulate a shorter span")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidInputError("seed", "must be a whole number")
    _require_mappings(workers=workers, durations=durations, targets=targets)
    for queue, number in (workers or {}).items():
        _require_number("workers", number, MOST_WORKERS, f"{queue}={number!r} ")
    for name, number in (targets or {}).items():
        _require_number("targets", number, MOST_TARGETS, f"{name}={number!r} ")
    if failure_rate is not None and not (isinstance(failure_rate, int | float) and 0 <= failure_rate <= 1):
        raise InvalidInputError("failure_rate", "must be from 0 to 1, as 0.02 for 2 of 100 attempts")
    _require_number("processes", processes, MOST_PROCESSES)
    usual = None if duration is None else _length("duration", duration)
    named = {name: _length(f"durations.{name}", one) for name, one in (durations or {}).items()}
    given = dict(workers or {}), usual, named, failure_rate, dict(targets or {})
    return Wanted(began, ends, seed, *given, processes)


def _require_instants(**given: object) -> None:
    for name, instant in given.items():
        if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
            raise InvalidInputError(name, "must be an aware datetime, such as one with tzinfo=UTC")
        if isinstance(instant, datetime) and not 1970 <= instant.year < MAX_YEAR:
            raise InvalidInputError(name, f"must be in the years from 1970 to {MAX_YEAR - 1}")


def _require_mappings(**given: object) -> None:
    for name, mapping in given.items():
        if mapping is not None and not isinstance(mapping, Mapping):
            raise InvalidInputError(name, f"must be a mapping, not {type(mapping).__name__}; write {{'default': ...}}")


def _require_number(name: str, number: object, most: int, what: str = "") -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise InvalidInputError(name, f"{what}must be a whole number from 1 to {most:,}")


def _length(name: str, value: SpanLike) -> timedelta:
    try:
        found = to_span(value)
    except InvalidDurationError as error:
        raise InvalidDurationError(name, error.reason) from error
    if found < timedelta(0):
        raise InvalidDurationError(name, "must not be negative")
    return found


class _Part(NamedTuple):
    """What one process walks at once."""

    place: int
    """Which stretch it is of."""
    schedules: list[Simulated]
    start: datetime
    end: datetime
    seed: int
    workers: Mapping[str, int]
    limits: Mapping[str, Bounds]
    env: str


class Progress:
    """Told how a simulation goes on; this one tells nobody."""

    def begin(self, fires: int) -> None:
        """Note how many fires are to be decided, about, or counted."""

    def advance(self, fires: int) -> None:
        """Note that some more are."""


def simulate(
    entries: Sequence[Entry],
    wanted: Wanted,
    *,
    now: datetime,
    env: str = "",
    progress: Progress | None = None,
    beside: Sequence[Entry] = (),
) -> Simulation:
    """Simulate a span; see the module.

    Raises InvalidInputError for a queue, schedule or workflow that no schedule of it has, nor any `beside` them that
    they are compared with.
    """
    _require_known(wanted, (*entries, *beside))
    return _Simulating(entries, wanted, now, env, progress or Progress()).report()


class _Simulating:
    """One simulation, while it is computed."""

    def __init__(self, entries: Sequence[Entry], wanted: Wanted, now: datetime, env: str, progress: Progress) -> None:
        self._wanted, self._now, self._env, self._progress = wanted, now, env, progress
        self._start, self._end = wanted.start, wanted.end
        self._minutes_total = -(-(self._end - self._start) // _MINUTE)
        self._not_simulated: list[NotSimulated] = []
        self._assumed: list[str] = []
        self._expected: dict[str, tuple[Expected, str]] = {}
        self._spec_counts: dict[Any, int] = {}
        self._targets = {one.name: _targets_of(one, wanted) for one in entries}
        self._entries = self._rooted([*self._taking_part(entries)])
        self._counts = {one.name: self._count(self._first_of(one)[0]) for one in self._entries}
        # A target costs about as much as a fire.
        self._steps = sum(self._cost(one) for one in self._entries)
        if self._steps < wanted.least_shared:
            self._wanted = wanted._replace(processes=1)

    def _taking_part(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the schedules that are simulated, by name, and list what is not."""
        paused = 0
        for one in sorted(entries, key=lambda entry: entry.name):
            schedule = one.schedule
            if schedule.status is ScheduleStatus.PAUSED and schedule.resume_at is None:
                paused += 1
                continue
            if schedule.spec.newer:
                text = f"its timing says what only a newer release of rqsched knows ({schedule.spec.newer})"
                self._not_simulated.append(NotSimulated(one.name, text))
                continue
            if not schedule.spec.is_known:
                told = ", ".join(schedule.spec.missing_calendars)
                self._not_simulated.append(NotSimulated(one.name, f"it excludes calendars that are gone ({told})"))
                continue
            self._not_simulated += [NotSimulated(one.name, text) for text in _left_out(one, self._targets[one.name])]
            yield one
        if paused:
            self._assumed.append(f"Paused, and not to be resumed by itself: {paused}.")

    def _rooted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the schedules but for those whose chain begins with one that takes no part, and list these."""
        self._by_id = {(one.schedule.namespace, one.schedule.schedule_id): one for one in entries}
        found = []
        for one in entries:
            first, _ = self._first_of(one)
            after = one.schedule.spec.after
            if after is None or first.schedule.upstream_id is None:
                found.append(one)
            else:
                gone = f"{first.schedule.upstream_id}, which takes no part, is where its chain begins"
                self._not_simulated.append(NotSimulated(one.name, f"it comes {after_in_words(after)}; {gone}"))
        return found

    def _first_of(self, entry: Entry) -> tuple[Entry, bool]:
        """Return with which schedule a chain begins, its runs those of this one, and whether none of it is a failure's.

        One that is not there leaves the first that comes after it.
        """
        first, lefts, is_usual = entry, [entry.schedule.remaining], True
        while (schedule := first.schedule).upstream_id is not None and len(lefts) <= len(self._by_id):
            upstream = self._by_id.get((schedule.namespace, schedule.upstream_id))
            if upstream is None:
                break
            is_usual = is_usual and schedule.spec.after is not None and schedule.spec.after.on != "failure"
            first = upstream
            lefts.append(first.schedule.remaining)
        left = min((one for one in lefts if one is not None), default=None)
        return first._replace(schedule=changed(first.schedule, remaining=left)), is_usual

    def report(self) -> Simulation:
        """Compute it."""
        fires = sum(self._counts.values())
        is_decided = self._steps <= self._wanted.most_decided
        processes = self._wanted.processes
        with nullcontext(in_turn) if processes == 1 else side_by_side(processes) as imap:
            found = self._decide_all(imap, fires) if is_decided else self._count_all(imap, fires)
        days, peaks, queues, stretches, counts = found
        self._assume(is_decided=is_decided)
        return Simulation(
            start=self._start,
            end=self._end,
            seed=self._wanted.seed,
            is_decided=is_decided,
            fires=sum(day.fires for day in days),
            days=days,
            peaks=peaks,
            queues=queues,
            stretches=stretches,
            nights=[*self._nights()],
            schedules=[self._row(one, counts[one.name]) for one in self._entries],
            not_simulated=sorted(self._not_simulated, key=lambda one: one.name),
            assumed=self._assumed,
        )

    # What is decided

    def _decide_all(self, imap: Callable[..., Iterator[Any]], fires: int) -> _Found:
        self._progress.begin(fires)
        [(stretch, whole)] = self._decide(imap, [("span", self._start, self._end)])
        minutes = array("I", bytes(4 * self._minutes_total))
        for minute in whole.minutes:
            minutes[minute] += 1
        names = [*whole.told]
        queue_by_name = {one.name: one.queue for one in self._entries}
        of_queue = defaultdict[str, Counter[int]](Counter)
        for minute, place in zip(whole.minutes, whole.firing, strict=True):
            of_queue[queue_by_name[names[place]]][minute] += 1
        loads = busiest_first(queue_load(queue, self._start, counts) for queue, counts in of_queue.items())
        told = {name: one.fires for name, one in whole.told.items()}
        return _Found(self._days(minutes), self._peaks(minutes, whole), loads, [stretch], told)

    def _peaks(self, minutes: Sequence[int], whole: Walk) -> list[Peak]:
        high = highest_minutes(minutes)
        makers = {minute: Counter[int]() for minute in high}
        for minute, place in zip(whole.minutes, whole.firing, strict=True):
            if minute in makers:
                makers[minute][place] += 1
        names = [*whole.told]
        found = []
        for minute in high:
            firing = sorted((-count, names[place]) for place, count in makers[minute].items())
            listed = [name for _, name in firing[:NAMED]]
            found.append(Peak(self._start + minute * _MINUTE, minutes[minute], listed, len(firing) - len(listed)))
        return found

    def _decide(
        self, imap: Callable[..., Iterator[Any]], wanted: Sequence[tuple[str, datetime, datetime]]
    ) -> list[tuple[Stretch, Walk]]:
        """Decide stretches, the parts of all of them side by side."""
        parts = [part for place, (_, start, end) in enumerate(wanted) for part in self._parts(place, start, end)]
        walks = [Walk() for _ in wanted]
        for part, done in zip(parts, imap(_walk, parts, self._progress.advance), strict=True):
            walks[part.place].add(done)
        return [(self._stretch(*what, done), done) for what, done in zip(wanted, walks, strict=True)]

    def _parts(self, place: int, start: datetime, end: datetime) -> Iterator[_Part]:
        """Yield what may be walked apart, in about as many parts as keep all processes busy."""
        wanted = self._wanted
        number = 1 if wanted.processes == 1 else 4 * wanted.processes
        parts = [(0, place, list[Entry]()) for place in range(number)]
        for fires, _, some in sorted(self._together(), key=lambda one: (-one[0], one[1])):
            before, place_of_part, part = heappop(parts)
            part += some
            heappush(parts, (before + fires, place_of_part, part))
        for _, _, part in sorted(parts, key=lambda one: (-one[0], one[1])):
            given = [
                Simulated(
                    begin(one.schedule, start, self._now), one.name, one.queue, self._expect(one)[0], self._fan_out(one)
                )
                for one in part
            ]
            if given:
                yield _Part(place, given, start, end, wanted.seed, wanted.workers, _bounds(part), self._env)

    def _together(self) -> list[tuple[int, str, list[Entry]]]:
        """Return the schedules by what ties them together, with their fires and the name of the first.

        That is a queue whose workers are counted, a group with a limit, or a chain of schedules after one another.
        """
        parents = [*range(len(self._entries))]

        def root(place: int) -> int:
            while parents[place] != place:
                parents[place] = parents[parents[place]]
                place = parents[place]
            return place

        first_with = dict[Hashable, int]()
        for place, one in enumerate(self._entries):
            schedule = one.schedule
            ties: list[Hashable] = [(schedule.namespace, schedule.schedule_id)]
            ties += [one.queue] if one.queue in self._wanted.workers else []
            ties += [("limit", schedule.limit_group)] if any(one.bounds) else []
            ties += [(schedule.namespace, schedule.upstream_id)] if schedule.upstream_id is not None else []
            for tie in ties:
                parents[root(place)] = root(first_with.setdefault(tie, place))
        found = defaultdict[int, list[Entry]](list)
        for place, one in enumerate(self._entries):
            found[root(place)].append(one)
        return [(sum(map(self._cost, some)), some[0].name, some) for some in found.values()]

    def _cost(self, entry: Entry) -> int:
        """Return how many fires and targets of a schedule are to be decided, about."""
        return self._counts[entry.name] * (1 + (self._targets[entry.name] or 0))

    def _fan_out(self, entry: Entry) -> FanOut | None:
        number = self._targets[entry.name]
        return None if number is None else FanOut(number, entry.chunk)

    def _expect(self, entry: Entry) -> tuple[Expected, str]:
        """Return what a schedule's attempts are like, or those of its targets, and where that is from."""
        known = self._expected.get(entry.name)
        if known is not None:
            return known
        wanted, workflow = self._wanted, entry.schedule.definition.workflow
        measured, rate, timeout = entry.measured, entry.failure_rate, entry.timeout
        if self._targets[entry.name] is not None:
            measured, rate = entry.target_span, entry.target_failure_rate
            seconds = entry.schedule.policies.target_timeout
            timeout = timeout if seconds is None else timedelta(seconds=seconds)
        duration: timedelta | Spans
        if entry.name in wanted.durations:
            duration, origin = wanted.durations[entry.name], "schedule"
        elif workflow in wanted.durations:
            duration, origin = wanted.durations[workflow], "workflow"
        elif measured is not None:
            duration, origin = measured, "measured"
        elif wanted.duration is not None:
            duration, origin = wanted.duration, "all"
        else:
            duration, origin = timedelta(0), "nothing"
        rate = rate if wanted.failure_rate is None else wanted.failure_rate
        found = self._expected[entry.name] = Expected(duration, rate, timeout), origin
        return found

    def _stretch(self, why: str, start: datetime, end: datetime, done: Walk) -> Stretch:
        total = Told()
        for one in done.told.values():
            _add(total, one)
        rows = [_outcome(name, one) for name, one in sorted(done.told.items()) if _is_told(one)]
        queues = [_queue_outcome(name, line, start, end) for name, line in done.lines.items()]
        queues.sort(key=lambda one: (-one.wait_max_seconds, one.queue))
        bounds = _bounds(self._entries)
        limits = [
            _limit_outcome(self._limit_named(key), bounds[key], line, start, end) for key, line in done.groups.items()
        ]
        limits.sort(key=lambda one: (-one.wait_max_seconds, one.limit))
        return Stretch(why, start, end, _outcome("", total), queues, limits, rows)

    def _limit_named(self, key: str) -> str:
        """Return what people call a group: its name, with its namespace where several are simulated."""
        return key if any(one.name != one.schedule.schedule_id for one in self._entries) else split_key(key)[1]

    # What is counted

    def _count_all(self, imap: Callable[..., Iterator[Any]], fires: int) -> _Found:
        entries, start = self._entries, self._start
        cuts = range(0, self._minutes_total, _WINDOW)
        windows = [Window(start + at * _MINUTE, min(_WINDOW, self._minutes_total - at)) for at in cuts]
        firsts = [(one, *self._first_of(one)) for one in entries]
        slim = [
            (begin(first.schedule, start, self._now), one.queue, one.name)
            for one, first, is_usual in firsts
            if is_usual
        ]
        self._progress.begin(fires)
        loads: list[Load] = []
        loads += imap(partial(_count, slim, start), windows, self._progress.advance)
        minutes = array("I")
        for load in loads:
            minutes.extend(load.minutes)
        days = self._days(minutes)
        most = usual_most(minutes)
        peaks = [peak for load in loads for peak in load.peaks if peak.fires > most]
        for text in dict.fromkeys(text for load in loads for text in load.assumed[1:]):
            self._assumed.append(text)
        stretches = self._decide(imap, self._chosen(minutes, days))
        told = {one.name: self._counts[one.name] * is_usual for one, _, is_usual in firsts}
        return _Found(
            days,
            sorted(peaks, key=lambda one: (-one.fires, one.at))[:MOST_PEAKS],
            busiest_first(_together([queue for load in loads for queue in load.queues])),
            [stretch for stretch, _ in stretches],
            told,
        )

    def _chosen(self, minutes: Sequence[int], days: Sequence[SimulatedDay]) -> list[tuple[str, datetime, datetime]]:
        """Return what is decided where fires are counted, within the bound: the busiest day, and changes of clocks."""
        fires_of_all = sum(self._counts.values())
        left, found = self._wanted.most_decided * fires_of_all // self._steps, list[tuple[str, datetime, datetime]]()

        def take(why: str, start: datetime, end: datetime) -> bool:
            nonlocal left
            start, end = max(start, self._start), min(end, self._end)
            first, last = ((at - self._start) // _MINUTE for at in (start, end))
            fires = sum(islice(minutes, first, last))
            if fires > left:
                return False
            left -= fires
            found.append((why, start, end))
            return True

        day = min(days, key=lambda one: (-one.fires, one.start))
        midnight = day.start.replace(hour=0, minute=0)
        if not take("busiest_day", midnight, midnight + _DAY):
            hour = day.peak_at.replace(minute=0)
            if take("busiest_hour", hour, hour + _HOUR):
                self._assumed.append("The busiest day has too many fires to be decided: its highest hour was.")
        left_out = [
            at
            for at in dict.fromkeys(at for at, _, _ in self._changes())
            if not (take("clocks", at - _NIGHT, at + _NIGHT) or take("clocks", at - _HOUR, at + _HOUR))
        ]
        if left_out:
            number = len(left_out)
            self._assumed.append(f"{number} {_plural('change', number)} of clocks would be too many fires to decide.")
        return found

    def _count(self, entry: Entry) -> int:
        """Count the fires of a schedule, by arithmetic where its timing allows it."""
        schedule = begin(entry.schedule, self._start, self._now)
        if schedule.resume_at is not None:
            first = max(schedule.resume_at, self._start)
        elif schedule.next_run_at is None or schedule.due_at is None or schedule.due_at >= self._end:
            return 0
        else:
            first = max(schedule.next_run_at, self._start)
        if is_alone(schedule.spec):
            count = (self._end - first) // base_of(schedule.spec) + 1
        else:
            known = (schedule.definition.spec, schedule.contents, schedule.skips, first)
            if known not in self._spec_counts:
                found = schedule.timeline.count_between(first - TICK, self._end - TICK, cap=_COUNTED)
                self._spec_counts[known] = found.total
            count = self._spec_counts[known]
        return count if schedule.remaining is None else min(count, schedule.remaining)

    # What both have

    def _days(self, minutes: Sequence[int]) -> list[SimulatedDay]:
        found, at = [], 0
        while at < len(minutes):
            start = self._start + at * _MINUTE
            end = min(at + 1440 - (start.hour * 60 + start.minute), len(minutes))
            of_day = minutes[at:end]
            most = max(of_day)
            peak = start + of_day.index(most) * _MINUTE
            found.append(SimulatedDay(start, sum(of_day), most, peak))
            at = end
        return found

    def _row(self, entry: Entry, fires: int) -> SimulatedSchedule:
        expected, origin = self._expect(entry)
        schedule = entry.schedule
        return SimulatedSchedule(
            entry.name,
            schedule.definition.workflow,
            entry.queue,
            schedule.spec.describe(),
            fires,
            round(_half(expected).total_seconds(), 6),
            origin,
            round(expected.failure_rate, 6),
            self._targets[entry.name],
        )

    def _changes(self) -> list[tuple[datetime, str, timedelta]]:
        """Return where clocks change in the zones of crons, in order."""
        zones = {zone for one in self._entries for zone in _zones(one.schedule.spec)}
        found = []
        for zone in sorted(zones):
            before: timedelta | None = None
            for span in spans_from(require_timezone(zone), self._start.replace(tzinfo=None)):
                at = span.start.replace(tzinfo=UTC)
                if at >= self._end:
                    break
                if before is not None and span.offset != before and at >= self._start:
                    found.append((at, zone, span.offset - before))
                before = span.offset
        return sorted(found)

    def _nights(self) -> Iterator[ClockNight]:
        by_zone = defaultdict[str, dict[str, list[Entry]]](lambda: defaultdict(list))
        for one in self._entries:
            for zone in _zones(one.schedule.spec):
                by_zone[zone][one.schedule.definition.spec].append(one)
        for at, zone, by in self._changes():
            effects = [
                ClockEffect(some[0].schedule.spec.describe(), *told, [one.name for one in some[:_MOST_NAMED]],
                            max(len(some) - _MOST_NAMED, 0))
                for some in by_zone[zone].values()
                for told in _effects(some[0].schedule.spec, at, by)
            ]  # fmt: skip
            yield ClockNight(at, zone, int(by.total_seconds()), effects)

    def _assume(self, *, is_decided: bool) -> None:
        rows = [self._expect(one) for one in self._entries]
        origins = Counter(origin for _, origin in rows)
        told = [
            "Nothing is late but what waits for a worker: no outage, freeze or hold, no trigger, backfill or edit.",
            "A run that lasts until the next fire is in its way, and so is one that waits for a worker.",
            "Each worker serves one queue. A run that is cancelled keeps its worker until it would have ended.",
            "The span begins idle: what runs or waits at its begin is left out.",
        ]
        if not is_decided:
            told[0:0] = [
                "There are too many fires to decide each: fires, days and peaks are counted, as `rqsched load` does; "
                "what overlaps, waits and is skipped is decided in the stretches alone, each from idle workers on."
            ]
        if origins["measured"]:
            number = origins["measured"]
            told.append(f"Durations of {number} {_plural('schedule', number)} are measured: what its runs of the last "
                        f"{MEASURED_DAYS} days took.")  # fmt: skip
        given = origins["schedule"] + origins["workflow"] + origins["all"]
        if given:
            told.append(f"Durations of {given} {_plural('schedule', given)} are given.")
        if origins["nothing"]:
            number = origins["nothing"]
            told.append(f"Nothing is known of how long the runs of {number} {_plural('schedule', number)} take: no "
                        "time was taken, so they neither overlap nor keep a worker. Give a duration.")  # fmt: skip
        rate = self._wanted.failure_rate
        if rate is not None:
            told.append(f"{rate:.2%} of the attempts fail, as given; a retry policy repeats all of them.")
        else:
            number = sum(expected.failure_rate > 0 for expected, _ in rows)
            of = f"{number} {_plural('schedule', number)}"
            fails = f"Attempts of {of} fail as often as they did so far; a retry policy repeats what fails."
            told.append(fails if number else "No attempt fails: none is known to have.")
        late = sum(expected.timeout is not None and _half(expected) >= expected.timeout for expected, _ in rows)
        if late:
            told.append(
                f"Half or more of the attempts of {late} {_plural('schedule', late)} reach their timeout and fail."
            )
        free = sorted({one.queue for one in self._entries} - set(self._wanted.workers))
        if free:
            told.append(f"There is always a free worker for {', '.join(free[:_MOST_NAMED])}"
                        f"{' and others' if len(free) > _MOST_NAMED else ''}.")  # fmt: skip
        if any(one.schedule.policies.environments for one in self._entries):
            told.append(f"RQSCHED_ENV is {self._env!r}.")
        number = sum(self._targets[one.name] is not None for one in self._entries)
        if number:
            told.append(
                f"Runs of {number} {_plural('schedule', number)} have targets: as many as is given, or as the newest "
                "run had. To name them takes no time and does not fail; durations and failures are those of a target."
            )
        self._assumed[0:0] = [*told, *self._of_chains(is_decided=is_decided)]

    def _of_chains(self, *, is_decided: bool) -> Iterator[str]:
        number = sum(one.schedule.upstream_id is not None for one in self._entries)
        if number:
            yield f"{number} {_plural('schedule', number)} after another: each run begins with the end that it follows."
        if number and not is_decided:
            yield (
                "Where fires are counted, each of those fires with the one that its chain begins with, in the same "
                "minute, as if every run of that succeeded; what comes after a failure is not counted."
            )


class _Found(NamedTuple):
    days: list[SimulatedDay]
    peaks: list[Peak]
    queues: list[QueueLoad]
    stretches: list[Stretch]
    fires: dict[str, int]


def _walk(part: _Part, progress: Callable[[int], None]) -> Walk:
    return walk(
        part.schedules, part.start, part.end, seed=part.seed, workers=part.workers, limits=part.limits, env=part.env,
        progress=progress,
    )  # fmt: skip


def _count(
    schedules: Sequence[tuple[Schedule, str, str]], now: datetime, window: Window, progress: Callable[[int], None]
) -> Load:
    """Count the fires of a window, as the load does."""
    counting = Counting(window, window.start - TICK, _MOST_WALKED)
    for schedule, queue, name in schedules:
        there = begin(schedule, window.start, now)
        if there.resume_at is not None or (there.due_at is not None and there.due_at < window.end):
            counting.add(there, queue, name)
    load = counting.load(None)
    progress(load.fires)
    return load


def usable_processes() -> int:
    """Return how many processes this one may use at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _together(loads: Iterable[QueueLoad]) -> list[QueueLoad]:
    found: dict[str, QueueLoad] = {}
    for one in loads:
        before = found.get(one.queue)
        if before is not None:
            highest = min(before, one, key=lambda load: (-load.peak_fires, load.peak_at))
            both = before.fires + one.fires
            found[one.queue] = QueueLoad(one.queue, both, highest.peak_at, highest.peak_fires)
        else:
            found[one.queue] = one
    return [*found.values()]


def _add(total: Told, one: Told) -> None:
    for name in ("fires", "started", "overlapped", "waited", "replaced", "missed", "excluded", "retries", "open"):
        setattr(total, name, getattr(total, name) + getattr(one, name))
    total.targets.update(one.targets)
    total.skipped.update(one.skipped)
    total.ended.update(one.ended)


def _is_told(one: Told) -> bool:
    """Return whether there is more to tell than that its runs succeeded."""
    is_other = one.overlapped or one.missed or one.skipped or one.retries or one.excluded or one.targets
    return bool(is_other or set(one.ended) - {"succeeded"} or one.status not in {"active", "paused"})


def _outcome(name: str, one: Told) -> ScheduleOutcome:
    return ScheduleOutcome(
        name, one.fires, one.started, one.overlapped, one.waited, one.replaced, one.missed, one.excluded, one.retries,
        dict(sorted(one.skipped.items())), dict(sorted(one.ended.items())), dict(sorted(one.targets.items())), one.open,
        one.status,
    )  # fmt: skip


def _queue_outcome(name: str, line: Line, start: datetime, end: datetime) -> QueueOutcome:
    busy = None if line.workers is None else round(line.busy / (line.workers * (end - start)), 4)
    return QueueOutcome(
        name, line.workers, len(line.waits), *_waits(line), busy, line.waiting, _keeps_up(line, start, end),
        _behind(line),
    )  # fmt: skip


def _bounds(entries: Iterable[Entry]) -> dict[str, Bounds]:
    """Return what each group allows of which that is known."""
    return {
        one.schedule.limit_group: one.bounds
        for one in entries
        if one.schedule.limit_group is not None and any(one.bounds)
    }


def _limit_outcome(name: str, bounds: Bounds, line: Line, start: datetime, end: datetime) -> LimitOutcome:
    full, held = (round(took / (end - start), 4) for took in (line.busy, line.held))
    return LimitOutcome(
        name, bounds.number, bounds.rate and str(bounds.rate), len(line.waits), *_waits(line), line.most,
        None if bounds.number is None else full, None if bounds.rate is None else held,
        line.waiting, _keeps_up(line, start, end), _behind(line),
    )  # fmt: skip


def _waits(line: Line) -> tuple[float, float, float]:
    """Return what half of a line waited at most, what 95 of 100, and the longest wait, in seconds."""
    waits = sorted(line.waits) or [0.0]
    p50, p95 = (waits[min(int(share * len(waits)), len(waits) - 1)] for share in (0.5, 0.95))
    return round(p50, 3), round(p95, 3), round(waits[-1], 3)


def _keeps_up(line: Line, start: datetime, end: datetime) -> bool:
    span = min(_DAY, (end - start) / 2)
    return not (line.waiting and any(one.end == end and one.end - one.start >= span for one in line.behind))


def _behind(line: Line) -> list[QueueBehind]:
    return [
        QueueBehind(one.start, one.end, one.most, round(one.longest.total_seconds(), 3))
        for one in line.behind
        if one.most and one.end > one.start
    ]


def _zones(spec: Spec) -> set[str]:
    """Return the zones that the crons of a spec follow."""
    return {one.timezone or spec.timezone for one in spec.members if isinstance(one, Cron) and one.every is None} - {
        "UTC"
    }


def _effects(spec: Spec, at: datetime, by: timedelta) -> Iterator[tuple[str, str, list[datetime]]]:
    """Yield what a change of clocks does to a timing: the effect, the local time it names, and when that fires."""
    if by > timedelta(0):
        for gap in spec.gaps_between(at - TICK, at + by):
            is_shifted = spec.dst_gap == "shift"
            yield (
                "shifted" if is_shifted else "skipped",
                f"{gap.reading:%Y-%m-%d %H:%M}",
                [gap.occurrence_at] * is_shifted,
            )
        return
    for zone in sorted(_zones(spec)):
        clock = require_timezone(zone)
        first = {one.astimezone(clock).replace(tzinfo=None, fold=0): one for one in spec.between(at + by, at)}
        for again in spec.between(at, at - by):
            local = again.astimezone(clock).replace(tzinfo=None, fold=0)
            if local in first and spec.dst_fold == "both":
                yield "doubled", f"{local:%Y-%m-%d %H:%M}", [first[local], again]


def _require_known(wanted: Wanted, given: Sequence[Entry]) -> None:
    queues = sorted({one.queue for one in given})
    for queue in wanted.workers:
        if queue not in queues:
            hint = did_you_mean(queue, queues) or f"; name one of {', '.join(queues) or 'none'}"
            raise InvalidInputError("workers", f"{queue!r} is a queue of no schedule that is simulated{hint}")
    names = {name for one in given for name in (one.name, one.schedule.definition.workflow)}
    for argument, by_name in (("durations", wanted.durations), ("targets", wanted.targets)):
        for name in by_name:
            if name not in names:
                text = f"{name!r} must be a schedule or a workflow of one{did_you_mean(name, names)}"
                raise InvalidInputError(argument, text)


def _targets_of(entry: Entry, wanted: Wanted) -> int | None:
    """Return how many targets each run of a schedule has; None where it has none, or nobody says how many."""
    by_name = wanted.targets
    return by_name.get(entry.name, by_name.get(entry.schedule.definition.workflow, entry.targets))


def _left_out(entry: Entry, targets: int | None) -> Iterator[str]:
    """Yield what is not simulated of a schedule that takes part."""
    schedule = entry.schedule
    if schedule.policies.targets is not None and targets is None:
        place = ", with one place of its limit" if schedule.limit_group is not None else ""
        yield f"its targets: nobody says how many a run has (targets), so each run counts as one attempt{place}"
    if schedule.limit_group is not None and not any(entry.bounds):
        says = "nobody says its number (limit_running) or its rate (limit_rate) here"
        yield f"its limit {schedule.limit}: {says}, so its runs wait for no place"
    if entry.lacks:
        yield f"its calendars {', '.join(entry.lacks)}: what they exclude is in the database, which was not asked"


def _half(expected: Expected) -> timedelta:
    """Return how long half of the attempts take at most."""
    return expected.duration if isinstance(expected.duration, timedelta) else expected.duration.at(0.5)


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"
