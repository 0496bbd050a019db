"""How a run ends: every terminal transition is decided here, whoever saw it (design §3, `settle()`). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rqsched.core.change import EXHAUSTED, ChangeBuilder
from rqsched.core.ids import iso_utc
from rqsched.core.model import Change, Run, RunStatus, Schedule, ScheduleStatus, dumps

MAX_ERROR = 8_192
MAX_ATTEMPT_ERROR = 600
MAX_ATTEMPTS_KEPT = 50


class AttemptOutcome(StrEnum):
    """What became of one attempt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The end of one attempt as its observer reports it."""

    outcome: AttemptOutcome
    result: str | None = None
    """JSON of the returned value."""
    error: str | None = None
    """What went wrong, for people; the middle of what exceeds 8 KiB is cut out."""
    is_final: bool = False
    """No further attempt, whatever the retry policy says."""


def decide_settle(
    schedule: Schedule, runs: Iterable[Run], run: Run, attempt_result: AttemptResult, *, now: datetime
) -> Change:
    """End one attempt: outcome, counters, retry or exhaustion, the drain, the next time after a completion.

    `run` is one of `runs`, the schedule's open runs; the caller has fenced it.
    """
    builder = ChangeBuilder(schedule, runs, now=now)
    _note_attempt(builder, run, attempt_result)
    if attempt_result.outcome is AttemptOutcome.SUCCEEDED:
        _succeed(builder, run, attempt_result)
    elif attempt_result.outcome in {AttemptOutcome.FAILED, AttemptOutcome.LOST}:
        _fail(builder, run, attempt_result)
    else:
        builder.end_run(run.uid, RunStatus(attempt_result.outcome.value), error=_cut(attempt_result.error))
    _follow(builder, run.uid)
    return builder.build()


def _note_attempt(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    entry = {
        "attempt": run.attempt,
        "started_at": run.started_at and iso_utc(run.started_at),
        "ended_at": iso_utc(builder.now),
        "outcome": attempt_result.outcome.value,
        "error": _cut(attempt_result.error, MAX_ATTEMPT_ERROR),
    }
    entries = [*json.loads(run.attempts), entry][-MAX_ATTEMPTS_KEPT:]
    builder.set_run(run.uid, attempts=dumps(entries))


def _succeed(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    builder.end_run(run.uid, RunStatus.SUCCEEDED, result=attempt_result.result, error=None)
    successes = builder.schedule.success_count + 1
    builder.set(success_count=successes, consecutive_failures=0)
    enough = builder.schedule.policies.max_successes
    if enough is not None and successes >= enough and _goes_on(builder):
        builder.complete("total_repeats_reached")


def _fail(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    error = _cut(attempt_result.error) or attempt_result.outcome.value
    builder.set(error_count=builder.schedule.error_count + 1, last_error=error)
    retry = builder.schedule.policies.retry
    if run.attempt <= retry.max_retries and not attempt_result.is_final and not _is_withdrawn(builder.schedule):
        delay = retry.delay(run.attempt, interval=builder.schedule.spec.backoff_base(), salt=run.uid)
        builder.set_run(run.uid, status=RunStatus.RETRYING, retry_at=builder.now + delay, error=error)
        return
    status = RunStatus.LOST if attempt_result.outcome is AttemptOutcome.LOST else RunStatus.FAILED
    _exhaust(builder, builder.end_run(run.uid, status, error=error))


def _is_withdrawn(schedule: Schedule) -> bool:
    """Whether its owner deleted it. The last of `max_runs` may delete it too, and still has all its attempts."""
    return schedule.status is ScheduleStatus.DELETED and schedule.status_reason != EXHAUSTED


def _exhaust(builder: ChangeBuilder, run: Run) -> None:
    failures = builder.schedule.consecutive_failures + 1
    builder.set(consecutive_failures=failures)
    if builder.schedule.policies.retry.kills_after(failures) and _goes_on(builder):
        builder.die(run, "retries_exhausted")


def _goes_on(builder: ChangeBuilder) -> bool:
    return builder.schedule.status in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}


def _follow(builder: ChangeBuilder, uid: str) -> None:
    """Let what waited for the run go on."""
    if builder.run(uid).is_unfinished:
        return
    if builder.schedule.awaiting_run_uid == uid:
        builder.set(awaiting_run_uid=None)
        builder.plan(builder.now)
    builder.drain()
    builder.complete_if_over()


def decide_drain(schedule: Schedule, runs: Iterable[Run], *, now: datetime) -> Change:
    """Start the oldest waiting run if nothing is ahead of it (a crash lost the drain that should have)."""
    builder = ChangeBuilder(schedule, runs, now=now)
    builder.drain()
    return builder.build()


def _cut(error: str | None, limit: int = MAX_ERROR) -> str | None:
    """Cut the middle out: the exception stands in the first line, where it was raised stands at the end."""
    if error is None or len(error) <= limit:
        return error
    head = limit // 3
    return f"{error[:head]}\n... [cut] ...\n{error[head - limit :]}"
