"""Decide the effects of the end of an attempt: on its run, on the retries and on the schedule. Pure.

Every end of an attempt is decided here, whichever process reports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from rqsched.errors import error_line
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.delays import base_of, retry_at
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import (
    EXPECTING,
    EXPIRED,
    FAILURES,
    Change,
    Run,
    RunKind,
    RunStatus,
    Schedule,
    ScheduleStatus,
    dumps,
)
from rqsched.kernel.decide.occurrences import next_occurrence
from rqsched.kernel.decide.overlap import drain
from rqsched.kernel.decide.payload import storable
from rqsched.kernel.decide.policy import (
    LOST,
    NO_TYPES,
    ErrorTypes,
    FanOutPolicy,
    OverlapUntil,
    count_failed,
    rule_against,
)
from rqsched.kernel.decide.reasons import EndReason
from rqsched.kernel.decide.schedule_endings import complete, die

MAX_ERROR = 8_192
"""The maximum length of the stored error of a run or a target, in characters."""
MAX_ATTEMPT_ERROR = 600
"""The maximum length of an error in the list of attempts, in characters."""
MAX_ATTEMPTS_KEPT = 50
"""How many attempts of a run are listed; only the newest are kept."""


class AttemptOutcome(StrEnum):
    """The outcome of one attempt."""

    SUCCEEDED = "succeeded"
    """The workflow returned."""
    FAILED = "failed"
    """It raised, took too long or could not be imported."""
    LOST = "lost"
    """Its process vanished; the retry policy treats this like a failure."""
    CANCELLED = "cancelled"
    """It was cancelled on request, and is not repeated."""
    TERMINATED = "terminated"
    """It was killed on request, and is not repeated."""
    EXPIRED = "expired"
    """It was not started in time, and is not repeated."""
    DISPATCHED = "dispatched"
    """The workflow returned, but some targets of the run are open: the run ends when its last target has ended."""
    TARGETS_ENDED = "targets_ended"
    """The last target of the run has ended; the run is not repeated as a whole."""


class AttemptResult(NamedTuple):
    """The end of one attempt, as reported by the process that saw it."""

    outcome: AttemptOutcome
    """The outcome."""
    result: str | None = None
    """JSON of the returned value; None unless it succeeded."""
    error: str | None = None
    """The error as text for people. If it exceeds 8 KiB, its middle is cut out."""
    is_final: bool = False
    """Whether no further attempt follows, whatever the retry policy is."""
    error_types: ErrorTypes = NO_TYPES
    """The names of the error, which retry policies may list."""
    details: str | None = None
    """JSON of the error as an external worker sent it. The list of attempts contains it."""
    dead_letter: bool | None = None
    """Whether the run is kept among the dead letters if it fails; None means the schedule's policy."""
    target_counts: str | None = None
    """JSON: the number of the run's targets by status; None unless all targets have ended."""
    reason: str | None = None
    """Why somebody cancelled or terminated the run; None if nobody did, or without a reason."""
    context: CommandContext | None = None
    """Who cancelled or terminated the run; None if nobody did, or if the actor is not known."""


def ends_alone(schedule: Schedule, attempt_result: AttemptResult, *, now: datetime) -> bool:
    """Return whether the end of an attempt changes only its run and the counters of its schedule.

    This holds only as long as no other process changes the schedule. Returns True only for a success, if the schedule
    is not due and has neither a waiting run nor a downstream schedule. A fire may change a schedule that is due.
    """
    has_waiting = schedule.buffer_depth > 0 or schedule.backfill_waiting > 0
    has_fired = schedule.due_at is not None and schedule.due_at <= now
    is_success = attempt_result.outcome is AttemptOutcome.SUCCEEDED
    return is_success and not has_waiting and not has_fired and schedule.followed_at is None


def is_of_one_run(change: Change) -> bool:
    """Return whether a Change writes only the row of its schedule and the row of one run."""
    more = change.new_runs or change.events or change.dead_letters or change.drops_buffer or change.drops_retries
    return not more and len(change.changed_runs) == 1


