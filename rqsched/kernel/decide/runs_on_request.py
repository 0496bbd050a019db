"""Runs on request: by a manual trigger, a backfill, a retry or a copy. They do not move the schedule's times. Pure.

A retry gives one more attempt to a run that has ended without success. The run keeps its uid, its number and its ended
attempts. A copy is a new manual run that repeats a run, however that run ended. Neither counts for `max_runs` or for
consecutive failures. Neither ends another run, whatever the overlap policy is: it waits for the run ahead of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from rqsched.errors import InvalidInputError, RunStateError
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.define import action_with
from rqsched.kernel.decide.edits import MAX_RECORDED
from rqsched.kernel.decide.ids import backfill_instance_id, iso_utc
from rqsched.kernel.decide.model import (
    BLOCKED,
    ENDED_IN_VAIN,
    OPEN,
    Change,
    Run,
    RunKind,
    RunStatus,
    Schedule,
    ScheduleStatus,
    changed,
)
from rqsched.kernel.decide.overlap import (
    StartRequest,
    StartResult,
    apply_overlap,
    drain,
    enqueue,
    for_backfill,
    new_run,
    refuse,
)
from rqsched.kernel.decide.payload import dumps, loads
from rqsched.kernel.decide.policy import OverlapPolicy, count_failed
from rqsched.kernel.decide.reasons import SkipReason
from rqsched.kernel.decide.results import BackfillRow
from rqsched.when.spec import Spec

RERUN = "rerun"
"""The reason of a backfill row: the occurrence's run had failed, and the backfill runs failed occurrences again."""
PRUNED = "pruned"
"""The reason of a backfill row: runs up to this occurrence were pruned, so the occurrence is assumed to have run."""


class Trigger(NamedTuple):
    """A manual start on request."""

    uid: str
    """The uid for the run, generated before the first try of the transaction."""
    overlap: OverlapPolicy | None = None
    """The policy that replaces the schedule's policy; None keeps the schedule's policy."""
    is_forced: bool = False
    """Whether a paused schedule starts the run, too."""
    idempotency_key: str | None = None
    """Triggers with the same key get the same run; with None each trigger gets a new run."""


class Copy(NamedTuple):
    """A request to run a run again."""

    uid: str
    """The uid for the new run, generated before the first try of the transaction."""
    args: Sequence[Any] | None = None
    """The positional arguments of the new run; None keeps those of the copied run."""
    kwargs: Mapping[str, Any] | None = None
    """The keyword arguments of the new run; None keeps those of the copied run."""
    downstream: bool = False
    """Whether the end of the new run starts downstream runs."""
    idempotency_key: str | None = None
    """Requests with the same key get the same run; with None each request gets a new run."""
    reason: str | None = None
    """Why; required if the arguments differ."""


def decide_trigger(
    schedule: Schedule,
    runs: Iterable[Run],
    request: Trigger,
    *,
    now: datetime,
    context: CommandContext | None = None,
) -> tuple[Change, StartResult]:
    """Start a run now, as the overlap policy allows. The next time does not change. A refusal is recorded, too."""
    builder = ChangeBuilder(schedule, runs, now=now, context=context)
    can_start = schedule.is_active or (request.is_forced and schedule.status is ScheduleStatus.PAUSED)
    if schedule.status in {ScheduleStatus.DONE, ScheduleStatus.ACTIVE} and schedule.remaining == 0:
        result = refuse(builder, now, SkipReason.MAX_RUNS)
    elif not can_start:
        result = refuse(builder, now, SkipReason.STATUS)
    else:
        start = StartRequest(
            RunKind.MANUAL, now, request.overlap, uid=request.uid, idempotency_key=request.idempotency_key, due_at=now
        )
        result = apply_overlap(builder, start)
    return builder.build(request.uid), result


