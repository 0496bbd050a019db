"""Settle attempts: decide what follows the end of an attempt, write the decision and publish it.

Any process may report the end of an attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeAlias

from rqsched.errors import DatabaseLimitError, RqschedError, RunNotFoundError
from rqsched.kernel.chain.attempt import Claim, End
from rqsched.kernel.chain.commit import Attempts, Decided, publish
from rqsched.kernel.chain.fire import restate
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import RunJobId
from rqsched.kernel.decide.model import FAILURES, OPEN, Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.settle_decision import (
    AttemptOutcome,
    AttemptResult,
    cut_error,
    decide_settle,
    ends_alone,
    is_of_one_run,
)
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection, Patience

_log = logging.getLogger(__name__)
_SHOWN_REASON = 200
"""The maximum length of a reason that a list of skipped runs shows, in characters."""

DecideRun: TypeAlias = Callable[[Schedule, list[Run], Run, datetime], Change]
"""Decides about a run. The arguments are the schedule, its runs (as in `decide_settle`), the run and the time."""


def settle_run(
    runtime: Runtime,
    run_uid: str,
    attempt_result: AttemptResult,
    *,
    fence: Callable[[Run], bool],
    skip_locked: bool = False,
) -> Change | None:
    """End an attempt under the schedule's lock, if the run then still meets the condition `fence`.

    Returns None if another process has ended the attempt. With `skip_locked`, also returns None if another process has
    the lock.
    """

    def decide(schedule: Schedule, runs: list[Run], run: Run, now: datetime) -> Change:
        return decide_settle(schedule, runs, run, attempt_result, now=now)

    return change_run(runtime, run_uid, decide, fence=fence, skip_locked=skip_locked)


def write_end(
    runtime: Runtime,
    claim: Claim,
    attempt_result: AttemptResult,
    *,
    patience: Patience,
    at: datetime | None = None,
    is_repeated: bool = False,
) -> End:
    """Write how a claimed attempt ended, if the claim still holds; returns the end for `publish_end`.

    If nothing has changed since the claim and nothing else depends on the end, this is one statement. `is_repeated`
    means that another process was asked before to write this end with the same `at`. If that process has written the
    end, this call detects it.
    """

    def decide(schedule: Schedule, runs: list[Run], run: Run, now: datetime) -> Change:
        moment = at if at is not None and schedule == claim.schedule else now
        return decide_settle(schedule, runs, run, attempt_result, now=moment)

    under_lock = partial(
        _decide_under_lock,
        runtime,
        claim.run.uid,
        decide,
        fence=lambda run: run.is_held_by(claim.token),
        schedule_uid=claim.schedule.uid,
    )
    attempts, alone, moment = Attempts(runtime, under_lock), None, at or runtime.now()
    # SQLite has no versions of rows, so there the end is written under the lock.
    if (claim.version is not None or is_repeated) and ends_alone(claim.schedule, attempt_result, now=moment):
        change = decide_settle(claim.schedule, [claim.run], claim.run, attempt_result, now=moment)
        if is_of_one_run(change):
            decided: End = Decided([change], change)
            attempts.tried = decided if is_repeated else None
            statement = partial(changes.end_alone, change=change, token=claim.token, version=claim.version or "")
            alone = partial(attempts.alone, decided=decided, statement=statement)
    return runtime.database.transact(attempts.under_lock, alone=alone, patience=patience)


def publish_end(runtime: Runtime, end: End) -> Change | None:
    """Publish an end; returns its Change if this process's decision was written."""
    publish(runtime, end.changes, seen=end.seen)
    return end.result


def change_run(
    runtime: Runtime,
    run_uid: str,
    decide: DecideRun,
    *,
    fence: Callable[[Run], bool],
    patience: Patience | None = None,
    skip_locked: bool = False,
) -> Change | None:
    """Lock a run's schedule; if the run still meets the condition `fence`, decide about it, write and publish.

    Returns None in the same cases as `settle_run`.
    """
    under_lock = partial(_decide_under_lock, runtime, run_uid, decide, fence=fence, skip_locked=skip_locked)
    attempts = Attempts(runtime, under_lock)
    return publish_end(runtime, runtime.database.transact(attempts.under_lock, patience=patience))


