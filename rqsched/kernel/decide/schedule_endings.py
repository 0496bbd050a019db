"""End a schedule: it becomes done, dead or deleted. Pure.

First, due occurrences get their outcome. Then the status changes, and waiting runs are cancelled.
"""

from __future__ import annotations

from datetime import datetime

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.model import Run, Schedule, ScheduleStatus
from rqsched.kernel.decide.occurrences import miss_end, missed_end, write_off
from rqsched.kernel.decide.reasons import EndReason, SkipReason
from rqsched.when.steps import answered


def complete(builder: ChangeBuilder, reason: str) -> None:
    """Set the schedule done and record the reason."""
    write_off(builder, SkipReason.MAX_RUNS)
    _stop(builder, ScheduleStatus.DONE, reason)
    dropped = builder.drop_buffer()
    builder.record(audit.COMPLETED, reason=reason, completed_at=builder.now, dropped_buffered=dropped)


def complete_if_over(builder: ChangeBuilder) -> None:
    """Set an active schedule done if its spec has no further occurrence and no run waits.

    If all further occurrences are excluded or skipped on request, the schedule stays active, and reconcile checks it
    again. It also stays active if it has an upstream, if a calendar of its spec was deleted, or if only a newer release
    knows its timing.
    """
    schedule = builder.schedule
    has_next = schedule.next_run_at is not None or schedule.awaiting_run_uid is not None
    is_waiting = schedule.buffer_depth or schedule.backfill_waiting
    if not schedule.is_active or has_next or is_waiting or not schedule.spec.is_known:
        return
    if schedule.upstream_id is not None:
        return
    if schedule.skips is not None and schedule.skipped_at[-1] > builder.now:
        return
    if answered(_is_over, schedule, builder.now, otherwise=False):
        complete(builder, EndReason.SPEC_ENDED.value)


def _is_over(schedule: Schedule, now: datetime) -> bool:
    """Return whether no occurrence is ahead, not even an excluded occurrence."""
    since = max(now, schedule.evaluated_to, schedule.timing_changed_at)
    has_more = not schedule.spec.is_from_completion and schedule.timeline.next_after(since) is not None
    return not has_more and not schedule.spec.is_all_excluded_after(now)


def end_if_exhausted(builder: ChangeBuilder) -> None:
    """End a schedule whose `max_runs` are used up: set it done, or delete it if `on_max_runs` is `delete`."""
    if builder.schedule.remaining != 0:
        return
    if builder.schedule.has_ended:
        # The schedule ended earlier. Now the waiting runs of its backfills cannot start either.
        if dropped := builder.drop_buffer():
            builder.record(
                audit.COMPLETED, reason=EndReason.MAX_RUNS.value, completed_at=builder.now, dropped_buffered=dropped
            )
    elif builder.schedule.policies.on_max_runs == "delete":
        delete(builder, EndReason.MAX_RUNS.value)
    else:
        complete(builder, EndReason.MAX_RUNS.value)


def delete(builder: ChangeBuilder, reason: str | None) -> None:
    """Delete a schedule softly: its row stays. Runs that execute continue; buffered and retrying runs are cancelled.

    With the policy `keep_runs` no run is cancelled. If `on_max_runs` deletes the schedule, only buffered runs are
    cancelled.
    """
    is_owners = reason != EndReason.MAX_RUNS
    keeps = is_owners and builder.schedule.policies.keeps_runs
    write_off(builder, SkipReason.DELETED if is_owners else SkipReason.MAX_RUNS)
    _stop(builder, ScheduleStatus.DELETED, reason)
    builder.set(deleted_at=builder.now)
    dropped = None if keeps else builder.drop_buffer()
    if is_owners and not keeps:
        builder.drops_retries = True
    builder.record(audit.DELETED, reason=reason, deleted_at=builder.now, dropped_buffered=dropped)


def die(builder: ChangeBuilder, run: Run, reason: str) -> None:
    """Set the schedule dead after `run` has failed and no attempt is left."""
    write_off(builder, SkipReason.STATUS)
    _stop(builder, ScheduleStatus.DEAD, reason)
    dropped = builder.drop_buffer()
    builder.record(
        audit.DIED,
        run,
        reason=reason,
        died_at=builder.now,
        error=run.error,
        consecutive_failures=builder.schedule.consecutive_failures,
        dropped_buffered=dropped,
    )


def _stop(builder: ChangeBuilder, status: ScheduleStatus, reason: str | None) -> None:
    if (end := missed_end(builder.schedule)) is not None:
        miss_end(builder, end, status.value)
    builder.set(status=status, status_reason=reason, next_run_at=None, due_at=None, awaiting_run_uid=None)
    builder.set(resume_at=None, resume_mode=None, skips=None, missed_run_uid=None)