def decide_backfill(
    schedule: Schedule,
    runs: Iterable[Run],
    occurrences: Sequence[datetime],
    *,
    now: datetime,
    backfill_uid: str,
    ran: frozenset[datetime],
    stood_for: frozenset[datetime] = frozenset(),
    failed: Sequence[Run] = (),
    pruned_to: datetime | None = None,
    overlap: OverlapPolicy | None = None,
    context: CommandContext | None = None,
) -> tuple[Change, list[BackfillRow]]:
    """Fire some past occurrences, and return a row for each.

    If an occurrence cannot start, because `max_runs` is used up or the schedule is deleted, it is skipped, and later
    occurrences get no row. An occurrence has run on another day if all its nominal instants are among `stood_for`. The
    runs in `failed` are retried on request, which does not count for `max_runs`. Occurrences up to `pruned_to` are
    assumed to have run, because their runs may have been deleted.
    """
    builder = ChangeBuilder(schedule, [*runs, *failed], now=now, context=context)
    policy = for_backfill(overlap or schedule.policies.overlap)
    again = {} if schedule.status is ScheduleStatus.DELETED else {run.occurrence_at: run for run in failed}
    rows, spec = list[BackfillRow](), schedule.declared
    for nominal in occurrences:
        if nominal in again:
            run = attempt_again(builder, again[nominal], reason="backfill", overlap=overlap)
            outcome = "buffered" if run.status is RunStatus.BUFFERED else "started"
            rows.append(BackfillRow(nominal, run.instance_id, outcome, RERUN, run.uid))
            continue
        if (known := _already_run(spec, nominal, ran, stood_for, pruned_to)) is not None:
            rows.append(known)
            continue
        if builder.schedule.remaining == 0 or builder.schedule.status is ScheduleStatus.DELETED:
            reason = SkipReason.MAX_RUNS if builder.schedule.remaining == 0 else SkipReason.STATUS
            rows.append(BackfillRow(nominal, None, "skipped", reason.value))
            break
        nominals = tuple(at for at in spec.nominals_of(nominal) if at not in stood_for)
        request = StartRequest(
            RunKind.BACKFILL, nominal, policy, backfill_uid=backfill_uid, due_at=nominal, nominals=nominals
        )
        result = (enqueue if policy is OverlapPolicy.SKIP else apply_overlap)(builder, request)
        outcome = "started" if result.outcome == "triggered" else result.outcome
        instance_id, run_uid = (result.run.instance_id, result.run.uid) if result.run is not None else (None, None)
        rows.append(BackfillRow(nominal, instance_id, outcome, result.reason, run_uid))
    drain(builder)
    change = builder.build()
    return change, [_after_drain(row, builder, change) for row in rows]


def decide_stop_backfill(
    schedule: Schedule,
    *,
    now: datetime,
    backfill_uid: str,
    start_at: datetime,
    end_at: datetime,
    attempted: int,
    reason: str | None = None,
    context: CommandContext | None = None,
) -> Change:
    """Record that somebody stopped a backfill after `attempted` occurrences of its range; nothing else changes."""
    builder = ChangeBuilder(schedule, now=now, context=context)
    builder.record(
        audit.BACKFILL_STOPPED,
        backfill_id=backfill_uid,
        start_at=start_at,
        end_at=end_at,
        stopped_at=now,
        attempted=attempted,
        reason=reason,
    )
    return builder.build()


def _already_run(
    spec: Spec,
    nominal: datetime,
    ran: frozenset[datetime],
    stood_for: frozenset[datetime],
    pruned_to: datetime | None,
) -> BackfillRow | None:
    if nominal in ran or (stood_for and all(at in stood_for for at in spec.nominals_of(nominal) or (nominal,))):
        return BackfillRow(nominal, None, "already_run")
    if pruned_to is not None and nominal <= pruned_to:
        return BackfillRow(nominal, None, "already_run", PRUNED)
    return None


def _row(nominal: datetime, result: StartResult) -> BackfillRow:
    outcome = "started" if result.outcome == "triggered" else result.outcome
    if result.run is None:
        return BackfillRow(nominal, None, outcome, result.reason)
    return BackfillRow(nominal, result.run.instance_id, outcome, result.reason, result.run.uid)


def _after_drain(row: BackfillRow, builder: ChangeBuilder, change: Change) -> BackfillRow:
    """Return the final row of a run that was buffered first.

    The drain may have started the run, or earlier runs may have used up `max_runs`.
    """
    if row.outcome != "buffered" or row.run_uid is None:
        return row
    if builder.run(row.run_uid).status is not RunStatus.BUFFERED:
        return replace(row, outcome="started")
    return replace(row, outcome="skipped", reason=SkipReason.MAX_RUNS.value) if change.drops_buffer else row


