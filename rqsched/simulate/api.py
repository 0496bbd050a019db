"""Simulate a span: choose the schedules that take part, decide each of their fires, and report the outcome.

A span with more than MOST_FIRES fires is refused before the first fire is decided.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rqsched.errors import InvalidDurationError, InvalidInputError, did_you_mean
from rqsched.features.limits.decide import Bounds
from rqsched.kernel.decide.delays import base_of
from rqsched.kernel.decide.limit_options import split_key
from rqsched.kernel.decide.model import ScheduleStatus, changed
from rqsched.kernel.decide.occurrences import TICK
from rqsched.kernel.decide.results import Peak, number_of
from rqsched.simulate.decide import Expected, Simulated, Spans, Told, Walk, begin, walk
from rqsched.simulate.entries import MEASURED_DAYS, Entry
from rqsched.simulate.lines import Line
from rqsched.simulate.load import NAMED, busiest_first, highest_minutes, is_alone, queue_load
from rqsched.simulate.report import (
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
    SimulationOutcome,
)
from rqsched.when.duration import SpanLike, to_span
from rqsched.when.members import Cron
from rqsched.when.spec import Spec
from rqsched.when.words import after_in_words
from rqsched.when.zones import require_timezone, spans_from

MOST_FIRES = 3_000_000
"""The maximum number of fires of a simulation. To decide one fire and the end of its run takes about a third of a
millisecond."""
MOST_DAYS = 1_100
"""The longest span that can be simulated: three years."""
MAX_YEAR = 9990
"""A span must end before this year, because `datetime` allows only years up to 9999."""
MOST_WORKERS = 1_000_000
"""The maximum number of workers of a queue. More workers would change no simulation."""
YEAR = timedelta(days=365)
"""The default span."""
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
_MOST_NAMED = 10
_COUNTED = 100_000
"""The maximum number of occurrences that are counted one by one, if arithmetic cannot give their number."""


class Wanted(NamedTuple):
    """The parameters of a simulation."""

    start: datetime
    """The start of the span: a whole minute."""
    end: datetime
    """The first instant after the span: a whole minute."""
    seed: int = 0
    """The seed from which all random values are computed."""
    workers: Mapping[str, int] = {}
    """How many attempts each queue executes at once. A queue that is not named here executes any number."""
    duration: timedelta | None = None
    """How long an attempt takes if its schedule has no measurement."""
    durations: Mapping[str, timedelta] = {}
    """How long attempts take, by the name of a schedule or workflow. These values override measurements."""
    failure_rate: float | None = None
    """The fraction of all attempts that fails; None uses the measured fraction."""
    most_fires: int = MOST_FIRES
    """The maximum number of fires. A span with more fires is refused."""


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
) -> Wanted:
    """Check the parameters of a simulation; raises InvalidInputError or a subclass. The error names the argument."""
    _require_instants(start=start, end=end)
    began = (start or now).astimezone(UTC).replace(second=0, microsecond=0)
    ends = began + YEAR if end is None else end.astimezone(UTC).replace(second=0, microsecond=0)
    if ends <= began:
        raise InvalidInputError("end", "must be at least a minute after the start, or nothing happens")
    if ends - began > MOST_DAYS * _DAY:
        raise InvalidInputError("end", f"is more than {MOST_DAYS} days after the start; simulate a shorter span")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidInputError("seed", "must be a whole number")
    for name, mapping in (("workers", workers), ("durations", durations)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise InvalidInputError(name, f"must be a mapping, not {type(mapping).__name__}; write {{'default': ...}}")
    for queue, number in (workers or {}).items():
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_WORKERS:
            told = f"{queue}={number!r} must be a whole number from 1 to {MOST_WORKERS:,}"
            raise InvalidInputError("workers", told)
    if failure_rate is not None and not (isinstance(failure_rate, int | float) and 0 <= failure_rate <= 1):
        raise InvalidInputError("failure_rate", "must be from 0 to 1, such as 0.02 for 2 of 100 attempts")
    usual = None if duration is None else _length("duration", duration)
    named = {name: _length(f"durations.{name}", one) for name, one in (durations or {}).items()}
    return Wanted(began, ends, seed, dict(workers or {}), usual, named, failure_rate)


def _require_instants(**given: object) -> None:
    for name, instant in given.items():
        if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
            raise InvalidInputError(name, "must be an aware datetime, such as one with tzinfo=UTC")
        if isinstance(instant, datetime) and not 1970 <= instant.year < MAX_YEAR:
            raise InvalidInputError(name, f"must be in the years from 1970 to {MAX_YEAR - 1}")


def _length(name: str, value: SpanLike) -> timedelta:
    try:
        found = to_span(value)
    except InvalidDurationError as error:
        raise InvalidDurationError(name, error.reason) from error
    if found < timedelta(0):
        raise InvalidDurationError(name, "must not be negative")
    return found


class Progress:
    """A listener for the progress of a simulation. This base class does nothing."""

    def begin(self, fires: int) -> None:
        """Receive the approximate number of fires that will be decided."""

    def advance(self, fires: int) -> None:
        """Receive the number of fires that were decided since the last call."""


def simulate(
    entries: Sequence[Entry], wanted: Wanted, *, now: datetime, env: str = "", progress: Progress | None = None
) -> Simulation:
    """Simulate a span of time and return the report.

    Raises InvalidInputError if `wanted` names a queue, schedule or workflow that no simulated schedule has, or if the
    span has too many fires.
    """
    queues = sorted({one.queue for one in entries})
    for queue in wanted.workers:
        if queue not in queues:
            hint = did_you_mean(queue, queues) or f"; name one of {', '.join(queues) or 'none'}"
            raise InvalidInputError("workers", f"no simulated schedule uses the queue {queue!r}{hint}")
    names = {name for one in entries for name in (one.name, one.schedule.definition.workflow)}
    for name in wanted.durations:
        if name not in names:
            text = f"{name!r} is not a simulated schedule or its workflow{did_you_mean(name, names)}"
            raise InvalidInputError("durations", text)
    return _Simulating(entries, wanted, now, env, progress or Progress()).report()


class _Simulating:
    """One simulation while it is computed."""

    def __init__(self, entries: Sequence[Entry], wanted: Wanted, now: datetime, env: str, progress: Progress) -> None:
        self._wanted, self._now, self._env, self._progress = wanted, now, env, progress
        self._start, self._end = wanted.start, wanted.end
        self._minutes_total = -(-(self._end - self._start) // _MINUTE)
        self._not_simulated: list[NotSimulated] = []
        self._assumed: list[str] = []
        self._expected: dict[str, tuple[Expected, str]] = {}
        self._spec_counts: dict[Any, int] = {}
        self._entries = self._rooted([*self._taking_part(entries)])
        fires = sum(self._count(self._first_of(one)) for one in self._entries)
        if fires > wanted.most_fires:
            raise InvalidInputError(
                "end", f"makes about {fires:,} fires, more than {wanted.most_fires:,}; give an earlier end"
            )
        self._fires = fires

    def _taking_part(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the schedules that are simulated, in the order of their names. Add the others to `_not_simulated`."""
        paused = 0
        for one in sorted(entries, key=lambda entry: entry.name):
            schedule = one.schedule
            if schedule.status is ScheduleStatus.PAUSED and schedule.resume_at is None:
                paused += 1
                continue
            if schedule.spec.newer:
                text = f"its timing needs a newer release of rqsched ({schedule.spec.newer})"
                self._not_simulated.append(NotSimulated(one.name, text))
                continue
            if not schedule.spec.is_known:
                told = ", ".join(schedule.spec.missing_calendars)
                self._not_simulated.append(NotSimulated(one.name, f"it excludes calendars that do not exist ({told})"))
                continue
            self._not_simulated += [NotSimulated(one.name, text) for text in _left_out(one)]
            yield one
        if paused:
            self._assumed.append(
                f"Not simulated, because paused without an end of the pause: {number_of(paused, 'schedule')}."
            )

    def _rooted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the schedules that can be simulated. If a schedule's first upstream is not simulated, the schedule is
        added to `_not_simulated` instead.
        """
        self._by_id = {(one.schedule.namespace, one.schedule.schedule_id): one for one in entries}
        found = []
        for one in entries:
            first = self._first_of(one)
            after = one.schedule.spec.after
            if after is None or first.schedule.upstream_id is None:
                found.append(one)
            else:
                gone = f"its chain begins with {first.schedule.upstream_id}, which is not simulated"
                self._not_simulated.append(NotSimulated(one.name, f"it comes {after_in_words(after)}; {gone}"))
        return found

    def _first_of(self, entry: Entry) -> Entry:
        """Return the first schedule of a schedule's chain of upstreams. Its `remaining` becomes the least of the chain.

        If an upstream is missing, the chain begins with the schedule that follows it.
        """
        first, lefts = entry, [entry.schedule.remaining]
        while (schedule := first.schedule).upstream_id is not None and len(lefts) <= len(self._by_id):
            upstream = self._by_id.get((schedule.namespace, schedule.upstream_id))
            if upstream is None:
                break
            first = upstream
            lefts.append(first.schedule.remaining)
        left = min((one for one in lefts if one is not None), default=None)
        return first._replace(schedule=changed(first.schedule, remaining=left))

    def report(self) -> Simulation:
        """Decide all fires of the span and return the report."""
        self._progress.begin(self._fires)
        wanted = self._wanted
        bounds = {
            one.schedule.limit_group: one.bounds
            for one in self._entries
            if one.schedule.limit_group is not None and any(one.bounds)
        }
        given = [
            Simulated(begin(one.schedule, self._start, self._now), one.name, one.queue, self._expect(one)[0])
            for one in self._entries
        ]
        whole = walk(
            given, self._start, self._end, seed=wanted.seed, workers=wanted.workers, limits=bounds, env=self._env,
            progress=self._progress.advance,
        )  # fmt: skip
        minutes = array("I", bytes(4 * self._minutes_total))
        for minute in whole.minutes:
            minutes[minute] += 1
        names = [*whole.told]
        queue_by_name = {one.name: one.queue for one in self._entries}
        of_queue = defaultdict[str, Counter[int]](Counter)
        for minute, place in zip(whole.minutes, whole.firing, strict=True):
            of_queue[queue_by_name[names[place]]][minute] += 1
        return Simulation(
            start=self._start,
            end=self._end,
            seed=wanted.seed,
            fires=len(whole.minutes),
            days=self._days(minutes),
            peaks=self._peaks(minutes, whole),
            queues=busiest_first(queue_load(queue, self._start, counts) for queue, counts in of_queue.items()),
            outcome=self._outcome(whole, bounds),
            nights=[*self._nights()],
            schedules=[self._row(one, whole.told[one.name].fires) for one in self._entries],
            not_simulated=sorted(self._not_simulated, key=lambda one: one.name),
            assumed=[*self._assume(), *self._assumed],
        )

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

    def _expect(self, entry: Entry) -> tuple[Expected, str]:
        """Return the duration and failures to expect of a schedule's attempts, and the source of these values."""
        known = self._expected.get(entry.name)
        if known is not None:
            return known
        wanted, workflow = self._wanted, entry.schedule.definition.workflow
        duration: timedelta | Spans
        if entry.name in wanted.durations:
            duration, origin = wanted.durations[entry.name], "schedule"
        elif workflow in wanted.durations:
            duration, origin = wanted.durations[workflow], "workflow"
        elif entry.measured is not None:
            duration, origin = entry.measured, "measured"
        elif wanted.duration is not None:
            duration, origin = wanted.duration, "all"
        else:
            duration, origin = timedelta(0), "nothing"
        rate = entry.failure_rate if wanted.failure_rate is None else wanted.failure_rate
        found = self._expected[entry.name] = Expected(duration, rate, entry.timeout), origin
        return found

    def _outcome(self, done: Walk, bounds: Mapping[str, Bounds]) -> SimulationOutcome:
        start, end = self._start, self._end
        total = Told()
        for one in done.told.values():
            _add(total, one)
        rows = [_outcome(name, one) for name, one in sorted(done.told.items()) if _is_told(one)]
        queues = [_queue_outcome(name, line, start, end) for name, line in done.lines.items()]
        queues.sort(key=lambda one: (-one.wait_max_seconds, one.queue))
        has_namespaces = any(one.name != one.schedule.schedule_id for one in self._entries)
        limits = [
            _limit_outcome(key if has_namespaces else split_key(key)[1], bounds[key], line, start, end)
            for key, line in done.groups.items()
        ]
        limits.sort(key=lambda one: (-one.wait_max_seconds, one.limit))
        return SimulationOutcome(_outcome("", total), queues, limits, rows)

    def _count(self, entry: Entry) -> int:
        """Return how many times a schedule fires, by arithmetic if its timing allows it."""
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
        )

    def _changes(self) -> list[tuple[datetime, str, timedelta]]:
        """Return the clock changes in the zones of crons, in order: instant, zone and change of the offset."""
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

    def _assume(self) -> list[str]:
        rows = [self._expect(one) for one in self._entries]
        origins = Counter(origin for _, origin in rows)
        told = [
            "A run is late only if it waits for a worker: no outage, freeze, trigger, backfill or edit happens.",
            "A run overlaps the next fire if it still runs then, or still waits for a worker.",
            "Each worker serves one queue. A cancelled run keeps its worker until its usual end.",
            "The span begins idle: runs that execute or wait at its start are left out.",
        ]
        if origins["measured"]:
            number = origins["measured"]
            told.append(f"Durations of {number_of(number, 'schedule')} are measured, from runs of the last "
                        f"{MEASURED_DAYS} days.")  # fmt: skip
        given = origins["schedule"] + origins["workflow"] + origins["all"]
        if given:
            told.append(f"Durations of {number_of(given, 'schedule')} are given.")
        if origins["nothing"]:
            number = origins["nothing"]
            told.append(f"Durations of {number_of(number, 'schedule')} are unknown: their runs end at once, so "
                        "they never overlap or occupy a worker. Give a duration.")  # fmt: skip
        rate = self._wanted.failure_rate
        if rate is not None:
            told.append(f"{rate:.2%} of the attempts fail, as given. Retry policies repeat every failed attempt.")
        else:
            number = sum(expected.failure_rate > 0 for expected, _ in rows)
            of = number_of(number, "schedule")
            fails = f"Attempts of {of} fail as often as they did so far. Retry policies repeat every failed attempt."
            told.append(fails if number else "No attempt fails, because no failure is on record.")
        late = sum(expected.timeout is not None and _half(expected) >= expected.timeout for expected, _ in rows)
        if late:
            told.append(f"At least half of the attempts of {number_of(late, 'schedule')} reach their timeout and fail.")
        free = sorted({one.queue for one in self._entries} - set(self._wanted.workers))
        if free:
            told.append(f"There is always a free worker for {', '.join(free[:_MOST_NAMED])}"
                        f"{' and others' if len(free) > _MOST_NAMED else ''}.")  # fmt: skip
        if any(one.schedule.policies.environments for one in self._entries):
            told.append(f"RQSCHED_ENVIRONMENT is {self._env!r}.")
        number = sum(one.schedule.upstream_id is not None for one in self._entries)
        if number:
            told.append(
                f"{number_of(number, 'schedule')} after another: each run begins at the end of the upstream run."
            )
        return told


