"""Which of the occurrences that have passed fire now, and which are counted as missed. Pure.

The work is bounded: what was passed over is counted by arithmetic where the spec allows it, else enumerated up to
1 000 (`count_capped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rqsched.core.due import COUNT_CAP, Due, due_after, due_of, stored_due_of
from rqsched.core.model import Schedule
from rqsched.core.policy import MissedPolicy

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
class DueOccurrences:
    """The passed occurrences of one schedule, sorted out."""

    fires: tuple[datetime, ...]
    """Nominal times to fire now, oldest first."""
    missed: Missed | None
    last: datetime
    """The newest passed occurrence: everything up to it has its outcome after this fire."""
    upcoming: Due | None = None
    """The next occurrence when it is already known."""


def classify_due(schedule: Schedule, now: datetime) -> DueOccurrences:
    """Sort out the occurrences from the schedule's stored next time up to now; that one itself must be due.

    After a change of timing the stored one may lie off the grid, and the new grid counts from that change on.
    """
    stored = schedule.next_run_at
    if stored is None:
        raise ValueError("a schedule without a next time has nothing to survey")
    if schedule.spec.is_from_completion:
        return _classify_one(schedule, stored, now, None)
    since = max(stored, schedule.timing_changed_at)
    following = due_after(schedule, since)
    if following is None or following.due_at > now:
        return _classify_one(schedule, stored, now, following)
    passed = _Passed(stored, since, _newest_due(schedule, since, now))
    beyond, capped = schedule.spec.count_between(since, passed.last, cap=COUNT_CAP)
    fires = _choose(schedule, passed, now)
    missed = beyond + 1 - len(fires)
    first = following.nominal_at if stored in fires else stored
    return DueOccurrences(fires, Missed(missed, capped, first, passed.last) if missed > 0 else None, passed.last)


@dataclass(frozen=True, slots=True)
class _Passed:
    """The stored occurrence, and those of the grid in (since, last]."""

    stored: datetime
    since: datetime
    last: datetime


def _classify_one(schedule: Schedule, stored: datetime, now: datetime, following: Due | None) -> DueOccurrences:
    if _is_fresh(schedule, stored, now):
        return DueOccurrences((stored,), None, stored, following)
    return DueOccurrences((), Missed(1, False, stored, stored), stored, following)


def _newest_due(schedule: Schedule, since: datetime, now: datetime) -> datetime:
    newest = schedule.spec.last_between(since, now, 2)
    return next(nominal for nominal in reversed(newest) if due_of(schedule, nominal) <= now)


def _choose(schedule: Schedule, passed: _Passed, now: datetime) -> tuple[datetime, ...]:
    policies = schedule.policies
    if policies.missed is MissedPolicy.ALL:
        newest = [passed.stored, *schedule.spec.last_between(passed.since, passed.last, policies.catch_up_limit)]
        kept = newest[-policies.catch_up_limit :]
        return tuple(nominal for nominal in kept if _is_fresh(schedule, nominal, now))
    if policies.missed is MissedPolicy.SKIP:
        return (passed.last,) if _is_fresh(schedule, passed.last, now) else ()
    if policies.window is None or _is_fresh(schedule, passed.stored, now):
        return (passed.stored,)
    return _oldest_fresh(schedule, passed, now - policies.window)


def _oldest_fresh(schedule: Schedule, passed: _Passed, edge: datetime) -> tuple[datetime, ...]:
    """Find the oldest occurrence due at or after `edge`: jitter may admit the newest one nominally before it."""
    spec, before = schedule.spec, max(edge - _TICK, passed.since)
    candidates = [*spec.last_between(passed.since, before, 1), spec.next_after(before)]
    fresh = (nominal for nominal in candidates if nominal is not None and nominal <= passed.last)
    return next(((nominal,) for nominal in fresh if due_of(schedule, nominal) >= edge), ())


def _is_fresh(schedule: Schedule, nominal: datetime, now: datetime) -> bool:
    window = schedule.policies.window
    return window is None or now - stored_due_of(schedule, nominal) <= window
