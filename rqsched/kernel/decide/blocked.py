"""Blocked runs: a worker claimed the run, but cannot find its workflow. The attempt does not count as failed. Pure.

A blocked run is pending: overlap and `from_completion` see it as unfinished. It is offered again after a delay, to any
worker. A run that stays blocked for too long fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.delays import offer_delay
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.payload import storable
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle

MAX_REASON = 2_000
"""The maximum length of a stored reason, in characters."""


def decide_block(
    schedule: Schedule, runs: Iterable[Run], run: Run, reason: str, *, now: datetime, timeout: timedelta
) -> Change:
    """Undo the claim of a run if its worker cannot find the workflow. No attempt is counted or listed.

    The run waits under its next delivery number. If it has been blocked for `timeout`, it fails instead. `runs` are as
    in `decide_settle`. The caller has checked the token of the claim.
    """
    blocked_at = run.blocked_at or now
    if now - blocked_at >= timeout:
        return decide_settle(schedule, runs, run, out_of_time(reason, timeout), now=now)
    builder = ChangeBuilder(schedule, runs, now=now)
    builder.set_run(
        run.uid,
        status=RunStatus.PENDING,
        delivery=run.delivery + 1,
        token=None,
        worker=None,
        started_at=None,
        granted_at=None,
        passed_at=None,
        queued_at=now + offer_delay(now - blocked_at),
        blocked_at=blocked_at,
        blocked_reason=_cut(f"{run.worker}: {reason}"),
    )
    if run.blocked_at is None:  # record it once, and not after each offer
        builder.record(
            audit.RUN_BLOCKED,
            run,
            reason=_cut(reason),
            worker=run.worker,
            blocked_at=blocked_at,
        )
    return builder.build()


def out_of_time(reason: str | None, timeout: timedelta) -> AttemptResult:
    """Return the failure of a run that was blocked for too long. No attempt follows."""
    seconds = f"{timeout.total_seconds():.15g}"
    error = f"no worker could find its workflow within {seconds} s (RQSCHED_BLOCKED_TIMEOUT): {reason}"
    return AttemptResult(AttemptOutcome.FAILED, error=error, is_final=True)


def _cut(reason: str) -> str:
    reason = storable(reason)
    return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 6]} [cut]"