def preview_backfill(
    schedule: Schedule,
    nominals: Iterable[datetime],
    *,
    ran: frozenset[datetime],
    stood_for: frozenset[datetime] = frozenset(),
    failed: Sequence[Run] = (),
    pruned_to: datetime | None = None,
    room: int | None = None,
    is_over: bool = False,
) -> list[BackfillRow]:
    """Return what a backfill would do with each occurrence, without a decision.

    `ran`, `stood_for`, `failed` and `pruned_to` are as in `decide_backfill`. `room` is how many runs may still start.
    A backfill ends with the first occurrence that it skips, so it retries no later run. `is_over` says that this
    occurrence was among earlier `nominals`.
    """
    rows, spec = list[BackfillRow](), schedule.declared
    again = {run.occurrence_at: run for run in failed}
    for nominal in nominals:
        if nominal in again and not is_over:
            rows.append(BackfillRow(nominal, again[nominal].instance_id, "would_start", RERUN, again[nominal].uid))
        elif (known := _already_run(spec, nominal, ran, stood_for, pruned_to)) is not None:
            rows.append(known)
        elif is_over or room == 0:
            is_over = True
            rows.append(BackfillRow(nominal, None, "skipped", SkipReason.MAX_RUNS.value))
        else:
            room = None if room is None else room - 1
            rows.append(BackfillRow(nominal, backfill_instance_id(schedule.schedule_id, nominal), "would_start"))
    return rows


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
    """Give a run one more attempt, now or when the runs ahead of it have ended.

    A blocked run gets no further attempt, but is offered to the workers now. `runs` are the schedule's open runs. With
    `failed_targets` the run may have succeeded, but must have failed targets. Raises RunStateError if the run cannot be
    retried.
    """
    require_retryable(schedule, run, failed_targets=failed_targets)
    builder = ChangeBuilder(schedule, [run, *runs], now=now, context=context)
    if run.is_blocked:
        # Count a new delivery of the same attempt, because the attempt has not begun.
        builder.queue_run(run, delivery=run.delivery + 1)
        builder.record(audit.RUN_RETRY_REQUESTED, run, outcome="offered", previous_status=BLOCKED, reason=reason)
    else:
        attempt_again(builder, run, reason=reason)
    return builder.build(operation)


def require_retryable(schedule: Schedule, run: Run, *, failed_targets: bool = False) -> None:
    """Check that a run can be retried; raises RunStateError with a hint on what to do instead."""
    if schedule.status is ScheduleStatus.DELETED:
        raise RunStateError(run.uid, run.status.value, "retry", "Its schedule is deleted; create it again.")
    if failed_targets:
        if run.status in OPEN:
            raise RunStateError(run.uid, run.status.value, "retry", _hint(run))
        if not count_failed(json.loads(run.target_counts or "{}")):
            raise RunStateError(
                run.uid, run.status.value, "retry", "None of its targets has failed: leave failed_targets out."
            )
        return
    if run.status not in ENDED_IN_VAIN and not run.is_blocked:
        raise RunStateError(run.uid, run.status.value, "retry", _hint(run))


