"""What a change moves: two simulations of one span, side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from rqsched.core.simulation_report import LimitOutcome, QueueOutcome, ScheduleOutcome, SimulatedSchedule, Simulation

_DAY = timedelta(days=1)
_Line = TypeVar("_Line", QueueOutcome, LimitOutcome)


@dataclass(frozen=True, slots=True)
class Moved:
    """A figure of two simulations."""

    before: float
    """Of the one before the change."""
    after: float
    """Of the one after it."""

    @property
    def growth(self) -> float:
        """By which part of it the figure grew; what was none grew without bound."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else float("inf")


@dataclass(frozen=True, slots=True)
class ScheduleMoved:
    """A schedule that a change adds, removes or moves."""

    name: str
    """The schedule."""
    outcome: str
    """`added`, `removed` or `changed`."""
    fields: list[str]
    """What of it differs; empty unless it is `changed`."""
    fires_a_day: Moved
    """Its fires a day."""
    overlapped: Moved
    """Its occurrences that met an unfinished run, in what was decided."""


@dataclass(frozen=True, slots=True)
class QueueMoved:
    """A queue whose waits a change moves."""

    queue: str
    """The queue."""
    wait_p95_seconds: Moved
    """What 95 of 100 attempts wait at most; the greatest of what was decided."""
    kept_up: bool
    """Whether it kept up before."""
    keeps_up: bool
    """Whether it does now."""


@dataclass(frozen=True, slots=True)
class LimitMoved:
    """A group with a limit whose waits a change moves."""

    limit: str
    """The name of the group."""
    allowed: str | None
    """What it allowed before, such as `2, 100/min`: the number and the rate; None where it was not there."""
    allows: str | None
    """What it allows now."""
    wait_p95_seconds: Moved
    """What 95 of 100 of its places are waited for at most; the greatest of what was decided."""
    held_by_rate: Moved
    """Which part of the time somebody waited for nothing but its rate, in the stretch of that wait."""
    kept_up: bool
    """Whether its line kept up before."""
    keeps_up: bool
    """Whether it does now."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two simulations of one span."""

    fires_a_day: Moved
    """Fires a day."""
    highest_minute: Moved
    """Fires of the highest minute."""
    schedules: list[ScheduleMoved]
    """Each that is added, removed or moved, by name."""
    new_overlaps: list[str]
    """Schedules of which runs overlap now and none did, by name."""
    queues: list[QueueMoved]
    """Each queue that has other waits, by name."""
    limits: list[LimitMoved]
    """Each group that has other waits, or allows something else, by name."""

    @property
    def falls_behind(self) -> list[str]:
        """The queues, and as `limit NAME` the groups, that kept up or were not there, and do not keep up now."""
        return [name for name, one in self.lines() if one.kept_up and not one.keeps_up]

    def lines(self) -> list[tuple[str, QueueMoved | LimitMoved]]:
        """Return queues and groups, each with what people call it."""
        queues: list[tuple[str, QueueMoved | LimitMoved]] = [(one.queue, one) for one in self.queues]
        return [*queues, *((f"limit {one.limit}", one) for one in self.limits)]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-native values."""
        return asdict(self) | {"falls_behind": self.falls_behind}


def compare(old: Simulation, new: Simulation) -> Comparison:
    """Compare two simulations of one span."""
    days = (new.end - new.start) / _DAY
    highest = [float(max((day.peak_fires for day in one.days), default=0)) for one in (old, new)]
    overlapped = _overlapped(old), _overlapped(new)
    before, after = ({one.name: one for one in found.schedules} for found in (old, new))
    moved = []
    for name in sorted({*before, *after}):
        one = _moved(
            name, before.get(name), after.get(name), (overlapped[0].get(name, 0), overlapped[1].get(name, 0)), days
        )
        if one is not None:
            moved.append(one)
    both = old.stretches, new.stretches
    queues = (_worst((queue.queue, queue) for one in stretches for queue in one.queues) for stretches in both)
    limits = (_worst((limit.limit, limit) for one in stretches for limit in one.limits) for stretches in both)
    return Comparison(
        Moved(round(old.fires / days, 3), round(new.fires / days, 3)),
        Moved(*highest),
        moved,
        sorted(name for name in overlapped[1] if not overlapped[0].get(name)),
        [QueueMoved(*one) for one in _lines(*queues)],
        [*_limits(*limits)],
    )


def _moved(
    name: str,
    before: SimulatedSchedule | None,
    after: SimulatedSchedule | None,
    overlapped: tuple[int, int],
    days: float,
) -> ScheduleMoved | None:
    fires = Moved(*(round(one.fires / days, 3) if one else 0.0 for one in (before, after)))
    both = Moved(*map(float, overlapped))
    if before is None or after is None:
        return ScheduleMoved(name, "added" if before is None else "removed", [], fires, both)
    was, becomes = asdict(before), asdict(after)
    fields = [field for field in was if was[field] != becomes[field]]
    fields += ["overlapped"] if both.before != both.after else []
    return ScheduleMoved(name, "changed", fields, fires, both) if fields else None


def _overlapped(found: Simulation) -> dict[str, int]:
    rows: list[ScheduleOutcome] = [row for stretch in found.stretches for row in stretch.schedules if row.overlapped]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.name] = counts.get(row.name, 0) + row.overlapped
    return counts


def _lines(before: Mapping[str, _Line], after: Mapping[str, _Line]) -> Iterator[tuple[str, Moved, bool, bool]]:
    """Yield each line that has other waits, by name: these, whether it kept up, and whether it does."""
    for name in sorted({*before, *after}):
        waits, kept_up, keeps_up = _waits(before.get(name), after.get(name))
        if waits.before != waits.after or kept_up != keeps_up:
            yield name, waits, kept_up, keeps_up


def _limits(before: Mapping[str, LimitOutcome], after: Mapping[str, LimitOutcome]) -> Iterator[LimitMoved]:
    """Yield each group that has other waits, or allows something else, by name."""
    waiting = {name for name, *_ in _lines(before, after)}
    for name in sorted({*before, *after}):
        was, becomes = before.get(name), after.get(name)
        allowed, allows = (None if one is None else _allows(one) for one in (was, becomes))
        if name in waiting or allowed != allows:
            waits, kept_up, keeps_up = _waits(was, becomes)
            held = Moved(*(0.0 if one is None else one.held_by_rate or 0.0 for one in (was, becomes)))
            yield LimitMoved(name, allowed, allows, waits, held, kept_up, keeps_up)


def _allows(limit: LimitOutcome) -> str:
    return ", ".join(str(one) for one in (limit.number, limit.rate) if one is not None)


def _waits(was: _Line | None, becomes: _Line | None) -> tuple[Moved, bool, bool]:
    waits = Moved(*(0.0 if one is None else one.wait_p95_seconds for one in (was, becomes)))
    return waits, was is None or was.keeps_up, becomes is None or becomes.keeps_up


def _worst(found: Iterable[tuple[str, _Line]]) -> dict[str, _Line]:
    """Return of each line what it did in the stretch in which it waited longest."""
    worst: dict[str, _Line] = {}
    for name, one in found:
        known = worst.get(name)
        if known is None or (not one.keeps_up, one.wait_p95_seconds) > (not known.keeps_up, known.wait_p95_seconds):
            worst[name] = one
    return worst
