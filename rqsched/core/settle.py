"""How a run ends: every terminal transition is decided here, whoever saw it (design §3, `settle()`). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rqsched.core.draft import EXHAUSTED, Draft
from rqsched.core.ids import iso_utc
from rqsched.core.model import Change, Run, RunStatus, Schedule, ScheduleStatus, dumps

MAX_ERROR = 8_192
MAX_ATTEMPT_ERROR = 600
MAX_ATTEMPTS_KEPT = 50


class Ending(StrEnum):
    """What became of one attempt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of one attempt as its observer reports it."""

    ending: Ending
    result: str | None = None
    """JSON of the returned value."""
    error: str | None = None
    """What went wrong, for people; the middle of what exceeds 8 KiB is cut out."""
    is_final: bool = False
    """No further attempt, whatever the retry policy says."""


def settle(schedule: Schedule, runs: Iterable[Run], run: Run, verdict: Verdict, *, now: datetime) -> Change:
    """End one attempt: outcome, counters, retry or exhaustion, the drain, the next time after a completion.

    `run` is one of `runs`, the schedule's open runs; the caller has fenced it.
    """
    draft = Draft(schedule, runs, now=now)
    _note_attempt(draft, run, verdict)
    if verdict.ending is Ending.SUCCEEDED:
        _succeed(draft, run, verdict)
    elif verdict.ending in {Ending.FAILED, Ending.LOST}:
        _fail(draft, run, verdict)
    else:
        draft.end_run(run.uid, RunStatus(verdict.ending.value), error=_cut(verdict.error))
    _follow(draft, run.uid)
    return draft.seal()


def _note_attempt(draft: Draft, run: Run, verdict: Verdict) -> None:
    entry = {
        "attempt": run.attempt,
        "started_at": run.started_at and iso_utc(run.started_at),
        "ended_at": iso_utc(draft.now),
        "outcome": verdict.ending.value,
        "error": _cut(verdict.error, MAX_ATTEMPT_ERROR),
    }
    entries = [*json.loads(run.attempts), entry][-MAX_ATTEMPTS_KEPT:]
    draft.set_run(run.uid, attempts=dumps(entries))


def _succeed(draft: Draft, run: Run, verdict: Verdict) -> None:
    draft.end_run(run.uid, RunStatus.SUCCEEDED, result=verdict.result, error=None)
    successes = draft.schedule.success_count + 1
    draft.set(success_count=successes, consecutive_failures=0)
    enough = draft.schedule.policies.max_successes
    if enough is not None and successes >= enough and _goes_on(draft):
        draft.complete("total_repeats_reached")


def _fail(draft: Draft, run: Run, verdict: Verdict) -> None:
    error = _cut(verdict.error) or verdict.ending.value
    draft.set(error_count=draft.schedule.error_count + 1, last_error=error)
    retry = draft.schedule.policies.retry
    if run.attempt <= retry.max_retries and not verdict.is_final and not _is_withdrawn(draft.schedule):
        delay = retry.delay(run.attempt, interval=draft.schedule.spec.backoff_base(), salt=run.uid)
        draft.set_run(run.uid, status=RunStatus.RETRYING, retry_at=draft.now + delay, error=error)
        return
    status = RunStatus.LOST if verdict.ending is Ending.LOST else RunStatus.FAILED
    _exhaust(draft, draft.end_run(run.uid, status, error=error))


def _is_withdrawn(schedule: Schedule) -> bool:
    """Whether its owner deleted it. The last of `max_runs` may delete it too, and still has all its attempts."""
    return schedule.status is ScheduleStatus.DELETED and schedule.status_reason != EXHAUSTED


def _exhaust(draft: Draft, run: Run) -> None:
    failures = draft.schedule.consecutive_failures + 1
    draft.set(consecutive_failures=failures)
    if draft.schedule.policies.retry.kills_after(failures) and _goes_on(draft):
        draft.die(run, "retries_exhausted")


def _goes_on(draft: Draft) -> bool:
    return draft.schedule.status in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}


def _follow(draft: Draft, uid: str) -> None:
    """Let what waited for the run go on."""
    if draft.run(uid).is_unfinished:
        return
    if draft.schedule.awaiting_run_uid == uid:
        draft.set(awaiting_run_uid=None)
        draft.plan(draft.now)
    draft.drain()
    draft.complete_if_over()


def drain(schedule: Schedule, runs: Iterable[Run], *, now: datetime) -> Change:
    """Start the oldest waiting run if nothing is ahead of it (a crash lost the drain that should have)."""
    draft = Draft(schedule, runs, now=now)
    draft.drain()
    return draft.seal()


def _cut(error: str | None, limit: int = MAX_ERROR) -> str | None:
    """Cut the middle out: the exception stands in the first line, where it was raised stands at the end."""
    if error is None or len(error) <= limit:
        return error
    head = limit // 3
    return f"{error[:head]}\n... [cut] ...\n{error[head - limit :]}"
