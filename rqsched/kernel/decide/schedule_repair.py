"""The decisions of reconcile about a schedule, after a crash or after the timezone rules changed. Pure.

The caller has locked the row of the schedule and read it under the lock. If there is nothing to repair, the Change is
empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rqsched.errors import error_line
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.model import Change, Run, Schedule, unchanged
from rqsched.kernel.decide.moves import evaluate_to
from rqsched.kernel.decide.occurrences import drop_skips, leave_out, next_occurrence
from rqsched.kernel.decide.overlap import drain
from rqsched.kernel.decide.schedule_endings import complete_if_over
from rqsched.kernel.decide.settle_decision import note_long
from rqsched.when.steps import answered

LOOK_FURTHER_EVERY = timedelta(days=1)
"""How often `evaluated_to` of a schedule advances if all its occurrences are excluded."""


def decide_replan(schedule: Schedule, awaited: Run | None, *, now: datetime) -> Change:
    """Plan an active schedule that has no next time, unless it waits for the unfinished run `awaited`."""
    is_waiting = awaited is not None and awaited.is_unfinished
    has_times = schedule.upstream_id is None and schedule.spec.is_known
    if not schedule.is_active or schedule.next_run_at is not None or is_waiting or not has_times:
        return unchanged(schedule)
    builder = ChangeBuilder(schedule, now=now)
    counts_from = [schedule.evaluated_to, schedule.timing_changed_at]
    # If the awaited run has ended, a process of an older release ended it. That release did not know the timing, so it
    # planned no next time.
    if awaited is not None and awaited.ended_at is not None:
        counts_from.append(awaited.ended_at)
    builder.plan(next_occurrence(schedule, max(counts_from)))
    if builder.schedule.next_run_at is None:
        _look_further(builder, max(counts_from))
    complete_if_over(builder)
    if builder.schedule.next_run_at is not None:
        builder.record(audit.RECOVERED, reason="no next time", next_fire_at=builder.schedule.due_at)
    return builder.build()


def _look_further(builder: ChangeBuilder, since: datetime) -> None:
    """Record once a day which instants were excluded until now, so that the next search for a time starts later.

    Each search is limited to some years and some steps. If every search started at the last fire, every search might
    end inside the same long excluded range.
    """
    schedule, span = builder.schedule, builder.now - since
    if schedule.spec.is_from_completion or not schedule.spec.exclude:
        return
    while span >= LOOK_FURTHER_EVERY:
        until = since + span
        count = answered(schedule.timeline.count_between, since, until, 1, otherwise=None)
        if count is not None and not count.total:
            leave_out(builder, until)
            evaluate_to(builder, until)
            builder.plan(next_occurrence(builder.schedule, until))
            return
        span /= 8  # a shorter span takes fewer steps; the next pass searches further


def decide_retime(schedule: Schedule, *, now: datetime, tzdata: str) -> Change:
    """Recompute the next time after the timezone database changed. An occurrence that is due already does not move."""
    if not schedule.spec.is_known:
        return unchanged(schedule)
    builder = ChangeBuilder(schedule, now=now)
    builder.set(tzdata=tzdata)
    drop_skips(builder, now, "timezone_rules_changed")
    if schedule.is_active and schedule.next_run_at is not None and schedule.next_run_at > now:
        builder.plan(next_occurrence(schedule, max(schedule.evaluated_to, schedule.timing_changed_at)))
        complete_if_over(builder)
    if builder.schedule.is_active and builder.schedule.next_run_at != schedule.next_run_at:
        builder.record(audit.RECOVERED, reason="timezone_rules_changed", next_fire_at=builder.schedule.due_at)
    return builder.build()


def decide_drain(schedule: Schedule, runs: Iterable[Run], *, now: datetime) -> Change:
    """Start the oldest waiting run if no run is ahead of it. The process that had to start it has died."""
    builder = ChangeBuilder(schedule, runs, now=now)
    drain(builder)
    return builder.build()


def decide_overdue(schedule: Schedule, *, now: datetime) -> Change:
    """Record that no run succeeded within `expect_success_within`. This is recorded once until the next success."""
    span = schedule.expect_success_within
    if schedule.overdue_at is None or schedule.overdue_at > now or span is None:
        return unchanged(schedule)
    builder = ChangeBuilder(schedule, now=now)
    builder.set(overdue_at=None, overdue_since=schedule.overdue_at)
    builder.record(
        audit.OVERDUE,
        overdue_since=schedule.overdue_at,
        last_success_at=schedule.last_success_at,
        expect_success_within_seconds=span.total_seconds(),
        error=error_line(schedule.last_error) or None,
        consecutive_failures=schedule.consecutive_failures,
    )
    return builder.build()


def decide_long(schedule: Schedule, run: Run, *, now: datetime) -> Change:
    """Record that a run takes longer than its schedule expects, once for each run."""
    builder = ChangeBuilder(schedule, [run], now=now)
    note_long(builder, run)
    return builder.build()