def _add(total: Told, one: Told) -> None:
    for name in ("fires", "started", "overlapped", "waited", "replaced", "missed", "excluded", "retries", "open"):
        setattr(total, name, getattr(total, name) + getattr(one, name))
    total.skipped.update(one.skipped)
    total.ended.update(one.ended)


def _is_told(one: Told) -> bool:
    """Return whether a schedule had other outcomes than successful runs."""
    is_other = one.overlapped or one.missed or one.skipped or one.retries or one.excluded
    return bool(is_other or set(one.ended) - {"succeeded"} or one.status not in {"active", "paused"})


def _outcome(name: str, one: Told) -> ScheduleOutcome:
    return ScheduleOutcome(
        name, one.fires, one.started, one.overlapped, one.waited, one.replaced, one.missed, one.excluded, one.retries,
        dict(sorted(one.skipped.items())), dict(sorted(one.ended.items())), one.open, one.status,
    )  # fmt: skip


def _queue_outcome(name: str, line: Line, start: datetime, end: datetime) -> QueueOutcome:
    busy = None if line.workers is None else round(line.busy / (line.workers * (end - start)), 4)
    return QueueOutcome(
        name, line.workers, len(line.waits), *_waits(line), busy, line.waiting, _keeps_up(line, start, end),
        _behind(line),
    )  # fmt: skip


