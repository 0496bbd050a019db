"""The load: the number of fires in each coming minute, the schedules that cause the peaks, and the load of each queue.

Schedules that fire in the same minutes form a herd, which is counted only once. A herd consists of schedules with the
same timing and next time, or of equal intervals of whole minutes that fire in the same minute. An interval is counted
by arithmetic. Any other timing is counted instant by instant, up to a bound. Fires beyond this bound are counted by
arithmetic, and spread evenly over the minutes. The result lists its assumptions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from heapq import nsmallest
from itertools import chain, count, dropwhile, islice
from typing import NamedTuple

from rqsched.api.build_description import iter_upcoming
from rqsched.errors import InvalidInputError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.delays import later
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.occurrences import TICK, due_of, longest_delay
from rqsched.kernel.decide.results import MAX_PAGE, Load, Peak, QueueLoad
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.schedules import Filters, Position
from rqsched.when.spec import Spec
from rqsched.when.steps import spend
from rqsched.when.timeline import Grid

MOST_HOURS = 744
"""The maximum number of hours that are counted: 31 days."""
MOST_SCHEDULES = 50_000
"""The maximum number of schedules that are read. The schedules that fire first are read first."""
MOST_WALKED = 2_000_000
"""The budget: how many minutes of herds are counted one by one. Intervals have another budget of this size."""
_MINUTE = timedelta(minutes=1)
MOST_PEAKS = 10
"""The maximum number of minutes that are listed as peaks."""
_MOST_KEPT = 10_000
"""How many occurrences of a timing are kept for further herds."""
_COST_OF_A_DELAY = 4
"""Computing a due time takes this many times as long as finding its occurrence."""
_STANDS_OUT = 2
"""A peak has at least this many times the mean number of fires."""
NAMED = 5
"""The maximum number of schedules that a peak names."""


class Window(NamedTuple):
    """The minutes that are counted."""

    start: datetime
    """The first minute."""
    minutes: int
    """The number of minutes."""

    @property
    def end(self) -> datetime:
        """The first instant after the window."""
        return self.start + self.minutes * _MINUTE

    def minute_of(self, at: datetime) -> int:
        """Return the number of the minute of an instant, from 0. An instant before the window gets the number 0."""
        return max((at - self.start) // _MINUTE, 0)


@dataclass(slots=True)
class _Herd:
    """Schedules whose fires fall in the same minutes and go to the same queue."""

    one: Schedule
    """Any schedule of the herd."""
    steps: tuple[timedelta, timedelta] | None
    """The interval of the schedule and the offset of its first fire in the window; None for other timings."""
    number: int = 0
    """The number of its schedules."""
    names: list[str] = field(default_factory=list)
    """The ids of some of its schedules."""


class _Walk:
    """The occurrences of one timing from an instant on. The first `_MOST_KEPT` are computed once for all herds."""

    def __init__(self, between: Callable[[datetime], Iterator[datetime]], first: datetime) -> None:
        self._between, self._rest, self._kept = between, between(first), list[datetime]()

    def since(self, start: datetime) -> Iterator[datetime]:
        """Yield the occurrences from `start` on."""
        for place in range(bisect_left(self._kept, start), _MOST_KEPT):
            if place == len(self._kept):
                if (following := next(self._rest, None)) is None:
                    return
                self._kept.append(following)
            if self._kept[place] >= start:
                yield self._kept[place]
        yield from self._between(max(start, later(self._kept[-1], TICK)))


def window_of(now: datetime, hours: int) -> Window:
    """Return the window of `hours` that begins with the minute of `now`.

    Raises InvalidInputError if `hours` is not from 1 to 744.
    """
    if isinstance(hours, bool) or not isinstance(hours, int) or not 1 <= hours <= MOST_HOURS:
        raise InvalidInputError("hours", f"must be a whole number from 1 to {MOST_HOURS}")
    return Window(now.replace(second=0, microsecond=0), 60 * hours)


def read_load(
    runtime: Runtime,
    filters: Filters,
    window: Window,
    *,
    most_schedules: int = MOST_SCHEDULES,
    most_walked: int = MOST_WALKED,
) -> Load:
    """Count the fires of the matching schedules in a window. Schedules are read in pages, without a lock."""
    now = runtime.now()
    found = _read(runtime, filters, window, most_schedules + 1)
    schedules = list(islice(found, most_schedules))
    is_cut = next(found, None) is not None
    counting = Counting(window, now, most_walked)
    for schedule in schedules:
        name = schedule.schedule_id if filters.namespace else f"{schedule.namespace}/{schedule.schedule_id}"
        counting.add(schedule, queue_of(schedule, runtime.settings.default_queue), name)
    return counting.load(most_schedules if is_cut else None)


def _read(runtime: Runtime, filters: Filters, window: Window, most: int) -> Iterator[Schedule]:
    """Yield the schedules that may fire in a window, each once, in the order of their next fires.

    The caller takes about `most` of them.
    """
    seen = set[str]()
    for schedule in read_slim(runtime, filters, sort="next", most=most):
        if schedule.due_at is not None and schedule.due_at >= window.end:
            break
        if schedule.uid not in seen:  # a schedule that fires between two pages may come twice
            seen.add(schedule.uid)
            yield schedule
    # Also read the schedules whose pause ends by itself within the window.
    yield from runtime.database.read(partial(schedule_queries.resuming, filters=filters, until=window.end))


def read_slim(runtime: Runtime, filters: Filters, *, sort: str, most: int = MOST_SCHEDULES) -> Iterator[Schedule]:
    """Yield the matching schedules without their large columns (`is_slim` of `search_schedules`). Read page by page.

    If the caller takes at most `most`, no page has more schedules than the caller takes.
    """
    after: Position | None = None
    for read in count(0, MAX_PAGE):
        limit = min(MAX_PAGE, most - read) if read < most else MAX_PAGE
        page = runtime.database.read(
            partial(
                schedule_queries.search_schedules, filters=filters, sort=sort, after=after, limit=limit,
                most_looked_at=None, is_slim=True,
            )
        )  # fmt: skip
        spend(len(page.items))
        yield from page.items
        after = page.following
        if after is None:
            return


def queue_of(schedule: Schedule, default: str) -> str:
    """Return the queue of a schedule's runs, in the form of `QueueLoad.queue`."""
    definition = schedule.definition
    if definition.executor == "external":
        return "external"
    of_workflow = definition.parsed_defaults
    connection = definition.connection or of_workflow.get("connection")
    queue = definition.queue or of_workflow.get("queue") or default
    return f"{queue}@{connection}" if connection else str(queue)


