"""Limits: how many runs of a group, over all its schedules, run at once and start in a window. Pure.

A group has a name, a number, a rate or both, and a line. A run that becomes pending joins the line; a grant gives it a
place of its group, and only a granted run can be claimed. The place is free again when the run neither runs nor waits
for its claim: the rows tell, there is no counter. The run counts against the rate from its grant until its start has
left the window.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from rqsched.errors import InvalidDurationError, InvalidPolicyError
from rqsched.spec.duration import parse_span

GRANT_LIFE = timedelta(seconds=30)
"""How long the first unclaimed grant of a run is kept from the runs that wait."""
_MOST_DOUBLED = 10
"""How often that is doubled at most, to 8 hours and a half."""
_MANY = 16
"""This many granted runs that wait to be claimed keep workers busy while half of the places are free."""
MAX_NUMBER = 10_000
"""The most runs of a group that may run at once."""
MAX_STARTS = 100_000
"""The most starts of a rate: they are counted at each grant."""
MAX_PERIOD = timedelta(days=31)
"""The longest window of a rate; the shortest is a second."""
MAX_NAME = 255
"""Characters of the name of a group."""
_RATE = re.compile(r"(?P<number>[0-9]{1,9})/(?P<count>[0-9]{0,9})(?P<unit>[a-z]+)")
_UNITS = {"day": 86_400, "h": 3_600, "min": 60, "s": 1}
_SPELLINGS = {"d": "day", "hour": "h", "m": "min", "minute": "min", "sec": "s", "second": "s"}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_LABEL = "labels."


def require_limit(name: str, value: object) -> str | None:
    """Check the template of a group's name; raises InvalidPolicyError."""
    if value is None:
        return None
    if not isinstance(value, str) or not is_name(value):
        raise InvalidPolicyError(name, f"must be 1 to {MAX_NAME} printable characters without spaces, or None")
    for placeholder in _PLACEHOLDER.findall(value):
        is_label = placeholder.startswith(_LABEL) and placeholder != _LABEL
        if placeholder != "namespace" and not is_label:
            raise InvalidPolicyError(name, f"{{{placeholder}}} is neither {{labels.NAME}} nor {{namespace}}")
    if set("{}") & set(_PLACEHOLDER.sub("", value)):
        raise InvalidPolicyError(name, "has a brace that belongs to no {labels.NAME} and no {namespace}")
    return value


class Rate(NamedTuple):
    """How many attempts of a group may start in any window of a length.

    >>> str(Rate.parse("limit_rate", "100/minute")), str(Rate.parse("limit_rate", "5/PT90S"))
    ('100/min', '5/90s')
    """

    number: int
    """So many."""
    seconds: int
    """The length of the window."""

    @property
    def period(self) -> timedelta:
        """The length of the window."""
        return timedelta(seconds=self.seconds)

    @property
    def window(self) -> str:
        """The window in words: `minute`, `10 min`."""
        unit = self._unit
        count = self.seconds // _UNITS[unit]
        words = {"min": "minute", "h": "hour", "s": "second"}
        return words.get(unit, unit) if count == 1 else f"{count} {unit}{'s' if unit == 'day' else ''}"

    @property
    def _unit(self) -> str:
        return next(unit for unit, size in _UNITS.items() if self.seconds % size == 0)

    def __str__(self) -> str:
        """Return the one text of this rate, which `parse` reads."""
        unit = self._unit
        count = self.seconds // _UNITS[unit]
        return f"{self.number}/{unit}" if count == 1 else f"{self.number}/{count}{'d' if unit == 'day' else unit}"

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(name: str, text: str) -> Rate:
        """Read a rate, the value of the option `name`; raises InvalidPolicyError."""
        match = _RATE.fullmatch(text)
        unit = match and _SPELLINGS.get(match["unit"], match["unit"])
        number, _, window = text.partition("/")
        try:
            if match and unit in _UNITS:
                seconds: float = int(match["count"] or 1) * _UNITS[unit]
            else:
                seconds = parse_span(window).total_seconds()
        except InvalidDurationError:
            seconds = 0
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(MAX_STARTS))
        if not is_number or not 1 <= int(number) <= MAX_STARTS:
            raise InvalidPolicyError(name, f"{text[:64]!r} is not N/window with N from 1 to {MAX_STARTS}, as in {_HOW}")
        if seconds != int(seconds) or not 1 <= seconds <= MAX_PERIOD.total_seconds():
            longest = f"a window of whole seconds, from 1 s to {MAX_PERIOD.days} days"
            raise InvalidPolicyError(name, f"{text[:64]!r} does not name {longest}, as in {_HOW}")
        return Rate(int(number), int(seconds))


_HOW = "100/min, 5/30s, 10/h or 1000/day"


def require_rate(name: str, value: object) -> str | None:
    """Return the one text of a rate; raises InvalidPolicyError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidPolicyError(name, f"must be text such as {_HOW}, or None")
    return str(Rate.parse(name, value))


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


def is_name(text: object) -> bool:
    """Return whether a value may be the name of a group."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_NAME:
        return False
    return text.isprintable() and not any(one.isspace() for one in text)


@lru_cache(maxsize=4096)
def name_of(template: str, namespace: str, labels: str) -> str:
    """Return the name of the group that a schedule's runs belong to; `labels` is the JSON of its labels.

    Raises InvalidPolicyError when it lacks a label that the template names, or the label's text fits no name.

    >>> name_of("tenant:{labels.tenant}", "default", '{"tenant":"42"}')
    'tenant:42'
    """
    known: dict[str, str] = json.loads(labels)

    def text_of(found: re.Match[str]) -> str:
        placeholder = found[1]
        if not placeholder.startswith(_LABEL):
            return namespace
        label = placeholder.removeprefix(_LABEL)
        if label not in known:
            raise InvalidPolicyError("limit", f"{template!r} names the label {label!r}; give the schedule that label")
        return known[label]

    name = _PLACEHOLDER.sub(text_of, template)
    if not is_name(name):
        reason = f"is no name of 1 to {MAX_NAME} printable characters without spaces; change the label"
        raise InvalidPolicyError("limit", f"{template!r} becomes {name[:300]!r}, which {reason}")
    return name


def key_of(namespace: str, name: str) -> str:
    """Return the key of a group over all namespaces, `namespace/name`: names of namespaces have no slash."""
    return f"{namespace}/{name}"


def split_key(key: str) -> tuple[str, str]:
    """Return the namespace and the name of a group."""
    namespace, _, name = key.partition("/")
    return namespace, name


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
