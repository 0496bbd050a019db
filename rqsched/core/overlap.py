"""Offers: occurrences put to the overlap policy, what became of them, and the run one makes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rqsched.core.ids import backfill_instance_id, derived_uid, live_instance_id, manual_instance_id
from rqsched.core.model import Run, RunKind, RunStatus, Schedule
from rqsched.core.policy import OverlapPolicy


@dataclass(frozen=True, slots=True)
class StartRequest:
    """One occurrence put to the overlap policy."""

    kind: RunKind
    occurrence_at: datetime
    overlap: OverlapPolicy | None = None
    """Another policy than the schedule's."""
    uid: str | None = None
    """The uid drawn by the caller; None derives it from the run's number."""
    idempotency_key: str | None = None
    backfill_uid: str | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StartResult:
    """What became of it."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    run: Run | None = None
    reason: str | None = None
    buffer_depth: int | None = None


def refused(reason: str) -> StartResult:
    """Give the outcome of an offer that starts nothing."""
    return StartResult("buffer_full" if reason == "buffer_full" else "skipped", reason=reason)


def new_run(schedule: Schedule, request: StartRequest, overlap: OverlapPolicy, now: datetime) -> Run:
    """Make the schedule's next run, waiting; its uid is the offer's or derived from its number."""
    definition, number = schedule.definition, schedule.run_number + 1
    uid = request.uid or derived_uid(now, schedule.uid, number)
    defaults = definition.parsed_defaults
    return Run(
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
    )


def _instance_id(schedule_id: str, request: StartRequest, uid: str) -> str:
    if request.kind is RunKind.MANUAL:
        return manual_instance_id(schedule_id, uid)
    if request.kind is RunKind.BACKFILL:
        return backfill_instance_id(schedule_id, request.occurrence_at)
    return live_instance_id(schedule_id, request.occurrence_at)
