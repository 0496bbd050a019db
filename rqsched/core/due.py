"""When an occurrence is due: its nominal time plus its share of the jitter. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rqsched.core.jitter import jittered
from rqsched.core.model import Schedule

COUNT_CAP = 1_000
"""Up to here missed occurrences are counted where only enumeration tells their number."""
LONGEST_SKEW = timedelta(hours=1)
"""Two processes' clocks differ by less; a schedule evaluated further ahead has met one that was plainly wrong."""


@dataclass(frozen=True, slots=True)
class Due:
    """When an occurrence is nominally, and when it fires."""

    nominal_at: datetime
    due_at: datetime


def due_after(schedule: Schedule, after: datetime) -> Due | None:
    """Compute the next occurrence strictly after an instant, with its jitter; None when the spec is over."""
    nominal = schedule.spec.next_after(after)
    return None if nominal is None else Due(nominal, due_of(schedule, nominal))


def planned_from(schedule: Schedule, now: datetime) -> datetime:
    """Give the instant after which an owner's operation plans: now, or where a process whose clock is ahead has got to.

    So what has an outcome does not fire again; only a schedule that met a plainly wrong clock is taken back from it.
    """
    is_ahead = timedelta(0) < schedule.evaluated_to - now <= LONGEST_SKEW
    return schedule.evaluated_to if is_ahead else now


def due_of(schedule: Schedule, nominal: datetime) -> datetime:
    """Compute when an occurrence fires: its nominal time plus its share of the jitter."""
    jitter = schedule.definition.jitter
    if not jitter:
        return nominal
    following = schedule.spec.next_after(nominal)
    gap = None if following is None else following - nominal
    return jittered(schedule.uid, nominal, jitter, gap)


def stored_due_of(schedule: Schedule, nominal: datetime) -> datetime:
    """Tell when an occurrence was to fire: as stored for the next one, else computed.

    The stored due time of a fire that failed is its next trial, which makes the occurrence no younger.
    """
    is_stored = nominal == schedule.next_run_at and not schedule.fire_failures
    return schedule.due_at if is_stored and schedule.due_at is not None else due_of(schedule, nominal)
