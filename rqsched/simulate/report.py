"""The report of a simulation: its results and its assumptions, as plain values."""

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
    """Its id; `namespace/id` if all namespaces are simulated."""
    workflow: str
    """The workflow of its runs."""
    queue: str
    """The queue of its runs, in the form of `QueueLoad.queue`."""
    timing: str
    """When it fires, as a short text."""
    fires: int
    """The number of its fires in the span."""
    duration_seconds: float
    """The median duration of its attempts."""
    duration_from: str
    """The source of this duration: given for the `schedule`, the `workflow` or `all`; `measured`; or `nothing`."""
    failure_rate: float
    """The fraction of its attempts that fails."""


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """The fires, runs and attempts of one schedule."""

    name: str
    """The name of the schedule."""
    fires: int
    """How many occurrences came due."""
    started: int
    """How many runs were queued."""
    overlapped: int
    """How many occurrences came due while a run was unfinished, under any overlap policy."""
    waited: int
    """How many of these occurrences got a run that waited for the run ahead of it."""
    replaced: int
    """How many runs were cancelled or terminated for a newer run."""
    missed: int
    """How many occurrences were counted as missed."""
    excluded: int
    """How many instants of the timing were excluded."""
    retries: int
    """How many retries were made."""
    skipped: dict[str, int]
    """How many occurrences started nothing, by reason."""
    ended: dict[str, int]
    """How many runs have ended, by status (including `expired`)."""
    open: int
    """How many runs are unfinished at the end of the span."""
    status: str
    """The status of the schedule at the end."""


@dataclass(frozen=True, slots=True)
class QueueBehind:
    """A period during which the line of a queue, or of a group with a limit, was never empty."""

    start: datetime
    """When the first attempt or run had to wait; aware UTC."""
    end: datetime
    """When the line was empty again, or the span ended; aware UTC."""
    most_waiting: int
    """The greatest length of the line."""
    longest_wait_seconds: float
    """The longest wait that ended in the period."""


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """The attempts, waits and load of one queue."""

    queue: str
    """The name, in the form of `QueueLoad.queue`."""
    workers: int | None
    """How many attempts the queue executes at once. None means any number, so that no attempt waits."""
    attempts: int
    """How many attempts began."""
    wait_p50_seconds: float
    """The median wait."""
    wait_p95_seconds: float
    """The 95th percentile of the waits."""
    wait_max_seconds: float
    """The longest wait."""
    busy: float | None
    """The fraction of the time for which its workers were busy; None if `workers` is None."""
    waiting: int
    """How many attempts still wait at the end of the span."""
    keeps_up: bool
    """Whether the line was empty at some time in the last day, or in the second half of a span under two days."""
    behind: list[QueueBehind]
    """The longest periods during which the line was never empty, at most five, the longest first."""


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """The waits and load of one group with a limit."""

    limit: str
    """The name of the group; `namespace/name` if all namespaces are simulated."""
    number: int | None
    """How many runs of the group may run at once; None means no limit."""
    rate: str | None
    """How many attempts of the group may start within a length of time, such as `100/min`; None means no limit."""
    places: int
    """How many places were given. A run that no worker starts within 30 s may lose its place, and later get another."""
    wait_p50_seconds: float
    """The median wait for a place."""
    wait_p95_seconds: float
    """The 95th percentile of the waits for a place."""
    wait_max_seconds: float
    """The longest wait."""
    most_waiting: int
    """The greatest length of the line."""
    full: float | None
    """The fraction of the time in which no place was free; None if the group has no number."""
    held_by_rate: float | None
    """The fraction of the time in which runs waited only because of the rate; None if the group has no rate."""
    waiting: int
    """How many runs still wait at the end of the span."""
    keeps_up: bool
    """Whether the line was empty at some time in the last day, or in the second half of a span under two days."""
    behind: list[QueueBehind]
    """The longest periods during which the line was never empty, at most five, the longest first."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The outcome of all fires of a simulation."""

    total: ScheduleOutcome
    """The outcome of all schedules together."""
    queues: list[QueueOutcome]
    """Each queue. The queue with the longest wait comes first."""
    limits: list[LimitOutcome]
    """Each group with a limit. The group with the longest wait comes first."""
    schedules: list[ScheduleOutcome]
    """Each schedule that had other outcomes than successful runs, by name."""


@dataclass(frozen=True, slots=True)
class SimulatedDay:
    """The fires of one day."""

    start: datetime
    """The first instant of the day within the span: midnight UTC, or the start of the span."""
    fires: int
    """The number of fires on this day."""
    peak_fires: int
    """The highest number of fires in one minute."""
    peak_at: datetime
    """The first minute with that many fires; aware UTC."""


@dataclass(frozen=True, slots=True)
class ClockEffect:
    """The effect of a clock change on one timing."""

    timing: str
    """The timing, as a short text."""
    effect: str
    """`shifted`, `skipped` or `doubled`."""
    local: str
    """The affected local time."""
    fires_at: list[datetime]
    """The instants at which the timing fires for this local time, aware UTC; empty if it is skipped."""
    schedules: list[str]
    """The first ten schedules with this timing, by name."""
    others: int
    """How many further schedules have this timing."""


@dataclass(frozen=True, slots=True)
class ClockNight:
    """A clock change in a time zone that schedules use."""

    at: datetime
    """When the clocks change; aware UTC."""
    zone: str
    """The time zone."""
    seconds: int
    """The change of the clock in seconds. It is positive if the clock goes forward."""
    effects: list[ClockEffect]
    """The effects on timings with a local time that does not exist at this change, or occurs twice."""


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """A part of a schedule that is not simulated."""

    name: str
    """The name of the schedule."""
    what: str
    """The part, in words."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The report of a simulation. The same schedules, arguments and seed give the same report."""

    start: datetime
    """The start of the span; aware UTC, a whole minute."""
    end: datetime
    """The first instant after the span; aware UTC."""
    seed: int
    """The seed of all random values."""
    fires: int
    """The number of fires."""
    days: list[SimulatedDay]
    """Each day of the span, by UTC."""
    peaks: list[Peak]
    """At most ten minutes with the most fires, the highest first; empty if no minute stands out."""
    queues: list[QueueLoad]
    """The fires of each queue. The queue with the most fires comes first."""
    outcome: SimulationOutcome
    """How the runs of these fires started, waited and ended."""
    nights: list[ClockNight]
    """The clock changes, in order."""
    schedules: list[SimulatedSchedule]
    """Each simulated schedule, by name."""
    not_simulated: list[NotSimulated]
    """The schedules and parts of schedules that are not simulated, by name."""
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
