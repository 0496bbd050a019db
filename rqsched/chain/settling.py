"""Settling: the end of an attempt is decided, written and followed, whichever process reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from rqsched.chain.firing import restate
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import CommandContext
from rqsched.core.ids import RunJobId
from rqsched.core.model import OPEN, Change, Run, RunStatus, Schedule
from rqsched.core.settle_decision import AttemptOutcome, AttemptResult, decide_settle, ends_alone, is_of_one_run
from rqsched.errors import RunNotFoundError
from rqsched.store import changes, one_change
from rqsched.store.claims import StartedRun
from rqsched.store.database import Connection, Patience


def settle_run(
    runtime: Runtime,
    run_uid: str,
    attempt_result: AttemptResult,
    *,
    fence: Callable[[Run], bool],
    skip_locked: bool = False,
) -> Change | None:
    """End an attempt under the schedule's lock if `fence` still holds then.

    Returns None when another process was first, or holds the lock (`skip_locked`).
    """
    return publish_end(runtime, write_end(runtime, run_uid, attempt_result, fence=fence, skip_locked=skip_locked))


def write_end(
    runtime: Runtime,
    run_uid: str,
    attempt_result: AttemptResult,
    *,
    fence: Callable[[Run], bool],
    patience: Patience | None = None,
    skip_locked: bool = False,
    claimed: StartedRun | None = None,
    at: datetime | None = None,
    is_repeated: bool = False,
) -> tuple[Change | None, bool]:
    """Write the end of an attempt as `settle_run` does, and publish nothing; returns what `publish_end` takes.

    Who reports the end of an attempt that was `claimed` says so, which spares two reads, and where nothing has changed
    since and nothing else depends on it all but one statement. What was reported with the same `at` before and may be
    written already (`is_repeated`) is recognised.
    """

    def decide(schedule: Schedule, runs: list[Run], run: Run, now: datetime) -> Change:
        is_as_claimed = claimed is not None and schedule == claimed.schedule
        return decide_settle(schedule, runs, run, attempt_result, now=at if at is not None and is_as_claimed else now)

    tried = None
    if claimed is not None:
        moment = at or runtime.now()
        tried, is_written = _end_alone(
            runtime, claimed, attempt_result, at=moment, patience=patience, is_repeated=is_repeated
        )
        if tried is not None and is_written:
            return tried, True
    return _write_change(
        runtime,
        run_uid,
        decide,
        fence=fence,
        patience=patience,
        skip_locked=skip_locked,
        schedule_uid=None if claimed is None else claimed.schedule.uid,
        tried=tried,
    )


def publish_end(runtime: Runtime, written: tuple[Change | None, bool]) -> Change | None:
    """Let Redis follow, and tell, what was written; returns it if this process's decision was what was written."""
    change, is_ours = written
    if change is not None:
        runtime.publish([change])
    return change if is_ours else None


def _end_alone(
    runtime: Runtime,
    claimed: StartedRun,
    attempt_result: AttemptResult,
    *,
    at: datetime,
    patience: Patience | None,
    is_repeated: bool,
) -> tuple[Change | None, bool]:
    """Write the end of an attempt as it is decided from what was claimed, unless the schedule has changed since.

    Returns whether that was written, and the Change; None when it cannot have been. A Change that may have been written
    all the same, its answer lost, comes with False. SQLite tells no versions, so there it is never written here.
    """
    run, schedule, version = claimed
    token = run.token
    if token is None or not ends_alone(schedule, attempt_result, now=at):
        return None, False
    if version is None and not is_repeated:
        return None, False
    decided = decide_settle(schedule, [run], run, attempt_result, now=at)
    if not is_of_one_run(decided) or runtime.notifier.owed([decided]):
        return None, False
    if version is None:
        return decided, False
    asked = int(is_repeated)

    def work(connection: Connection) -> bool:
        nonlocal asked
        asked += 1
        return one_change.end_alone(connection, decided, token=token, version=version)

    is_written = runtime.database.transact_alone(work, patience=patience)
    return (decided if is_written or asked > 1 else None), is_written