def _decide_under_lock(
    runtime: Runtime,
    run_uid: str,
    decide: DecideRun,
    connection: Connection,
    tried: End | None,
    *,
    fence: Callable[[Run], bool],
    skip_locked: bool = False,
    schedule_uid: str | None = None,
) -> End:
    found = _lock(connection, run_uid, schedule_uid, fence, skip_locked=skip_locked)
    if found is None:
        return Decided([], None)
    schedule, run, others = found
    if fence(run):
        decided = decide(schedule, [run, *others], run, runtime.now())
        return Decided([decided], decided)
    # If an earlier try of this transaction was committed but its answer was lost, Redis does not follow yet. If a
    # worker wrote the end for this process and died before it answered, runs of downstream schedules may be missing.
    mine = None if tried is None else tried.result
    if mine is None and schedule.followed_at is None:
        return Decided([], None)
    if tried is not None and mine is not None and run in [after for _, after in mine.changed_runs]:
        return tried
    return Decided([_standing(connection, schedule, run)], None)


def _lock(
    connection: Connection,
    run_uid: str,
    schedule_uid: str | None,
    fence: Callable[[Run], bool],
    *,
    skip_locked: bool,
) -> tuple[Schedule, Run, list[Run]] | None:
    """Lock a run's schedule; returns the schedule, the run and the other runs of `runs_at_end`.

    There are no other runs if `fence` is not met, or if no run waits.
    """
    running = None if schedule_uid is None else changes.lock_running(connection, schedule_uid, run_uid)
    if running is not None and fence(running[1]):
        return running
    found = changes.lock_with_schedule(connection, run_uid, skip_locked=skip_locked)
    if found is None:
        return None
    schedule, run = found
    others = changes.runs_at_end(connection, schedule, run_uid) if schedule.buffered_count and fence(run) else []
    return schedule, run, [other for other in others if other.uid != run.uid]


def expire_run(runtime: Runtime, run: Run, *, skip_locked: bool = False) -> bool:
    """End a run as expired if its attempt is too late to start; returns whether this call ended the run."""

    def is_late(current: Run) -> bool:
        return current.attempt == run.attempt and current.is_late(runtime.now())

    expired = AttemptResult(AttemptOutcome.EXPIRED)
    return settle_run(runtime, run.uid, expired, fence=is_late, skip_locked=skip_locked) is not None


def has_failed_finally(change: Change | None, run_uid: str) -> bool:
    """Return whether the end of an attempt ended its run as failed or lost."""
    ended = [run for _, run in change.changed_runs if run.uid == run_uid] if change is not None else []
    return bool(ended) and ended[0].status in FAILURES


def _standing(connection: Connection, schedule: Schedule, run: Run) -> Change:
    standing = restate(connection, schedule)
    return replace(standing, changed_runs=((run, run), *standing.changed_runs))


def end_run(
    runtime: Runtime,
    run_uid: str,
    outcome: AttemptOutcome,
    *,
    reason: str | None = None,
    context: CommandContext | None = None,
) -> Run:
    """Cancel or terminate a run on request; a run that has ended does not change. Returns the run as it is now."""
    ended = AttemptResult(outcome, reason=reason, context=context)
    change = settle_run(runtime, run_uid, ended, fence=lambda run: run.status in OPEN)
    if change is not None:
        return next(run for _, run in change.changed_runs if run.uid == run_uid)
    run = runtime.database.read(lambda connection: changes.find_run(connection, run_uid))
    if run is None:
        raise RunNotFoundError(run_uid)
    return run


def lose_run(
    runtime: Runtime, job: RunJobId, reason: str, *, token: str | None = None, is_stopped: bool = False
) -> Change | None:
    """Settle a run whose process has died: the attempt is lost, or terminated if a person stopped it (`is_stopped`).

    With a `token`, settle only the attempt that was claimed under this token.
    """

    def is_that_one(run: Run) -> bool:
        is_same = run.attempt == job.attempt and run.delivery == job.delivery and token in {None, run.token}
        return is_same and run.status is RunStatus.RUNNING and run.dispatched_at is None

    outcome = AttemptOutcome.TERMINATED if is_stopped else AttemptOutcome.LOST
    return settle_run(runtime, job.uid, AttemptResult(outcome, error=reason), fence=is_that_one)


def reason_of(error: Exception, run_uid: str) -> str:
    """Return why one run was skipped. Log an error of the database or of the code, and show none of its details."""
    if isinstance(error, RqschedError) and not isinstance(error, DatabaseLimitError):
        return cut_error(str(error), _SHOWN_REASON)
    _log.error("run %s is skipped", run_uid, exc_info=error, extra={"action": "bulk_run_skipped"})
    if isinstance(error, DatabaseLimitError):
        return "the database stopped it because it took too long"
    return f"an unexpected error ({type(error).__name__}), which the log has"
