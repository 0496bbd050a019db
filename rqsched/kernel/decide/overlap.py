"""Overlap: decide whether the run of an occurrence starts, waits for an earlier run, or is skipped. Pure.

This module also starts waiting runs when the run ahead of them has ended. A start that uses up `max_runs` ends the
schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.ids import (
    after_instance_id,
    backfill_instance_id,
    derived_uid,
    iso_utc,
    live_instance_id,
    manual_instance_id,
)
from rqsched.kernel.decide.model import Run, RunKind, RunStatus, changed, dump_instants, dumps
from rqsched.kernel.decide.occurrences import Upstream, skip
from rqsched.kernel.decide.policy import BUFFERING, REPLACING, OverlapPolicy
from rqsched.kernel.decide.reasons import SkipReason
from rqsched.kernel.decide.schedule_endings import complete_if_over, end_if_exhausted


class StartRequest(NamedTuple):
    """A request for one run: of an occurrence, a trigger, a backfill or the end of an upstream's run."""

    kind: RunKind
    """The origin of the request."""
    occurrence_at: datetime
    """The nominal time; for a manual run the moment of the trigger."""
    overlap: OverlapPolicy | None = None
    """The policy that replaces the schedule's policy; None keeps the schedule's policy."""
    uid: str | None = None
    """The uid that the caller generated; with None, the uid is derived from the run's number."""
    idempotency_key: str | None = None
    """The idempotency key of the trigger; None without a key."""
    backfill_uid: str | None = None
    """The backfill that requests the run; None for every other kind."""
    due_at: datetime | None = None
    """The planned start, from which the lateness of the run is measured."""
    upstream: Upstream | None = None
    """The upstream run whose end requests this run; None for every other kind."""
    nominals: tuple[datetime, ...] = ()
    """The nominal instants that the run stands for; empty if it stands only for the occurrence."""