def decide_settle(
    schedule: Schedule, runs: Iterable[Run], run: Run, attempt_result: AttemptResult, *, now: datetime
) -> Change:
    """End one attempt: record its outcome, count it, decide a retry, and start the run that waits for this run.

    A `from_completion` schedule also gets its next time. `runs` contain `run`. If runs of the schedule wait, `runs`
    also contain the first of them, and another unfinished run if there is one. The caller has checked that the attempt
    is still the current attempt of the run.
    """
    builder = ChangeBuilder(schedule, runs, now=now)
    if attempt_result.outcome is AttemptOutcome.DISPATCHED:
        builder.set_run(run.uid, dispatched_at=now, result=attempt_result.result)
        if schedule.policies.overlap_until is OverlapUntil.DISPATCHED:
            drain(builder)
        return builder.build()
    if attempt_result.outcome is AttemptOutcome.TARGETS_ENDED:
        attempt_result = _judge_targets(builder, run, attempt_result)
    _list_attempt(builder, run, attempt_result)
    outcome = attempt_result.outcome
    if outcome is AttemptOutcome.SUCCEEDED:
        if schedule.definition.notifications != "{}":  # most schedules expect no duration, so skip the check
            note_long(builder, run)
        _succeed(builder, run, attempt_result)
    elif outcome in {AttemptOutcome.FAILED, AttemptOutcome.LOST}:
        _fail(builder, run, attempt_result)
    elif outcome is AttemptOutcome.EXPIRED:
        _expire(builder, run)
    else:
        error = attempt_result.error and cut_error(attempt_result.error)
        builder.end_run(run.uid, RunStatus(outcome.value), error=error)
        _record_stop(builder, run, attempt_result)
    if not builder.run(run.uid).is_unfinished:
        # The next time of a `from_completion` schedule is measured from now. If this release does not know the timing,
        # a reconcile pass of the newer release computes the next time.
        if builder.schedule.awaiting_run_uid == run.uid and schedule.spec.is_known:
            builder.set(awaiting_run_uid=None)
            builder.plan(next_occurrence(builder.schedule, builder.now))
        drain(builder)
    return builder.build()


