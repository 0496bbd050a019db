"""Skips: occurrences and triggers that start nothing, and local times that a change of the clocks leaves out. Pure."""

from __future__ import annotations

from datetime import datetime

from rqsched.core import audit
from rqsched.core.change_builder import ChangeBuilder


def skip(builder: ChangeBuilder, occurrence_at: datetime | None, reason: str, *, blocking: str | None = None) -> None:
    """Record that an occurrence or trigger starts nothing; `blocking` is the uid of the run that is the reason."""
    count = builder.schedule.skipped_count + 1
    builder.set(skipped_count=count, last_skip_reason=reason, last_skipped_at=builder.now)
    builder.record(
        audit.SKIPPED,
        reason=reason,
        skipped_trigger_count=count,
        last_skipped_at=builder.now,
        occurrence_time=occurrence_at,
        blocking_run_id=blocking,
    )


def skip_gaps(builder: ChangeBuilder, until: datetime) -> None:
    """Record as skipped the local times that a change of the clocks left out since the last evaluation.

    Each of these gaps is an occurrence that never fires, with the reason `dst_skip` (docs/cron.md, "Daylight saving").
    """
    schedule = builder.schedule
    since = max(schedule.evaluated_to, schedule.timing_changed_at)
    for gap in schedule.spec.gaps_between(since, until):
        skip(builder, gap.occurrence_at, "dst_skip")