class Counting:
    """A count of fires by minute: add the schedules, then call `load`."""

    def __init__(self, window: Window, now: datetime, most_walked: int) -> None:
        self._window, self._now = window, now
        self._left = {True: most_walked, False: most_walked}
        """The minutes that may still be counted one by one, for intervals (True) and for other timings (False).

        With two budgets, many intervals cannot use up the budget of nightly crons."""
        self._herds: dict[str, dict[Hashable, _Herd]] = defaultdict(dict)
        """The herds of each queue."""
        self._minutes = [0] * window.minutes
        self._firing = [0] * window.minutes
        """How many schedules fire in each minute."""
        self._makers = defaultdict[int, list[tuple[int, _Herd]]](list)
        """The herds that fire in each minute, with their fires."""
        self._walks: dict[Hashable, _Walk] = {}
        self._schedules = self._even = self._alone = 0

    def add(self, schedule: Schedule, queue: str, name: str) -> None:
        """Add a schedule to its herd."""
        spend()
        steps = self._steps(schedule)
        herd = self._herds[queue].setdefault(self._alike(schedule, steps), _Herd(schedule, steps))
        herd.number += 1
        if len(herd.names) < NAMED:
            herd.names.append(name)

    def load(self, most_schedules: int | None) -> Load:
        """Count the added schedules. If there are more schedules, `most_schedules` is the number of added ones."""
        queues = [one for queue, herds in self._herds.items() if (one := self._count(queue, herds.values()))]
        return Load(
            start=self._window.start,
            end=self._window.end,
            fires=sum(self._minutes),
            schedules=self._schedules,
            minutes=self._minutes,
            peaks=[self._peak(minute) for minute in highest_minutes(self._minutes)],
            queues=busiest_first(queues),
            assumed=[*self._assumed(most_schedules)],
        )

    def _alike(self, schedule: Schedule, steps: tuple[timedelta, timedelta] | None) -> Hashable:
        """Return the key of a schedule's herd. If two schedules have the same key, they fire in the same minutes."""
        if steps is not None and not steps[0] % _MINUTE:
            return steps[0], steps[1] // _MINUTE
        if longest_delay(schedule) or schedule.resume_at is not None or schedule.skips is not None:
            return schedule.uid
        return schedule.definition.spec, schedule.contents, schedule.next_run_at, schedule.due_at

    def _count(self, queue: str, herds: Iterable[_Herd]) -> QueueLoad | None:
        """Count the herds of a queue. The largest come first, so that each minute keeps its largest herds."""
        fires, unplaced = Counter[int](), 0
        for herd in sorted(herds, key=lambda one: -one.number):
            counted, is_stepped = 0, herd.steps is not None
            for minute, number, cost in self._fires(herd):
                spend()
                counted += number
                if self._left[is_stepped] <= 0:
                    unplaced += self._rest(herd.one, minute) * herd.number
                    self._even += herd.number
                    break
                self._left[is_stepped] -= cost
                fires[minute] += number * herd.number
                self._firing[minute] += herd.number
                makers = self._makers[minute]
                if len(makers) < NAMED or number > 1:
                    makers.append((number * herd.number, herd))
            if counted:
                self._schedules += herd.number
                self._alone += herd.number if is_alone(herd.one.spec) else 0
        if unplaced:
            edges = [minute * unplaced // self._window.minutes for minute in range(self._window.minutes + 1)]
            fires.update({minute: edges[minute + 1] - edges[minute] for minute in range(self._window.minutes)})
        if not fires:
            return None
        for minute, number in fires.items():
            self._minutes[minute] += number
        return queue_load(queue, self._window.start, fires)

    def _fires(self, herd: _Herd) -> Iterator[tuple[int, int, int]]:
        """Yield the minutes in which a herd's schedule fires, with the number of fires and the cost of counting."""
        if herd.steps is not None:
            yield from ((minute, number, 1) for minute, number in self._of_steps(*herd.steps))
            return
        schedule, start, end, delay = herd.one, self._window.start, self._window.end, longest_delay(herd.one)
        begin = start - delay
        found = iter_upcoming(schedule, self._now, since=begin, between=partial(self._walk, schedule, begin))
        meant = found if start <= self._now else dropwhile(lambda at: at < start, found)
        cost = _COST_OF_A_DELAY if delay else 1
        minute = number = 0
        for at in meant:  # a timeline has thousands of instants, so this loop calls nothing
            if at >= end:
                break
            following = (at - start) // _MINUTE if at > start else 0
            if following != minute and number:
                yield minute, number, number * cost
                number = 0
            minute, number = following, number + 1
        if number:
            yield minute, number, number * cost

    def _walk(self, schedule: Schedule, begin: datetime, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the occurrences of a timing. Herds with the same timing share the walk, as with a spread."""
        if not schedule.timeline.is_anchored:
            return schedule.timeline.between(after, until)
        timing = schedule.definition.spec, schedule.contents, schedule.moves, schedule.skips
        if (timing, begin) not in self._walks:
            first, between = max(later(self._now, TICK), begin), schedule.timeline.between
            self._walks[timing, begin] = _Walk(lambda start: between(start, until), first)
        return self._walks[timing, begin].since(after)

    def _steps(self, schedule: Schedule) -> tuple[timedelta, timedelta] | None:
        """Return the interval of a schedule and the offset of its first fire in the window; None for other timings."""
        spec, nominal, due = schedule.spec, schedule.next_run_at, schedule.due_at
        if nominal is None or due is None or schedule.resume_at or schedule.skips or schedule.definition.jitter:
            return None
        if len(spec.members) != 1 or is_alone(spec) or spec.exclude or spec.end_at or nominal <= self._now:
            return None
        (source,) = spec.sources(nominal)
        if not isinstance(source, Grid) or (nominal - source.origin) % source.every or due != due_of(schedule, nominal):
            return None
        first = due - self._window.start  # a spread delays every fire by the same length
        return source.every, first % source.every if first < timedelta(0) else first

    def _of_steps(self, every: timedelta, first: timedelta) -> Iterator[tuple[int, int]]:
        step, begin, minute = (length // TICK for length in (every, first, _MINUTE))
        if step >= minute:
            yield from ((at // minute, 1) for at in range(begin, self._window.minutes * minute, step))
            return
        for place in range(begin // minute, self._window.minutes):
            before, last = place * minute - 1 - begin, (place + 1) * minute - 1 - begin
            yield place, last // step - max(before // step, -1)

    def _rest(self, schedule: Schedule, minute: int) -> int:
        """Return the number of fires from a minute on. It is computed by arithmetic if the timing allows it."""
        if is_alone(schedule.spec):
            return 1
        start = self._window.start + minute * _MINUTE
        return schedule.timeline.count_between(start - TICK, self._window.end - TICK).total

    def _peak(self, minute: int) -> Peak:
        makers = sorted(self._makers[minute], key=lambda one: -one[0])
        names = [*islice(chain.from_iterable(herd.names for _, herd in makers), NAMED)]
        at = self._window.start + minute * _MINUTE
        return Peak(at, self._minutes[minute], names, self._firing[minute] - len(names))

    def _assumed(self, most_schedules: int | None) -> Iterator[str]:
        yield (
            "Each fire counts as one run, even if overlap, environments, max_runs or a freeze will prevent its start. "
            "Triggers, backfills, retries, targets and schedules after other schedules are not counted."
        )
        if self._alone:
            yield (
                f"{_schedules(self._alone)} at times that depend on the end of a run, or need a newer release: only "
                "the next fire is counted."
            )
        if most_schedules is not None:
            yield f"Only the {most_schedules} schedules that fire first are counted; there are more."
        if self._even:
            yield f"{_schedules(self._even)} too often to count each fire: these fires are spread evenly."


def usual_most(minutes: Sequence[int]) -> float:
    """Return the greatest number of fires that a minute may have without being a peak."""
    return max(1, _STANDS_OUT * sum(minutes) / len(minutes))


def highest_minutes(minutes: Sequence[int]) -> list[int]:
    """Return the numbers of the peak minutes, the highest first."""
    most = usual_most(minutes)
    high = (minute for minute, fires in enumerate(minutes) if fires > most)
    return nsmallest(MOST_PEAKS, high, key=lambda one: (-minutes[one], one))


def queue_load(queue: str, start: datetime, fires: Counter[int]) -> QueueLoad:
    """Return the load of a queue. `fires` has the number of its fires by minute, from `start` on, and is not empty."""
    highest = min(fires, key=lambda minute: (-fires[minute], minute))
    return QueueLoad(queue, fires.total(), start + highest * _MINUTE, fires[highest])


def busiest_first(queues: Iterable[QueueLoad]) -> list[QueueLoad]:
    """Return the queues in the order of their fires. The queue with the most fires comes first."""
    return sorted(queues, key=lambda one: (-one.fires, one.queue))


def is_alone(spec: Spec) -> bool:
    """Return whether no fire of a spec is known except the next one."""
    return spec.is_from_completion or not spec.is_known


def _schedules(number: int) -> str:
    return "1 schedule fires" if number == 1 else f"{number} schedules fire"
