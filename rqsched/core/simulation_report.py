"""The report of a simulation: what it found, and what that rests on, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rqsched.core.ids import iso_utc
from rqsched.core.results import Peak, QueueLoad


@dataclass(frozen=True, slots=True)
class SimulatedSchedule:
    """One schedule of a simulation."""

    name: str
    """Its id; `namespace/id` where all namespaces are simulated."""
    workflow: str
    """The workflow of its runs."""
    queue: str
    """The queue of its runs, as `QueueLoad` has it."""
    timing: str
    """When it fires, in short."""
    fires: int
    """How often it fires in the span."""
    duration_seconds: float
    """How long half of its attempts take at most."""
    duration_from: str
    """Where that is from: `schedule` or `workflow` or `all` (given for it), `measured`, or `nothing`."""
    failure_rate: float
    """Which part of its attempts fails."""


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """The fires, runs and attempts of one schedule."""

    name: str
    """The schedule."""
    fires: int
    """Occurrences that came due."""
    started: int
    """Runs that were queued."""
    overlapped: int
    """Occurrences that met an unfinished run, whatever their policy made of it."""
    waited: int
    """Of these, how many waited for the run ahead of them."""
    replaced: int
    """Runs that were cancelled or terminated for a newer one."""
    missed: int
    """Occurrences that were counted as missed."""
    excluded: int
    """Instants that were no occurrence because they are excluded."""
    retries: int
    """Attempts that were repeated."""
    skipped: dict[str, int]
    """Occurrences that started nothing, by reason."""
    ended: dict[str, int]
    """Runs that have ended, by status; `expired` is one of them."""
    open: int
    """Runs that have not ended at the end."""
    status: str
    """What the schedule is at the end."""


@dataclass(frozen=True, slots=True)
class QueueBehind:
    """A time during which something always waited on a queue, or for a place of a group."""

    start: datetime
    """When the first had to wait; aware UTC."""
    end: datetime
    """When none waited any more, or the span ended."""
    most_waiting: int
    """The most that waited at once."""
    longest_wait_seconds: float
    """The longest wait of those that began in it."""


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """The attempts, waits and load of one queue."""

    queue: str
    """Its name, as `QueueLoad` has it."""
    workers: int | None
    """How many attempts it executes at once; None: any number, so that nothing waits."""
    attempts: int
    """How many began."""
    wait_p50_seconds: float
    """What half of them waited at most."""
    wait_p95_seconds: float
    """What 95 of 100 of them waited at most."""
    wait_max_seconds: float
    """The longest wait."""
    busy: float | None
    """Which part of its workers' time the attempts took; None with any number of workers."""
    waiting: int
    """How many attempts still wait at the end."""
    keeps_up: bool
    """Whether the line was empty at some time in the last day, or in the second half of a span under two days."""
    behind: list[QueueBehind]
    """The longest times during which something always waited, at most five, the longest first."""


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """What one group with a limit had to do."""

    limit: str
    """Its name; `namespace/name` where all namespaces are simulated."""
    number: int | None
    """How many of its runs run at once; None is any."""
    rate: str | None
    """How many of its attempts start in a time, such as `100/min`; None is any."""
    places: int
    """How many places were given: one to each attempt, and another to an attempt that did not begin within 30 s."""
    wait_p50_seconds: float
    """What half of them were waited for at most."""
    wait_p95_seconds: float
    """What 95 of 100 of them were waited for at most."""
    wait_max_seconds: float
    """The longest wait."""
    most_waiting: int
    """The most that waited in line at once."""
    full: float | None
    """Which part of the time as many ran, or were about to start, as the number says; None without one."""
    held_by_rate: float | None
    """Which part of the time somebody waited for nothing but the rate; None without one."""
    waiting: int
    """How many runs still wait in line at the end."""
    keeps_up: bool
    """Whether the line was empty at some time in the last day, or in the second half of a span under two days."""
    behind: list[QueueBehind]
    """The longest times during which somebody always waited, at most five, the longest first."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What became of the fires of a simulation: each fire, start and end was decided, from idle workers on."""

    total: ScheduleOutcome
    """What became of all schedules together."""
    queues: list[QueueOutcome]
    """Each queue, the one with the longest wait first."""
    limits: list[LimitOutcome]
    """Each group with a limit, the one with the longest wait first."""
    schedules: list[ScheduleOutcome]
    """Each schedule of which more is to be told than that its runs succeeded, by name."""


@dataclass(frozen=True, slots=True)
class SimulatedDay:
    """What one day holds."""

    start: datetime
    """Its first instant within the span: midnight UTC, or where the span begins."""
    fires: int
    """How many fires."""
    peak_fires: int
    """How many fires its highest minute holds."""
    peak_at: datetime
    """The first such minute; aware UTC."""


@dataclass(frozen=True, slots=True)
class ClockEffect:
    """What a change of clocks does to one timing."""

    timing: str
    """The timing, in short."""
    effect: str
    """`shifted`, `skipped` or `doubled`."""
    local: str
    """The local time that it names."""
    fires_at: list[datetime]
    """When that fires; empty when it is skipped; aware UTC."""
    schedules: list[str]
    """The first ten of the schedules with this timing, by name."""
    others: int
    """How many more there are."""


@dataclass(frozen=True, slots=True)
class ClockNight:
    """A change of the clocks of a zone in which schedules fire."""

    at: datetime
    """When; aware UTC."""
    zone: str
    """The zone."""
    seconds: int
    """By how much: forward where it is positive."""
    effects: list[ClockEffect]
    """What it does to timings that name a local time that is left out, or shown twice."""


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """What a simulation does not do of a schedule."""

    name: str
    """The schedule."""
    what: str
    """What that is, as a sentence."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A span of schedules as it would be: the same schedules, arguments and seed give the same report."""

    start: datetime
    """Where the span begins; aware UTC, a whole minute."""
    end: datetime
    """The first instant after it."""
    seed: int
    """What was drawn is a hash of this."""
    fires: int
    """How many fires."""
    days: list[SimulatedDay]
    """Each day of the span, UTC."""
    peaks: list[Peak]
    """The highest minutes, at most ten, those with the most fires first; none where no minute stands out."""
    queues: list[QueueLoad]
    """What fires onto each queue, the one with the most fires first."""
    outcome: SimulationOutcome
    """The starts, waits and ends of these fires."""
    nights: list[ClockNight]
    """Where clocks change, in order."""
    schedules: list[SimulatedSchedule]
    """Each schedule that takes part, by name."""
    not_simulated: list[NotSimulated]
    """What is left out, by name."""
    assumed: list[str]
    """What the figures rest on, as sentences."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-native values."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_utc(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