class StartResult(NamedTuple):
    """The outcome of a request."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    run: Run | None = None
    """The run that started or waits; None if the request was skipped."""
    reason: str | None = None
    """Why the request was skipped, as a code of the Durable Workflow document."""
    buffer_depth: int | None = None
    """How many runs wait now, including this run; None unless `buffered`."""


class OverlapDecision(NamedTuple):
    """The decision of the overlap policy about one new run."""

    act: str
    """`start`, `buffer` or `skip`."""
    reason: SkipReason | None = None
    """Why the run is skipped; None unless `act` is `skip`."""
    blocking: str | None = None
    """The uid of the oldest blocking run; None if no run blocks."""
    ends: str | None = None
    """The status that the blocking runs get before the new run starts: `cancelled` or `terminated`; None if they
    continue."""


def refuse(
    builder: ChangeBuilder,
    occurrence_at: datetime,
    reason: SkipReason,
    *,
    blocking: str | None = None,
    upstream: Upstream | None = None,
) -> StartResult:
    """Skip an occurrence, a trigger or the end of an `upstream` run, and return this outcome."""
    skip(builder, occurrence_at, reason, blocking=blocking, upstream=upstream)
    return StartResult("buffer_full" if reason is SkipReason.BUFFER_FULL else "skipped", reason=reason.value)


def apply_overlap(builder: ChangeBuilder, request: StartRequest) -> StartResult:
    """Apply the overlap policy to a request: start its run, make the run wait, or skip the run. Record an event."""
    upstream = request.upstream
    if builder.schedule.remaining == 0:
        return refuse(builder, request.occurrence_at, SkipReason.MAX_RUNS, upstream=upstream)
    policies = builder.schedule.policies
    policy = request.overlap or policies.overlap
    unfinished, buffered = [run.uid for run in builder.unfinished(request.kind)], builder.schedule.buffer_depth
    decision = judge_overlap(policy, unfinished=unfinished, buffered=buffered, buffer_limit=policies.buffer_limit)
    if decision.reason is not None:
        return refuse(builder, request.occurrence_at, decision.reason, blocking=decision.blocking, upstream=upstream)
    ended = []
    if decision.ends is not None:
        ended, status = unfinished, RunStatus(decision.ends)
        for uid in ended:
            builder.end_run(uid, status)
    run = new_run(builder, request, policy)
    if decision.act == "buffer":
        builder.put_run(run)
        depth = builder.schedule.buffer_depth
        builder.record(
            audit.BUFFERED,
            run,
            outcome="buffered",
            effective_overlap_policy=run.overlap,
            buffer_depth=depth,
            blocking_run_id=decision.blocking,
        )
        return StartResult("buffered", run, buffer_depth=depth)
    started = _begin(builder, run, outcome="triggered", ended=ended, ends=decision.ends)
    if builder.schedule.awaiting_run_uid in ended:
        builder.wait_for(run.uid)
    end_if_exhausted(builder)
    return StartResult("triggered", started)


def judge_overlap(
    policy: OverlapPolicy, *, unfinished: Sequence[str], buffered: int, buffer_limit: int | None = None
) -> OverlapDecision:
    """Decide about one new run, given the uids of unfinished runs (oldest first) and the number of buffered runs."""
    blocking = unfinished[0] if unfinished else None
    if policy is OverlapPolicy.ALLOW_ALL:
        return OverlapDecision("start")
    if policy in BUFFERING:
        if blocking is None and not buffered:
            return OverlapDecision("start")
        room = 1 if policy is OverlapPolicy.BUFFER_ONE else buffer_limit
        if room is not None and buffered >= room:
            return OverlapDecision("skip", reason=SkipReason.BUFFER_FULL, blocking=blocking)
        return OverlapDecision("buffer", blocking=blocking)
    if blocking is None:
        return OverlapDecision("start")
    if policy in REPLACING:
        ends = "cancelled" if policy is OverlapPolicy.CANCEL_OTHER else "terminated"
        return OverlapDecision("start", blocking=blocking, ends=ends)
    return OverlapDecision("skip", reason=SkipReason.OVERLAP, blocking=blocking)


def for_backfill(policy: OverlapPolicy) -> OverlapPolicy:
    """Return the policy of a backfill. A policy that buffers becomes `allow_all` (Durable Workflow document)."""
    return OverlapPolicy.ALLOW_ALL if policy in BUFFERING else policy


def enqueue(builder: ChangeBuilder, request: StartRequest) -> StartResult:
    """Add the run of a request as a waiting run, whatever the policy is. Backfills use this under `skip`."""
    if builder.schedule.remaining == 0:
        return refuse(builder, request.occurrence_at, SkipReason.MAX_RUNS)
    run = new_run(builder, request, request.overlap or builder.schedule.policies.overlap)
    return StartResult("buffered", builder.put_run(run))


def _begin(
    builder: ChangeBuilder, waiting: Run, *, outcome: str, ended: Sequence[str] = (), ends: str | None = None
) -> Run:
    """Make a waiting or new run pending: count its start, subtract it from `max_runs`, and set its lineage.

    `ended` are the uids of the runs that were ended so that this run can start, and `ends` is their status (`cancelled`
    or `terminated`).
    """
    schedule = builder.schedule
    number, remaining = schedule.run_count + 1, schedule.remaining
    lineage = dumps(
        {
            "schedule_id": schedule.schedule_id,
            "schedule_ulid": schedule.uid,
            "cron_expression": schedule.spec.primary_cron,
            "timezone": schedule.spec.timezone,
            "overlap_policy": waiting.overlap,
            "trigger_number": number,
            "occurrence_time": iso_utc(waiting.occurrence_at),
        }
    )
    run = builder.queue_run(waiting, trigger_number=number, lineage=lineage)
    builder.set(
        run_count=number,
        remaining=None if remaining is None else remaining - 1,
        last_run_at=builder.now,
        last_run_uid=run.uid,
        last_instance_id=run.instance_id,
    )
    builder.record(
        audit.TRIGGERED,
        run,
        outcome=outcome,
        effective_overlap_policy=run.overlap,
        trigger_number=number,
        moved_from=None if run.nominals is None else [*map(iso_utc, run.moved_from)] or None,
        **{f"{ends}_run_ids": list(ended)} if ends else {},
    )
    return run


def drain(builder: ChangeBuilder) -> None:
    """Start the oldest waiting run if no run is ahead of it. End the schedule if it has nothing left to do.

    A schedule that does not fire (paused or ended) starts only runs of backfills and retries on request. A deleted
    schedule that keeps its runs starts all waiting runs.
    """
    has_waiting = builder.schedule.buffer_depth or builder.schedule.backfill_waiting
    run = _next_waiting(builder) if has_waiting and not builder.unfinished() else None
    if run is not None and run.is_asked:  # its start was counted with its first attempt
        again = builder.queue_run(run)
        builder.record(audit.RUN_RETRY_STARTED, again, outcome="drained")
    elif run is not None:
        _begin(builder, run, outcome="drained")
        end_if_exhausted(builder)
    complete_if_over(builder)


def _next_waiting(builder: ChangeBuilder) -> Run | None:
    """Return the waiting run that may start; None if no run may."""
    # If this decision has dropped the waiting runs, only the schedule's counters show this. The runs still have the
    # status buffered.
    schedule, waiting = builder.schedule, builder.waiting()
    live = [run for run in waiting if run.kind is not RunKind.BACKFILL]
    if not schedule.lets_waiting_start:  # retries on request do not wait for a resume
        live = [run for run in live if run.is_asked]
    if live and schedule.buffer_depth:
        return live[0]
    backfilled = [run for run in waiting if run.kind is RunKind.BACKFILL]
    if backfilled and schedule.backfill_waiting and not schedule.backfill_unfinished:
        return backfilled[0]
    return None


def new_run(builder: ChangeBuilder, request: StartRequest, overlap: OverlapPolicy) -> Run:
    """Return the schedule's next run as a waiting run. If the request has no uid, derive one from the run's number."""
    schedule, now = builder.schedule, builder.now
    definition, number = schedule.definition, schedule.run_number + 1
    uid = request.uid or derived_uid(now, schedule.uid, number)
    defaults = definition.parsed_defaults
    return changed(
        _BLANK,
        uid=uid,
        schedule_uid=schedule.uid,
        number=number,
        instance_id=_instance_id(schedule.schedule_id, request, uid),
        kind=request.kind,
        occurrence_at=request.occurrence_at,
        status=RunStatus.BUFFERED,
        created_at=now,
        workflow=definition.workflow,
        executor=definition.executor,
        action=definition.action,
        queue=definition.queue or defaults.get("queue"),
        connection=definition.connection or defaults.get("connection"),
        timeout=definition.timeout or defaults.get("timeout"),
        priority=definition.priority,
        overlap=overlap.value,
        is_override=request.kind is RunKind.BACKFILL or overlap is not schedule.policies.overlap,
        labels=definition.labels,
        memo=definition.memo,
        search_attributes=definition.search_attributes,
        due_at=request.due_at,
        idempotency_key=request.idempotency_key,
        backfill_uid=request.backfill_uid,
        limit_group=schedule.limit_group,
        upstream_run_uid=request.upstream and request.upstream.run_uid,
        upstream_schedule_id=request.upstream and request.upstream.schedule_id,
        nominals=dump_instants(request.nominals) if request.nominals else None,
        traceparent=None if builder.context is None else builder.context.traceparent,
    )


_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_BLANK = Run("", "", 0, "", RunKind.SCHEDULED, _NO_TIME, RunStatus.BUFFERED, _NO_TIME, "")
"""A run without values. To copy it takes a tenth of the time of `Run(...)`, which sets sixty fields one by one."""


def _instance_id(schedule_id: str, request: StartRequest, uid: str) -> str:
    if request.kind is RunKind.MANUAL:
        return manual_instance_id(schedule_id, uid)
    if request.upstream is not None:
        return after_instance_id(schedule_id, request.upstream.run_uid)
    if request.kind is RunKind.BACKFILL:
        return backfill_instance_id(schedule_id, request.occurrence_at)
    return live_instance_id(schedule_id, request.occurrence_at)