def _judge_targets(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> AttemptResult:
    """Record the end of the targets, and return the result of the run."""
    counts: dict[str, int] = json.loads(attempt_result.target_counts or "{}")
    builder.set_run(run.uid, target_counts=attempt_result.target_counts)
    is_failure = FanOutPolicy(builder.schedule.policies.fan_out).fails(counts)
    outcome = AttemptOutcome.FAILED if is_failure else AttemptOutcome.SUCCEEDED
    _record_end(builder, run, audit.FAN_OUT_ENDED, outcome=outcome.value, targets=counts)
    error = None
    if is_failure:
        first = error_line(attempt_result.error)
        such_as = f", such as: {first}" if first else ""
        error = f"{count_failed(counts)} of {sum(counts.values())} targets failed{such_as}"
    return attempt_result._replace(outcome=outcome, error=error, is_final=True)


def _list_attempt(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    outcome = attempt_result.outcome
    entry = {
        "attempt": run.attempt,
        "started_at": run.started_at and iso_utc(run.started_at) if outcome is not AttemptOutcome.EXPIRED else None,
        "ended_at": iso_utc(builder.now),
        "outcome": attempt_result.outcome.value,
        "error": attempt_result.error and cut_error(attempt_result.error, MAX_ATTEMPT_ERROR),
    }
    if run.dispatched_at is not None:
        entry["dispatched_at"] = iso_utc(run.dispatched_at)
    if attempt_result.details is not None:
        entry["details"] = json.loads(attempt_result.details)
    entries = [*json.loads(run.attempts), entry][-MAX_ATTEMPTS_KEPT:]
    builder.set_run(run.uid, attempts=dumps(entries))


def note_long(builder: ChangeBuilder, run: Run) -> None:
    """Record that an attempt takes longer than expected: once for each run, and never for a backfilled run."""
    span = builder.schedule.expect_duration
    if span is None or run.long_at is not None or run.kind is RunKind.BACKFILL:
        return
    if run.status is RunStatus.RUNNING and run.started_at is not None and builder.now - run.started_at > span:
        builder.set_run(run.uid, long_at=builder.now)
        _record_end(builder, run, audit.RUN_LONG, expect_duration_seconds=span.total_seconds())


def _succeed(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    """Count a success. If it is the last of `max_successes`, the schedule is done.

    A success has an event only after trouble: a failed attempt, a failed run, an overdue schedule or a long run.
    """
    builder.end_run(run.uid, RunStatus.SUCCEEDED, result=attempt_result.result, error=None)
    schedule = builder.schedule
    if run.asked_attempt is not None and run.copied_from is not None:
        # A copy repeats a past occurrence. Its success ends no failure of the schedule.
        if run.attempt > 1 or run.long_at is not None:
            _record_end(builder, run, audit.RUN_SUCCEEDED)
        return
    # If an earlier attempt succeeded, this attempt only repeated failed targets. Do not count the success again.
    has_succeeded = any(entry["outcome"] == AttemptOutcome.SUCCEEDED for entry in json.loads(run.attempts))
    successes = schedule.success_count + (not has_succeeded)
    was_told = has_failed_last(schedule) or schedule.overdue_since is not None or run.long_at is not None
    if run.attempt > 1 or was_told:
        failures, since = schedule.consecutive_failures, schedule.overdue_since
        _record_end(builder, run, audit.RUN_SUCCEEDED, consecutive_failures=failures, overdue_since=since)
    builder.set(
        success_count=successes,
        consecutive_failures=0,
        last_outcome=RunStatus.SUCCEEDED.value,
    )
    span = schedule.expect_success_within
    if span is not None and run.kind is not RunKind.BACKFILL:  # a past occurrence says nothing about the present
        overdue_at = builder.now + span + schedule.skips_over(builder.now) if schedule.status in EXPECTING else None
        builder.set(last_success_at=builder.now, overdue_since=None, overdue_at=overdue_at)
    enough = builder.schedule.policies.max_successes
    if enough is not None and successes >= enough and not builder.schedule.has_ended:
        complete(builder, EndReason.MAX_SUCCESSES.value)


def _fail(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    """Plan a retry after a failed attempt. If no retry is left, the run has failed; the schedule may become dead."""
    schedule = builder.schedule
    policies, retry = schedule.policies, schedule.policies.retry
    is_lost = attempt_result.outcome is AttemptOutcome.LOST
    is_retry = run.is_asked and run.attempt > 1  # a requested first attempt is that of a copy
    is_final = attempt_result.is_final or is_retry or policies.is_final(attempt_result.error_types)
    ended_by = rule_against(retry, LOST if is_lost else attempt_result.error_types)
    error = cut_error(attempt_result.error or attempt_result.outcome.value)
    builder.set(error_count=schedule.error_count + 1, last_error=error)
    interval, spread = base_of(schedule.spec), policies.retry_spread
    again_at = retry_at(retry, run.attempt, now=builder.now, interval=interval, salt=run.uid, spread=spread)
    may_repeat = again_at is not None and not is_final and not is_withdrawn(schedule)
    if again_at is not None and may_repeat and ended_by is None:
        unblocked = {"blocked_at": None, "blocked_reason": None}
        builder.set_run(run.uid, status=RunStatus.RETRYING, retry_at=again_at, error=error, **unblocked)
        outcome = attempt_result.outcome.value
        _record_end(builder, run, audit.RUN_RETRYING, error=error, outcome=outcome, retry_at=again_at)
        return
    status = RunStatus.LOST if is_lost else RunStatus.FAILED
    failed = builder.end_run(run.uid, status, error=error)
    if policies.dead_letter if attempt_result.dead_letter is None else attempt_result.dead_letter:
        builder.dead_letters.append(run.uid)
    # Neither a retry on request nor a copy makes the schedule dead. A copy does not even say how the schedule does now.
    is_copy = run.copied_from is not None
    counts = not run.is_asked and not is_copy
    failures = schedule.consecutive_failures + counts
    if not is_copy:
        builder.set(consecutive_failures=failures, last_outcome=status.value)
    event_type = audit.RUN_LOST if status is RunStatus.LOST else audit.RUN_FAILED
    reason = ended_by if may_repeat else None
    _record_end(builder, run, event_type, error=error, consecutive_failures=failures, reason=reason)
    if retry.kills_after(failures) and counts and not schedule.has_ended:
        die(builder, failed, EndReason.FAILURES.value)


def _expire(builder: ChangeBuilder, run: Run) -> None:
    """End a run whose attempt was not started in time. No failure is counted, because no workflow failed.

    The status is `cancelled`. `expired_at` distinguishes this run from a run that somebody cancelled.
    """
    error = f"it was not started by {iso_utc(run.start_by or builder.now)}"
    builder.end_run(run.uid, RunStatus.CANCELLED, started_at=None, expired_at=builder.now, error=error)
    last_outcome = EXPIRED if run.copied_from is None else builder.schedule.last_outcome
    builder.set(last_outcome=last_outcome, last_error=error)
    builder.record(audit.RUN_EXPIRED, run, error=error, queued_at=run.queued_at, start_by=run.start_by)


def _record_stop(builder: ChangeBuilder, run: Run, attempt_result: AttemptResult) -> None:
    """Record who cancelled or terminated a run, and why. Record nothing if neither is known.

    The events of runs that start because this run has ended have no context, because nobody asked for these runs.
    """
    context = attempt_result.context.to_json() if attempt_result.context is not None else {}
    if not context and attempt_result.reason is None:
        return
    is_cancelled = attempt_result.outcome is AttemptOutcome.CANCELLED
    _record_end(
        builder,
        run,
        audit.RUN_CANCELLED if is_cancelled else audit.RUN_TERMINATED,
        previous_status=run.status.value,
        reason=attempt_result.reason,
        command_context=context or None,
    )


def has_failed_last(schedule: Schedule) -> bool:
    """Return whether the newest ended run failed, was lost or expired. Copies do not count.

    Restarting the schedule does not reset this.
    """
    return schedule.consecutive_failures > 0 or schedule.last_outcome in _IN_VAIN


_IN_VAIN = frozenset({*FAILURES, EXPIRED})


def _record_end(builder: ChangeBuilder, run: Run, event_type: str, *, error: str | None = None, **more: object) -> None:
    """Record an event about an attempt, with the first line of the error and the duration of the attempt so far."""
    duration = run.started_at and round((builder.now - run.started_at).total_seconds(), 3)
    builder.record(
        event_type,
        run,
        error=cut_error(error_line(error), MAX_ATTEMPT_ERROR) or None,
        duration_seconds=duration,
        **more,
    )


def is_withdrawn(schedule: Schedule) -> bool:
    """Return whether an owner deleted the schedule together with its runs.

    If `on_max_runs` deleted the schedule, this is False: its last run keeps all its attempts.
    """
    is_deleted = schedule.status is ScheduleStatus.DELETED and schedule.status_reason != EndReason.MAX_RUNS
    return is_deleted and not schedule.policies.keeps_runs


def cut_error(error: str, limit: int = MAX_ERROR) -> str:
    """Cut the middle out of a long error, because its first line says what was raised, and its end says where.

    Characters that no database stores are escaped.
    """
    error, head = storable(error), limit // 3
    return error if len(error) <= limit else f"{error[:head]}\n... [cut] ...\n{error[head - limit :]}"
