"""Overdue: a schedule that expects a success within some time is overdue when it has had none for so long. Pure.

`overdue_at` is the instant at which it becomes overdue; None where nothing is expected or it is reported already.
`overdue_since` is that instant once it is reported, until the next success.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rqsched.core.model import RunKind, Schedule, ScheduleStatus

_EXPECTING = frozenset({ScheduleStatus.ACTIVE, ScheduleStatus.DEAD})
"""Paused, done and deleted schedules expect nothing; dead ones are what this is for."""


def succeeded(schedule: Schedule, kind: RunKind, now: datetime) -> dict[str, Any]:
    """Return what a success changes in a schedule that expects one: a backfilled run tells nothing about now."""
    span = schedule.expect_success_within
    if span is None or kind is RunKind.BACKFILL:
        return {}
    is_expecting = schedule.status in _EXPECTING
    return {"last_success_at": now, "overdue_since": None, "overdue_at": now + span if is_expecting else None}


def expected(before: Schedule | None, after: Schedule, now: datetime) -> dict[str, Any]:
    """Return when a schedule whose status or expectation changed is overdue; nothing when neither did.

    It counts from now when the schedule is new or fires again, else from the last success that is known.
    """
    span = after.expect_success_within
    if before is not None and before.status is after.status and before.expect_success_within == span:
        return {}
    if span is None or after.status not in _EXPECTING:
        is_set = after.overdue_at is not None or after.overdue_since is not None
        return {"overdue_at": None, "overdue_since": None} if is_set else {}
    if before is not None and before.status in _EXPECTING and before.expect_success_within == span:
        return {}  # it died: it still expects the same
    starts_anew = before is None or before.status not in _EXPECTING
    since = now if starts_anew else (after.last_success_at or now)
    if after.overdue_since is not None and since + span <= now:
        return {}  # reported, and still so
    return {"overdue_at": since + span, "overdue_since": None}