def _limit_outcome(name: str, bounds: Bounds, line: Line, start: datetime, end: datetime) -> LimitOutcome:
    full, held = (round(took / (end - start), 4) for took in (line.busy, line.held))
    return LimitOutcome(
        name, bounds.number, bounds.rate and str(bounds.rate), len(line.waits), *_waits(line), line.most,
        None if bounds.number is None else full, None if bounds.rate is None else held,
        line.waiting, _keeps_up(line, start, end), _behind(line),
    )  # fmt: skip


def _waits(line: Line) -> tuple[float, float, float]:
    """Return the median, the 95th percentile and the longest wait of a line, in seconds."""
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
    """Return the zones in which the crons of a spec are read, except UTC."""
    return {one.timezone or spec.timezone for one in spec.members if isinstance(one, Cron) and one.every is None} - {
        "UTC"
    }


def _effects(spec: Spec, at: datetime, by: timedelta) -> Iterator[tuple[str, str, list[datetime]]]:
    """Yield the effects of a clock change on a timing: what happens, the local time, and the fires there."""
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


def _left_out(entry: Entry) -> Iterator[str]:
    """Yield the parts of a simulated schedule that are not simulated."""
    schedule = entry.schedule
    if schedule.policies.targets is not None:
        place = ", with one place of its limit" if schedule.limit_group is not None else ""
        yield f"its targets: each run counts as one attempt{place}"
    if schedule.limit_group is not None and not any(entry.bounds):
        says = "its number (limit_running) and rate (limit_rate) are not known"
        yield f"its limit {schedule.limit}: {says}, so its runs wait for no place"
    if entry.lacks:
        yield f"its calendars {', '.join(entry.lacks)}: their contents are in the database, which was not read"


def _half(expected: Expected) -> timedelta:
    """Return the expected median duration of an attempt."""
    return expected.duration if isinstance(expected.duration, timedelta) else expected.duration.at(0.5)