def change_run(
    runtime: Runtime,
    run_uid: str,
    decide: Callable[[Schedule, list[Run], Run, datetime], Change],
    *,
    fence: Callable[[Run], bool],
    patience: Patience | None = None,
    skip_locked: bool = False,
) -> Change | None:
    """Decide about a run under its schedule's lock if `fence` still holds then, write, and let Redis follow.

    `decide` gets the schedule, its open runs, the run (one of them) and now. Returns None as `settle_run` does.
    """
    written = _write_change(runtime, run_uid, decide, fence=fence, patience=patience, skip_locked=skip_locked)
    return publish_end(runtime, written)


def _write_change(
    runtime: Runtime,
    run_uid: str,
    decide: Callable[[Schedule, list[Run], Run, datetime], Change],
    *,
    fence: Callable[[Run], bool],
    patience: Patience | None,
    skip_locked: bool,
    schedule_uid: str | None = None,
    tried: Change | None = None,
) -> tuple[Change | None, bool]:
    """Decide and write; what was `tried` before may have been written.

    Returns what Redis is to follow, if anything, and whether that is what was decided here.
    """
    decided = tried

    def work(connection: Connection) -> tuple[Change | None, bool]:
        nonlocal decided
        found = _lock(connection, run_uid, schedule_uid, fence, skip_locked=skip_locked)
        if found is None:
            return None, False
        schedule, run, others = found
        if fence(run):
            decided = decide(schedule, [run, *others], run, runtime.now())
            runtime.notifier.write(connection, [decided])
            return decided, True
        # Perhaps this very transaction was committed and its answer lost: then Redis has not followed it.
        if decided is None or run in [after for _, after in decided.changed_runs]:
            return decided, decided is not None
        return _standing(connection, schedule, run), False

    return runtime.database.transact(work, patience=patience)


def _lock(
    connection: Connection,
    run_uid: str,
    schedule_uid: str | None,
    fence: Callable[[Run], bool],
    *,
    skip_locked: bool,
) -> tuple[Schedule, Run, list[Run]] | None:
    """Lock a run's schedule; returns it, the run and the other open runs, which are left out where `fence` fails."""
    running = None if schedule_uid is None else changes.lock_running(connection, schedule_uid, run_uid)
    if running is not None and fence(running[1]):
        return running
    found = changes.lock_with_schedule(connection, run_uid, skip_locked=skip_locked)
    if found is None:
        return None
    schedule, run = found
    others = changes.open_runs(connection, [schedule])[schedule.uid] if fence(run) else []
    return schedule, run, [other for other in others if other.uid != run.uid]


def has_failed_finally(change: Change | None, run_uid: str) -> bool:
    """Return whether this end of an attempt was the end of its run, which failed or was lost."""
    ended = [run for _, run in change.changed_runs if run.uid == run_uid] if change is not None else []
    return bool(ended) and ended[0].status in {RunStatus.FAILED, RunStatus.LOST}


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
    """Cancel or terminate a run from outside; one that has ended already is left as it is. Returns it as it is now."""
    ended = AttemptResult(outcome, reason=reason, context=context)
    change = settle_run(runtime, run_uid, ended, fence=lambda run: run.status in OPEN)
    if change is not None:
        return next(run for _, run in change.changed_runs if run.uid == run_uid)
    run = runtime.database.read(lambda connection: changes.find_run(connection, run_uid))
    if run is None:
        raise RunNotFoundError(run_uid)
    return run


def lose_run(runtime: Runtime, job: RunJobId, reason: str, *, token: str | None = None) -> Change | None:
    """Settle a run whose process this one saw die; with a `token`, only the attempt that was claimed under it."""
    return settle_run(runtime, job.uid, AttemptResult(AttemptOutcome.LOST, error=reason), fence=_is_of(job, token))


def stop_run(runtime: Runtime, job: RunJobId, reason: str, *, token: str | None = None) -> Change | None:
    """Settle a run whose process a person stopped by RQ's command: as `terminate` does."""
    stopped = AttemptResult(AttemptOutcome.TERMINATED, error=reason)
    return settle_run(runtime, job.uid, stopped, fence=_is_of(job, token))


def _is_of(job: RunJobId, token: str | None) -> Callable[[Run], bool]:
    def is_that_one(run: Run) -> bool:
        is_same = run.attempt == job.attempt and run.delivery == job.delivery and token in {None, run.token}
        return is_same and run.status is RunStatus.RUNNING and run.dispatched_at is None

    return is_that_one
