"""Limits: how many runs of a group, over all its schedules, run at once and start in a window. Pure.

A group has a name, a number, a rate or both, and a line. A run that becomes pending joins the line; a grant gives it a
place of its group, and only a granted run can be claimed. The place is free again when the run neither runs nor waits
for its claim: the rows tell, there is no counter. The run counts against the rate from its grant until its start has
left the window.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from rqsched.kernel.decide.limit_options import MAX_NUMBER, Rate

GRANT_LIFE = timedelta(seconds=30)
"""How long the first unclaimed grant of a run is kept from the runs that wait."""
_MOST_DOUBLED = 10
"""How often that is doubled at most, to 8 hours and a half."""
_MANY = 16
"""This many granted runs that wait to be claimed keep workers busy while half of the places are free."""


class Bounds(NamedTuple):
    """The bounds of a group: a number, a rate, or both."""

    number: int | None = None
    """How many of its runs may run at once; None is any."""
    rate: Rate | None = None
    """How many of its attempts may start in a window; None is any."""

    @staticmethod
    def read(number: int | None, rate: str | None) -> Bounds:
        """Return the bounds of a group as options and descriptions hold them: the rate is text."""
        return Bounds(number, None if rate is None else Rate.parse("limit_rate", rate))

    def __str__(self) -> str:
        """Return what is allowed in words: `2 may run at once`, `100 may start in any minute`, or both."""
        at_once = [] if self.number is None else [f"{self.number} may run at once"]
        return " and ".join(
            [*at_once, *([] if self.rate is None else [f"{self.rate.number} may start in any {self.rate.window}"])]
        )

    def after(self, was: Bounds) -> str:
        """Return what differs from what these bounds were, in words: `5 → 2 at once, any rate → 100/min`."""
        number = [] if was.number == self.number else [f"{was.number or 'any'} → {self.number or 'any'} at once"]
        rate = [] if was.rate == self.rate else [f"{was.rate or 'any rate'} → {self.rate or 'any rate'}"]
        return ", ".join([*number, *rate])

    def takes(self, given: Bounds) -> bool:
        """Return whether these bounds equal the given ones; None there matches any."""
        return given.number in {None, self.number} and given.rate in {None, self.rate}

    def most_unclaimed(self, running: int, starts: int) -> int:
        """Return how many runs may have a place and not run yet; `starts` are those of the last window.

        A granted run may start at any moment, so it counts against the number and the rate. With a rate alone there are
        at most `MAX_NUMBER` of them, too: each grant reads them, and holds in memory the runs that it gives a place.
        """
        by_number = [] if self.number is None else [self.number - running]
        by_rate = [] if self.rate is None else [min(self.rate.number - starts, MAX_NUMBER)]
        return min([*by_number, *by_rate], default=0)


class Waiting(NamedTuple):
    """A pending run of a group, or a target of one."""

    uid: str
    """Its uid."""
    limit_at: datetime
    """When it joined the line."""
    number: int = 0
    """Its number in its schedule, or in its run: it orders the runs that join the line at one instant."""
    granted_at: datetime | None = None
    """When it got a place that it has not claimed yet; None while it is in line."""
    passed_count: int | None = None
    """How often a worker tried to claim it after it was passed over and found the group full; None is never."""
    is_target: bool = False
    """Whether it is a target of a run."""
    queue: str = ""
    """The workers it is for: one text for each executor, connection and queue."""


by_place = attrgetter("limit_at", "number", "uid")
"""The order of a line."""


class Grants(NamedTuple):
    """The decision of one look at a group."""

    given: tuple[str, ...] = ()
    """The uids of the runs that get a place."""
    passed: tuple[str, ...] = ()
    """The uids of the runs whose grant nobody has claimed, and which are passed over until a worker asks for them."""


def wants_grants(number: int, running: int, unclaimed: int) -> bool:
    """Return whether it is time to look at the line after an end: for one free place at a time, each end would.

    While granted runs wait to be claimed, workers have something to do: then a quarter of the places is given at once,
    and half of them while `_MANY` wait.
    """
    free = number - running - unclaimed
    return free > 0 and (not unclaimed or free * (2 if unclaimed >= _MANY else 4) >= number)


def others_look(number: int, running: int, unclaimed: int) -> bool:
    """Return whether an end that sees these figures leaves the line to later ends, without looking at it.

    It does while at least a quarter of the places wait for their claim and few are free: the ends of those runs look
    later. The figures are from before the end is written, so they miss others that end at the same moment. When it is
    time to look (`wants_grants`), one end in each sixteenth of the places does; the others rely on it.
    """
    is_turn = (number - running - unclaimed) % max(number // 16, 1) == 0
    return unclaimed * 4 >= number and not (is_turn and wants_grants(number, running, unclaimed))


def most_given(number: int, running: int, unclaimed: Iterable[Waiting], now: datetime) -> int:
    """Return how many places `decide_grants` may give at most; it reads one more than this many of the line."""
    kept = sorted(unclaimed, key=by_place)[: max(number - running, 0)]
    return max(number - running - sum(not _is_old(one, now) for one in kept), 0)


def _is_old(granted: Waiting, now: datetime) -> bool:
    at = old_at(granted)
    return at is not None and now >= at


def quiet_queues(passed: Iterable[str], unclaimed: Iterable[Waiting], now: datetime) -> set[str]:
    """Return the queues that perhaps no worker serves: a run of each was `passed` over and not asked for since.

    A run whose grant is old and about to be passed over counts too. A queue is taken in order, so a worker that serves
    it asks for that run first.
    """
    return {*passed, *(one.queue for one in unclaimed if _is_old(one, now))}


def old_at(granted: Waiting) -> datetime | None:
    """Return from when on a grant goes to the next in line; None where there is no grant.

    Each time that the run's worker came too late and then found the group full, the next grant lasts twice as long:
    else a run of a busy queue could be passed over for ever. A grant that no worker comes for never lasts longer.
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
    """Decide which runs of a group get a place; no grant takes the group beyond `number`.

    `unclaimed` are the granted runs that do not run yet. `line` are the waiting runs, or the first `most_given` + 1 of
    them. Places go to the first in line. A grant that is too old goes to another run where one waits. `asked` is a run
    that a worker holds: it keeps its place in the line, and goes before unclaimed grants of later runs. After the
    number was lowered, the latest unclaimed grants are taken back. Runs for a `quiet` queue go behind all others, and
    each such queue has one place at a time: so it keeps one place from others, not all.
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
    """Return the first of a line. Quiet queues come last, with one run each, and none where one is `probed` already."""
    if not quiet:
        return candidates[:most]
    first = [one for one in candidates if one.queue not in quiet or one is asked][:most]
    for one in candidates:
        if len(first) < most and one not in first and one.queue not in probed:
            first.append(one)
            probed.add(one.queue)
    return first
