"""Retries on request: a run that has ended without success is run again, for one attempt. Pure.

The run keeps its uid, its number and its ended attempts. What an operator asked for counts for no `max_runs` and for no
row of consecutive failures, and it waits its turn: it never ends another run, whatever the overlap policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from rqsched.core import audit
from rqsched.core.audit import CommandContext
from rqsched.core.change_builder import ChangeBuilder
from rqsched.core.ids import iso_utc
from rqsched.core.model import BLOCKED, ENDED_IN_VAIN, OPEN, Change, Run, RunKind, RunStatus, Schedule, ScheduleStatus
from rqsched.core.overlap import for_backfill
from rqsched.core.policy import OverlapPolicy
from rqsched.core.target_progress import count_failed
from rqsched.errors import RunStateError

RETRYABLE = ENDED_IN_VAIN
"""How a run ended that can be run again."""
FAILED = frozenset({RunStatus.FAILED, RunStatus.LOST})
"""How a run ended that a retry of all failed ones, or a backfill with `rerun="failed"`, runs again."""


def decide_retry_on_request(
    schedule: Schedule,
    runs: Iterable[Run],
    run: Run,
    *,
    now: datetime,
    reason: str | None = None,
    context: CommandContext | None = None,
    failed_targets: bool = False,
    operation: str | None = None,
) -> Change:
    """Give a run one more attempt, now or when those ahead of it have ended; raises RunStateError.

    A blocked run is offered to the workers now. `runs` are the schedule's open runs. With `failed_targets` the run may
    have succeeded, and must have targets that did not.
    """
    require_retryable(schedule, run, failed_targets=failed_targets)
    builder = ChangeBuilder(schedule, [run, *runs], now=now, context=context)
    if run.is_blocked:
        _offer(builder, run, reason)
    else:
        attempt_again(builder, run, reason=reason)
    return builder.build(operation)


def _offer(builder: ChangeBuilder, run: Run, reason: str | None) -> None:
    """Offer a blocked run now, under its next delivery number; it is the same attempt, which has not begun."""
    builder.set_run(run.uid, queued_at=builder.now, delivery=run.delivery + 1)
    builder.record(
        audit.RUN_RETRY_REQUESTED,
        run,
        workflow_instance_id=run.instance_id,
        workflow_run_id=run.uid,
        occurrence_time=run.occurrence_at,
        attempt=run.attempt,
        outcome="offered",
        previous_status=BLOCKED,
        reason=reason,
    )


def is_asked(run: Run) -> bool:
    """Return whether a run is open because an operator asked for its current attempt."""
    return run.is_asked and run.status in OPEN


def require_retryable(schedule: Schedule, run: Run, *, failed_targets: bool = False) -> None:
    """Check that a run can be run again; raises RunStateError, which says what to do instead."""
    if schedule.status is ScheduleStatus.DELETED:
        raise RunStateError(run.uid, run.status.value, "retry", "Its schedule is deleted; create it again.")
    if failed_targets:
        if run.status in OPEN:
            raise RunStateError(run.uid, run.status.value, "retry", _hint(run))
        if not count_failed(json.loads(run.target_counts or "{}")):
            raise RunStateError(run.uid, run.status.value, "retry", "None of its targets has failed.")
        return
    if run.status not in RETRYABLE and not run.is_blocked:
        raise RunStateError(run.uid, run.status.value, "retry", _hint(run))


def _hint(run: Run) -> str:
    if run.status is RunStatus.SUCCEEDED:
        return "Trigger the schedule for another run."
    if run.status is RunStatus.RETRYING and run.retry_at is not None:
        return f"It is tried again by itself at {iso_utc(run.retry_at)}; cancel it to retry it at once."
    return "It has not ended; cancel it first, or wait for its end."


def attempt_again(
    builder: ChangeBuilder, run: Run, *, reason: str | None = None, overlap: OverlapPolicy | None = None
) -> Run:
    """Make the next attempt pending, or let it wait while the overlap policy allows no run beside an unfinished one.

    `overlap` is another policy than the schedule's.
    """
    is_backfill = run.kind is RunKind.BACKFILL
    own = overlap or builder.schedule.policies.overlap
    policy = for_backfill(own) if is_backfill else own
    blocking = [] if policy is OverlapPolicy.ALLOW_ALL else builder.unfinished(run.kind)
    again = builder.set_run(
        run.uid,
        status=RunStatus.BUFFERED if blocking else RunStatus.PENDING,
        attempt=run.attempt + 1,
        asked_attempt=run.attempt + 1,
        delivery=1,
        token=None,
        worker=None,
        overlap=run.overlap if is_backfill else own.value,
        queued_at=None if blocking else builder.now,
        started_at=None,
        ended_at=None,
        retry_at=None,
        heartbeat_at=None,
        dispatched_at=None,
        target_counts=None,
    )
    builder.record(
        audit.RUN_RETRY_REQUESTED,
        again,
        workflow_instance_id=run.instance_id,
        workflow_run_id=run.uid,
        occurrence_time=run.occurrence_at,
        attempt=again.attempt,
        outcome="buffered" if blocking else "started",
        previous_status=run.status.value,
        blocking_run_id=blocking[0].uid if blocking else None,
        reason=reason,
    )
    return again
