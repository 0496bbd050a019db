"""The report of a simulation: its findings and its assumptions, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.results import Peak, QueueLoad


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
    """The source of that duration: `schedule` or `workflow` or `all` (given for it), `measured`, or `nothing`."""
    failure_rate: float
    """The fraction of its attempts that fails."""


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
    """The status of the schedule at the end."""


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
    """The longest wait of the attempts that began in it."""


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
    """The median wait."""
    wait_p95_seconds: float
    """The 95th percentile of the waits."""
    wait_max_seconds: float
    """The longest wait."""
    busy: float | None
    """The fraction of its workers' time that the attempts took; None with any number of workers."""
    waiting: int
    """How many attempts still wait at the end."""
    keeps_up: bool
    """Whether the line was empty at some time in the last day, or in the second half of a span under two days."""
    behind: list[QueueBehind]
    """The longest times during which something always waited, at most five, the longest first."""


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """The waits and load of one group with a limit."""

    limit: str
    """Its name; `namespace/name` where all namespaces are simulated."""
    number: int | None
    """How many of its runs run at once; None is any."""
    rate: str | None
    """How many of its attempts start in a time, such as `100/min`; None is any."""
    places: int
    """How many places were given: one to each attempt, and another to an attempt that did not begin within 30 s."""
    wait_p50_seconds: float
    """The median wait for a place."""
    wait_p95_seconds: float
    """The 95th percentile of the waits for a place."""
    wait_max_seconds: float
    """The longest wait."""
    most_waiting: int
    """The most that waited in line at once."""
    full: float | None
    """The fraction of the time in which as many runs ran, or were about to start, as the number allows; None without
    one."""
    held_by_rate: float | None
    """The fraction of the time in which runs waited for nothing but the rate; None without one."""
    waiting: int
    """How many runs still wait in line at the end."""
    keeps_up: bool
    """Whether the line was empty at some time in the last day, or in the second half of a span under two days."""
    behind: list[QueueBehind]
    """The longest times during which somebody always waited, at most five, the longest first."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The outcome of the fires of a simulation, which begins with idle workers and decides each fire, start and end."""

    total: ScheduleOutcome
    """The outcome of all schedules together."""
    queues: list[QueueOutcome]
    """Each queue, the one with the longest wait first."""
    limits: list[LimitOutcome]
    """Each group with a limit, the one with the longest wait first."""
    schedules: list[ScheduleOutcome]
    """Each schedule with more to report than successes, by name."""


@dataclass(frozen=True, slots=True)
class SimulatedDay:
    """The fires of one day."""

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
    """The effect of a clock change on one timing."""

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
    """The effects on timings that name a local time that is left out, or shown twice."""


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """A part of a schedule that is not simulated."""

    name: str
    """The schedule."""
    what: str
    """The part, as a sentence."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A span of schedules as it would be: the same schedules, arguments and seed give the same report."""

    start: datetime
    """The begin of the span; aware UTC, a whole minute."""
    end: datetime
    """The first instant after it."""
    seed: int
    """The seed of everything that is drawn by hash."""
    fires: int
    """How many fires."""
    days: list[SimulatedDay]
    """Each day of the span, UTC."""
    peaks: list[Peak]
    """The highest minutes, at most ten, those with the most fires first; none where no minute stands out."""
    queues: list[QueueLoad]
    """The fires onto each queue, the one with the most first."""
    outcome: SimulationOutcome
    """The starts, waits and ends of these fires."""
    nights: list[ClockNight]
    """The clock changes, in order."""
    schedules: list[SimulatedSchedule]
    """Each schedule that takes part, by name."""
    not_simulated: list[NotSimulated]
    """The parts that are left out, by name."""
    assumed: list[str]
    """The assumptions behind the figures, as sentences."""

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
