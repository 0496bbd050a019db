"""The lines (queues of waiters) of a simulation: attempts that wait for a worker, and runs that wait for a place."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rqsched.features.limits.decide import (
    Bounds,
    Grants,
    Waiting,
    decide_grants,
    most_given,
    old_at,
    quiet_queues,
    wants_grants,
)
from rqsched.kernel.decide.model import Run, RunStatus

_STRETCHES = 5


class Behind(NamedTuple):
    """A period during which the line was never empty."""

    start: datetime
    """When the first attempt or run had to wait."""
    end: datetime
    """When the line was empty again, or the simulation ended."""
    most: int
    """The greatest length of the line."""
    longest: timedelta
    """The longest wait that ended in the period."""


@dataclass(slots=True)
class Line:
    """The waits and load of one queue, or of one group."""

    workers: int | None
    """How many attempts the queue executes at once, or how many places the group has. None means any number."""
    waits: array[float] = field(default_factory=lambda: array("d"))
    """The seconds of each wait: of an attempt for a worker of the queue, or of a run for a place of the group."""
    busy: timedelta = timedelta(0)
    """For a queue: the sum of the durations of attempts. For a group: how long it had no free place."""
    held: timedelta = timedelta(0)
    """For a group: how long runs waited only because of its rate."""
    behind: list[Behind] = field(default_factory=list)
    """The longest periods during which the line was never empty, the longest first."""
    most: int = 0
    """The greatest length of the line."""
    waiting: int = 0
    """The length of the line at the end."""


class _Waits:
    """The length of a line over time, and the waits in it."""

    def __init__(self, workers: int | None) -> None:
        self.told = Line(workers)
        self.waiting = 0
        self._since: datetime | None = None
        self._most = 0
        self._longest = timedelta(0)

    def note(self, now: datetime) -> None:
        """Record the length of the line. This is called after all events of an instant."""
        if self.waiting and self._since is None:
            self._since = now
        self._most = max(self._most, self.waiting)
        if not self.waiting and self._since is not None:
            self._close(now)

    def began(self, wait: timedelta) -> None:
        """Record how long one attempt or run waited in the line."""
        self.told.waits.append(wait.total_seconds())
        self._longest = max(self._longest, wait)

    def end(self, now: datetime) -> Line:
        """Return the waits and load of the line at the end of the simulation."""
        self._close(now)
        self.told.waiting = self.waiting
        return self.told

    def _close(self, now: datetime) -> None:
        if self._since is not None:
            found = [*self.told.behind, Behind(self._since, now, self._most, self._longest)]
            self.told.behind = sorted(found, key=lambda one: (one.start - one.end, one.start))[:_STRETCHES]
        self.told.most = max(self.told.most, self._most)
        self._since, self._most, self._longest = None, 0, timedelta(0)


class QueueLine(_Waits):
    """The line of one queue, and its workers."""

    def __init__(self, workers: int | None) -> None:
        super().__init__(workers)
        self.free = workers
        self.line = deque[tuple[Any, str, int, datetime]]()
        """The waiting attempts: schedule, uid of the run, number of the attempt, and the time when it was queued."""


class GroupLine(_Waits):
    """The places of one group, its starts, and the runs in its line (in production, `features.limits.store`)."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds.number)
        self.bounds = bounds
        self.takers = dict[str, tuple[Any, Run]]()
        """The runs that have a place or wait for a place, by uid, each with the state of its schedule."""
        self.look_at: datetime | None = None
        """When unclaimed places are checked next. A place is unclaimed while no worker has started its run."""
        self._running = set[str]()
        self._unclaimed = dict[str, Waiting]()
        self._passed = dict[str, str]()
        self._line = list[tuple[datetime, int, str]]()
        self._joined = dict[str, tuple[datetime, tuple[datetime, int, str]]]()
        self._starts = deque[datetime]()
        self._full_since: datetime | None = None
        self._held_since: datetime | None = None

    def move(self, one: Run, state: Any, now: datetime) -> None:
        """Take over the new state of a run."""
        uid = one.uid
        self._running.discard(uid)
        self._unclaimed.pop(uid, None)
        self._passed.pop(uid, None)
        if (joined := self._joined.pop(uid, None)) is not None:
            del self._line[bisect_left(self._line, joined[1])]
            self.waiting -= 1
            if one.granted_at is not None:
                self.began(now - joined[0])
        is_running = one.status is RunStatus.RUNNING and one.takes_place
        if not is_running and one.status is not RunStatus.PENDING:
            self.takers.pop(uid, None)
            return
        self.takers[uid] = state, one
        if is_running:
            self._running.add(uid)
        elif one.granted_at is not None:
            self._unclaimed[uid] = _waiting(one, state)
        elif one.passed_at is not None:
            self._passed[uid] = state.given.queue
        else:
            insort(self._line, place_of(one))
            self._joined[uid] = now, place_of(one)
            self.waiting += 1

    def start(self, now: datetime) -> None:
        """Record the start of an attempt, if the group has a rate."""
        if self.bounds.rate is not None:
            self._starts.append(now)

    def _started(self, now: datetime) -> int:
        """Return the number of starts in the last window of the rate."""
        if self.bounds.rate is None:
            return 0
        since = now - self.bounds.rate.period
        while self._starts and self._starts[0] <= since:
            self._starts.popleft()
        return len(self._starts)

    def wants(self, now: datetime) -> int | None:
        """Return how many runs have a place and have not started; None if no place can be given now.

        In production, `features.limits.store.wants` does this.
        """
        most, taken, unclaimed = self.bounds.number, len(self._running), len(self._unclaimed)
        if most is None:
            most, taken = self.bounds.most_unclaimed(0, self._started(now)), 0
        return unclaimed if self._line and wants_grants(most, taken, unclaimed) else None

    def decide(self, now: datetime, asked: Run | None) -> tuple[Grants, list[Waiting]]:
        """Decide which runs get a place. Return the grants, and the runs at the head of the line that got no place.

        If the group has no rate, the second list is empty. `asked` is a run without a place that a worker has taken.
        """
        free = self.bounds.most_unclaimed(len(self._running), self._started(now))
        unclaimed = [*self._unclaimed.values()]
        most = most_given(free, 0, unclaimed, now) + 1
        quiet = quiet_queues(self._passed.values(), unclaimed, now)
        line, behind = list[Waiting](), list[Waiting]()
        for _, _, uid in self._line:
            if len(line) == most:
                break
            state, one = self.takers[uid]
            if not one.is_late(now):
                (behind if state.given.queue in quiet else line).append(_waiting(one, state))
        line += behind[: most - len(line)]
        asks = None if asked is None else _waiting(asked, self.takers[asked.uid][0])
        grants = decide_grants(free, running=0, unclaimed=unclaimed, line=line, asked=asks, quiet=quiet, now=now)
        if self.bounds.rate is None:
            return grants, []
        return grants, [one for one in (*line, *([] if asks is None else [asks])) if one.uid not in grants.given]

    def rate_frees_at(self, now: datetime) -> datetime | None:
        """Return when the rate allows the next start; None if the rate does not delay it.

        `features.limits.store` explains the rule.
        """
        rate, starts, unclaimed = self.bounds.rate, self._started(now), len(self._unclaimed)
        if rate is None or self._is_full():
            return None
        later = starts + unclaimed - rate.number
        if later < 0:
            return None
        return (self._starts[later] if later < starts else now) + rate.period

    def _is_full(self) -> bool:
        """Return whether all places are taken or given."""
        taken = len(self._running) + len(self._unclaimed)
        return self.bounds.number is not None and taken >= self.bounds.number

    def next_look(self, now: datetime, given: Iterable[str]) -> datetime | None:
        """Return when the next unclaimed place becomes old. Return None if there is no such place, or if a check is
        planned for that time or earlier.

        `given` contains the runs that got a place now.
        """
        some = self._unclaimed if self.look_at is None else given
        ahead = (at for uid in some if (at := old_at(self._unclaimed[uid])) is not None and at > now)
        at = min(ahead, default=None)
        return None if at is None or (self.look_at is not None and self.look_at <= at) else at

    def has_old(self, now: datetime) -> bool:
        """Return whether an unclaimed place becomes old now."""
        return any(old_at(one) == now for one in self._unclaimed.values())

    def note(self, now: datetime) -> None:
        """Record the length of the line, whether a place is free, and whether only the rate delays the next start."""
        super().note(now)
        is_full = self._is_full()
        if is_full and self._full_since is None:
            self._full_since = now
        elif not is_full and self._full_since is not None:
            self.told.busy += now - self._full_since
            self._full_since = None
        if self.bounds.rate is None:
            return
        is_held = self.waiting > 0 and self.rate_frees_at(now) is not None
        if is_held and self._held_since is None:
            self._held_since = now
        elif not is_held and self._held_since is not None:
            self.told.held += now - self._held_since
            self._held_since = None

    def end(self, now: datetime) -> Line:
        """Return the waits and load of the line at the end of the simulation."""
        if self._full_since is not None:
            self.told.busy += now - self._full_since
        if self._held_since is not None:
            self.told.held += now - self._held_since
        return super().end(now)


def place_of(one: Run) -> tuple[datetime, int, str]:
    """Return the sort key of a run in the line of its group. The run must be in the line, or have been there."""
    assert one.limit_at is not None  # noqa: S101 - every pending run of a group is in its line, or was
    return (one.limit_at, one.number, one.uid)


def _waiting(one: Run, state: Any) -> Waiting:
    at, number, uid = place_of(one)
    return Waiting(uid, at, number, one.granted_at, one.passed_count, queue=state.given.queue)