def decide_copy(
    schedule: Schedule,
    runs: Iterable[Run],
    run: Run,
    request: Copy,
    *,
    now: datetime,
    context: CommandContext | None = None,
) -> Change:
    """Run an ended run again: start a manual run for the same occurrence, now or when the runs ahead of it have ended.

    The copy has the arguments of the copied run. Everything else, such as its queue, is as the schedule has it now.
    `runs` are the schedule's open runs. Raises RunStateError if the run cannot be copied, InvalidPayloadError for
    arguments that are not JSON, and InvalidInputError if they differ from those of the run and there is no reason.
    """
    require_copyable(schedule, run)
    action = action_of_copy(run, request)
    is_edited = action != run.action
    reasons = (request.reason, context and context.reason)
    if is_edited and not any(reason and reason.strip() for reason in reasons):
        raise InvalidInputError("reason", "is missing; say why the arguments are changed")
    is_recorded = is_edited and len(action) + len(run.action) <= MAX_RECORDED  # else only both runs have them
    builder = ChangeBuilder(schedule, runs, now=now, context=context)
    policy = schedule.policies.overlap
    blocking = [] if policy is OverlapPolicy.ALLOW_ALL else builder.unfinished()
    lineage = {
        **loads(run.lineage),
        "schedule_id": schedule.schedule_id,
        "schedule_ulid": schedule.uid,
        "occurrence_time": iso_utc(run.occurrence_at),
        "copied_from": run.uid,
        "downstream": request.downstream,
    }
    if run.came_after is not None:  # the column is unique: it says which run the end has started
        lineage["upstream_run_uid"] = run.came_after
    start = StartRequest(
        RunKind.MANUAL, run.occurrence_at, uid=request.uid, idempotency_key=request.idempotency_key, due_at=now
    )
    copy = changed(
        new_run(builder, start, policy),
        action=action,
        trigger_number=run.trigger_number,
        lineage=dumps(lineage),
        asked_attempt=1,
        nominals=run.nominals,
    )
    if blocking:
        builder.put_run(copy)
    else:
        builder.queue_run(copy)
    builder.record(
        audit.RUN_COPIED,
        copy,
        outcome="buffered" if blocking else "started",
        copied_from=run.uid,
        downstream=request.downstream,
        arguments=json.loads(action) if is_recorded else None,
        copied_arguments=json.loads(run.action) if is_recorded else None,
        blocking_run_id=blocking[0].uid if blocking else None,
        reason=request.reason,
    )
    return builder.build(request.uid)


def require_copyable(schedule: Schedule, run: Run) -> None:
    """Check that a run can be run again; raises RunStateError with a hint on what to do instead."""
    hint = None
    if schedule.status is ScheduleStatus.DELETED:
        hint = "Its schedule is deleted; create it again."
    elif run.status in OPEN:
        hint = _hint(run)
    elif run.workflow != schedule.definition.workflow:
        # Its arguments, targets and limits belong to the workflow that the schedule had.
        hint = f"It was a run of {run.workflow!r}, and its schedule executes {schedule.definition.workflow!r} now."
    if hint is not None:
        raise RunStateError(run.uid, run.status.value, "run again", hint)


def action_of_copy(run: Run, request: Copy) -> str:
    """Return the JSON of the arguments with which a copy of a run is executed."""
    if request.args is None and request.kwargs is None:
        return run.action
    return action_with(run.action, request.args, request.kwargs)


def _hint(run: Run) -> str:
    if run.status is RunStatus.SUCCEEDED:
        return "Trigger the schedule for another run, or run this one again as a new run."
    if run.status is RunStatus.RETRYING and run.retry_at is not None:
        return f"It is tried again by itself at {iso_utc(run.retry_at)}; cancel it to retry it at once."
    return "It has not ended; cancel it first, or wait for its end."


def attempt_again(
    builder: ChangeBuilder, run: Run, *, reason: str | None = None, overlap: OverlapPolicy | None = None
) -> Run:
    """Start the next attempt of a run, or buffer the run.

    The run is buffered if other runs are unfinished and the overlap policy is not `allow_all`. `overlap` replaces the
    schedule's policy.
    """
    is_backfill = run.kind is RunKind.BACKFILL
    own = overlap or builder.schedule.policies.overlap
    policy = for_backfill(own) if is_backfill else own
    blocking = [] if policy is OverlapPolicy.ALLOW_ALL else builder.unfinished(run.kind)
    again = builder.set_run(
        run.uid,
        status=RunStatus.BUFFERED,
        attempt=run.attempt + 1,
        asked_attempt=run.attempt + 1,
        delivery=1,
        token=None,
        worker=None,
        overlap=run.overlap if is_backfill else own.value,
        queued_at=None,
        start_by=None,
        expired_at=None,
        started_at=None,
        ended_at=None,
        retry_at=None,
        heartbeat_at=None,
        dispatched_at=None,
        target_counts=None,
        long_at=None,
        limit_group=builder.schedule.limit_group,
        limit_at=None,
        granted_at=None,
        passed_at=None,
        is_rated=False,
    )
    if not blocking:
        again = builder.queue_run(again)
    builder.record(
        audit.RUN_RETRY_REQUESTED,
        again,
        outcome="buffered" if blocking else "started",
        previous_status=run.status.value,
        blocking_run_id=blocking[0].uid if blocking else None,
        reason=reason,
    )
    return again
