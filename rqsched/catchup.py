"""Which of the occurrences that have passed fire now, and which are counted as missed. Pure.

The work is bounded: what was passed over is counted by arithmetic where the spec allows it, else enumerated up to
1 000 (`count_capped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from .draft import COUNT_CAP, Due, due_after, due_of
from .policy import MissedPolicy, Policies
from .state import Schedule

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Missed:
    """Occurrences that no run will stand for."""

    count: int
    is_capped: bool
    """The true count is at least `count`."""
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class Survey:
    """The passed occurrences of one schedule, sorted out."""

    fires: tuple[datetime, ...]
    """Nominal times to fire now, oldest first."""
    missed: Missed | None
    last: datetime
    """The newest passed occurrence: everything up to it has its outcome after this fire."""
    upcoming: Due | None = None
    """The next occurrence when it is already known."""


def survey(schedule: Schedule, now: datetime) -> Survey:
    """Sort out the occurrences from the schedule's stored next time up to now; that one itself must be due."""
    stored = schedule.next_run_at
    if stored is None:
        raise ValueError("a schedule without a next time has nothing to survey")
    following = due_after(schedule, stored)
    if following is None or following.due_at > now:
        return _survey_one(schedule, stored, now, following)
    last = _newest_due(schedule, stored, now)
    beyond, capped = schedule.spec.count_between(stored, last, cap=COUNT_CAP)
    fires = _choose(schedule, stored, last, now)
    missed = beyond + 1 - len(fires)
    return Survey(fires, Missed(missed, capped, stored, last) if missed > 0 else None, last)


def _survey_one(schedule: Schedule, stored: datetime, now: datetime, following: Due | None) -> Survey:
    if _is_fresh(schedule, stored, now):
        return Survey((stored,), None, stored, following)
    return Survey((), Missed(1, False, stored, stored), stored, following)


def _newest_due(schedule: Schedule, stored: datetime, now: datetime) -> datetime:
    newest = schedule.spec.last_between(stored, now, 2)
    return next((nominal for nominal in reversed(newest) if due_of(schedule, nominal) <= now), stored)


def _choose(schedule: Schedule, stored: datetime, last: datetime, now: datetime) -> tuple[datetime, ...]:
    policies = schedule.policies
    if policies.missed is MissedPolicy.ALL:
        newest = [stored, *schedule.spec.last_between(stored, last, policies.catch_up_limit)]
        kept = newest[-policies.catch_up_limit :]
        return tuple(nominal for nominal in kept if _is_fresh(schedule, nominal, now))
    if policies.missed is MissedPolicy.SKIP:
        return (last,) if _is_fresh(schedule, last, now) else ()
    return _oldest_fresh(schedule, policies, (stored, last), now)


def _oldest_fresh(
    schedule: Schedule, policies: Policies, passed: tuple[datetime, datetime], now: datetime
) -> tuple[datetime, ...]:
    stored, last = passed
    if _is_fresh(schedule, stored, now) or policies.window is None:
        return (stored,)
    oldest = schedule.spec.next_after(now - policies.window - _TICK)
    return (oldest,) if oldest is not None and oldest <= last else ()


def _is_fresh(schedule: Schedule, nominal: datetime, now: datetime) -> bool:
    window = schedule.policies.window
    return window is None or now - due_of(schedule, nominal) <= window
