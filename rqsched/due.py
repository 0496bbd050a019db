"""When an occurrence is due: its nominal time plus its share of the jitter. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .jitter import jittered
from .state import Schedule


@dataclass(frozen=True, slots=True)
class Due:
    """When an occurrence is nominally, and when it fires."""

    nominal_at: datetime
    due_at: datetime


def due_after(schedule: Schedule, after: datetime) -> Due | None:
    """Compute the next occurrence strictly after an instant, with its jitter; None when the spec is over."""
    nominal = schedule.spec.next_after(after)
    return None if nominal is None else Due(nominal, due_of(schedule, nominal))


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
