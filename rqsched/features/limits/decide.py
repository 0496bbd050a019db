"""Limits: how many runs of a group may run at once, or start in a window of time. Pure.

A group has a name, a line (its queue of waiting runs), and a number, a rate or both. A run that becomes pending joins
the line. A grant gives the run a place of its group, and a worker can claim only a run with a place. The place is free
again when the run has ended, or has lost its grant. There is no counter of places: they are counted from the rows of
runs. The run counts against the rate from its grant until its start has left the window.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from rqsched.kernel.decide.limit_options import MAX_NUMBER, Rate

GRANT_LIFE = timedelta(seconds=30)
"""How long a run keeps its first grant without a claim. After that its place may go to a run in line."""
_MOST_DOUBLED = 10
"""The maximum number of doublings of GRANT_LIFE; ten make 8.5 hours."""
_MANY = 16
"""If this many granted runs wait for their claim, workers are busy, and half of the places may stay free."""


class Bounds(NamedTuple):
    """The bounds of a group: a number, a rate, or both."""

    number: int | None = None
    """The maximum number of runs of the group that run at once; None sets no limit."""
    rate: Rate | None = None
    """The maximum number of attempts of the group that start in a window; None sets no limit."""

    @staticmethod
    def read(number: int | None, rate: str | None) -> Bounds:
        """Return the bounds for a number and a rate. The rate is text, as in options and descriptions."""
        return Bounds(number, None if rate is None else Rate.parse("limit_rate", rate))

    def __str__(self) -> str:
        """Return the bounds in words: `2 may run at once`, `100 may start in any minute`, or both."""
        at_once = [] if self.number is None else [f"{self.number} may run at once"]
        return " and ".join(
            [*at_once, *([] if self.rate is None else [f"{self.rate.number} may start in any {self.rate.window}"])]
        )

    def after(self, was: Bounds) -> str:
        """Return the change from the earlier bounds `was`, in words: `5 → 2 at once, any rate → 100/min`."""
        number = [] if was.number == self.number else [f"{was.number or 'any'} → {self.number or 'any'} at once"]
        rate = [] if was.rate == self.rate else [f"{was.rate or 'any rate'} → {self.rate or 'any rate'}"]
        return ", ".join([*number, *rate])

    def takes(self, given: Bounds) -> bool:
        """Return whether these bounds equal the `given` bounds. A None in `given` matches any value."""
        return given.number in {None, self.number} and given.rate in {None, self.rate}

    def most_unclaimed(self, running: int, starts: int) -> int:
        """Return how many runs may have a place without running yet. `starts` is the number of starts in the window.

        A granted run may start at any moment, so it counts against the number and the rate. Without a number, at most
        `MAX_NUMBER` runs may have a place, because each grant reads all of them into memory.
        """
        by_number = [] if self.number is None else [self.number - running]
        by_rate = [] if self.rate is None else [min(self.rate.number - starts, MAX_NUMBER)]
        return min([*by_number, *by_rate], default=0)


class Waiting(NamedTuple):
    """A pending run of a group, or a target of a run."""

    uid: str
    """Its uid."""
    limit_at: datetime
    """When it joined the line."""
    number: int = 0
    """The number of the run in its schedule, or of the target in its run. It orders runs and targets that joined at the
    same instant."""
    granted_at: datetime | None = None
    """When it got a place, if no worker has claimed it since; None while it is in line."""
    passed_count: int | None = None
    """How often a worker took the job after the grant was lost, and found the group full; None if no grant was lost."""
    is_target: bool = False
    """Whether it is a target of a run."""
    queue: str = ""
    """Its executor, connection and queue as one text. They determine the workers that may claim it."""


by_place = attrgetter("limit_at", "number", "uid")
"""The order of a line."""


class Grants(NamedTuple):
    """The decision about the places of a group."""

    given: tuple[str, ...] = ()
    """The uids of the runs that get a place."""
    passed: tuple[str, ...] = ()
    """The uids of the runs that lose an unclaimed grant. These runs are passed over until a worker takes their job."""


def wants_grants(number: int, running: int, unclaimed: int) -> bool:
    """Return whether to give places after the end of a run. Giving one place after each end would cost too much.

    While granted runs wait to be claimed, workers are busy. Then places are given only if a quarter of all places is
    free, or half of them if `_MANY` granted runs wait.
    """
    free = number - running - unclaimed
    return free > 0 and (not unclaimed or free * (2 if unclaimed >= _MANY else 4) >= number)


def others_look(number: int, running: int, unclaimed: int) -> bool:
    """Return whether the end of a run need not give places, because the ends of later runs will do it.

    This holds if granted runs that wait for their claim have at least a quarter of the places: their ends give places
    later. But if it is time to give places (`wants_grants`), one in `number // 16` ends gives them. The figures are
    from before the end is written, so they miss runs that end at the same moment.
    """
    is_turn = (number - running - unclaimed) % max(number // 16, 1) == 0
    return unclaimed * 4 >= number and not (is_turn and wants_grants(number, running, unclaimed))


def most_given(number: int, running: int, unclaimed: Iterable[Waiting], now: datetime) -> int:
    """Return the maximum number of places that `decide_grants` may give. The caller reads one run more than this from
    the line.
    """
    kept = sorted(unclaimed, key=by_place)[: max(number - running, 0)]
    return max(number - running - sum(not _is_old(one, now) for one in kept), 0)


def _is_old(granted: Waiting, now: datetime) -> bool:
    at = old_at(granted)
    return at is not None and now >= at


def quiet_queues(passed: Iterable[str], unclaimed: Iterable[Waiting], now: datetime) -> set[str]:
    """Return the queues that perhaps no worker serves.

    `passed` are the queues of runs that have lost their unclaimed grant and for which no worker has asked since. The
    queues of runs whose grant is old are added, because these runs may lose it now. Workers take the jobs of a queue in
    order, so a worker of the queue would have asked for such a run first.
    """
    return {*passed, *(one.queue for one in unclaimed if _is_old(one, now))}


def old_at(granted: Waiting) -> datetime | None:
    """Return when an unclaimed grant may go to the next in line; None without a grant.

    If a worker took the run's job after the grant was lost and found the group full, the next grant lasts twice as
    long. Otherwise a run of a busy queue could lose its grant again and again. If no worker took the job, the next
    grant does not last longer.
    """
    life = GRANT_LIFE * 2 ** min(granted.passed_count or 0, _MOST_DOUBLED)
    return None if granted.granted_at is None else granted.granted_at + life


def decide_grants(
    number: int,
    *,
    running: int,
    unclaimed: Sequence[Waiting],
    line: Iterable[Waiting],
    now: datetime,
    asked: Waiting | None = None,
    quiet: Collection[str] = (),
) -> Grants:
    """Decide which runs of a group get a place. No grant takes the group beyond `number`.

    `unclaimed` are the granted runs that do not run yet. `line` are the waiting runs, or the first `most_given` + 1 of
    them. Places go to the first in line. If a grant is too old and another run waits, the place goes to that run.
    `asked` is a run whose job a worker has taken: it keeps its position in the line, and may take the place of an
    unclaimed run that is behind it. If the number was lowered, the unclaimed grants at the end of the line are taken
    back. Runs of a `quiet` queue come after all other runs. Each such queue gets only one place at a time, so that its
    runs cannot occupy all places.
    """
    held = {one.uid: one for one in unclaimed}
    waiting = {one.uid: one for one in line} | ({} if asked is None else {asked.uid: asked})
    candidates = sorted((one for one in waiting.values() if one.uid not in held), key=by_place)
    passed: list[str] = []

    def free() -> int:
        return number - running - len(held)

    def pass_over(uid: str) -> None:
        del held[uid]
        passed.append(uid)

    for one in sorted(unclaimed, key=by_place, reverse=True)[: max(-free(), 0)]:
        pass_over(one.uid)
    old = [one for one in held.values() if _is_old(one, now)]
    for one in sorted(old, key=by_place):
        if len(candidates) > free():
            pass_over(one.uid)
    given = _first(candidates, max(free(), 0), asked, {one.queue for one in held.values()}, quiet)
    if asked is not None and asked in candidates and asked not in given:
        later = [one for one in held.values() if by_place(one) > by_place(asked)]
        if later and free() >= len(given):
            pass_over(max(later, key=by_place).uid)
            given.append(asked)
    return Grants(tuple(one.uid for one in given), tuple(passed))


def _first(
    candidates: list[Waiting], most: int, asked: Waiting | None, probed: set[str], quiet: Collection[str]
) -> list[Waiting]:
    """Return the first runs of a line. A quiet queue comes last, with one run, or with none if it is in `probed`."""
    if not quiet:
        return candidates[:most]
    first = [one for one in candidates if one.queue not in quiet or one is asked][:most]
    for one in candidates:
        if len(first) < most and one not in first and one.queue not in probed:
            first.append(one)
            probed.add(one.queue)
    return first
