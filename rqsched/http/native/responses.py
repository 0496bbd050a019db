"""The responses of the native surface as JSON, and their schemas: schedules, runs, events, backfills, workflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, get_type_hints

from pydantic import create_model

from rqsched.api.build_description import describe_plainly
from rqsched.api.description import Description, TriggerResult
from rqsched.api.run_handle import RunHandle
from rqsched.core.audit import AuditRecord
from rqsched.core.ids import iso_utc
from rqsched.core.model import Run, Schedule
from rqsched.core.payload import loads
from rqsched.core.results import BulkRow, RetryRow
from rqsched.core.start_on_request import BackfillRow
from rqsched.http.openapi import Schema
from rqsched.spec.spec import Every
from rqsched.store.backfills import Backfill
from rqsched.store.run_queries import LatestRun

_JSON_FIELDS = ("action", "labels", "memo", "search_attributes", "lineage", "attempts", "result", "target_counts")
_PRIVATE = ("token",)


def _without(name: str, model: Any, left_out: Sequence[str]) -> Any:
    """Return the model of the same fields without some."""
    kept: Any = {field: (info.annotation, info) for field, info in model.model_fields.items() if field not in left_out}
    return create_model(name, __base__=Schema, **kept)


class _PipelitNames(Schema):
    """The same values under the Pipelit document's names."""

    id: str
    name: str
    workflow_id: str
    trigger_node_id: str | None = None
    """Only of a schedule that was given one."""
    user_profile_id: str | None = None
    """`owner`; only of a schedule that was given it under this name."""
    interval_seconds: float | None
    total_repeats: int
    max_retries: int
    timeout_seconds: int | None
    trigger_payload: dict[str, Any]
    current_repeat: int


_FIELDS: Any = {name: (kind, ...) for name, kind in get_type_hints(Description).items()}
ScheduleResponse: Any = create_model("ScheduleResponse", __base__=_PipelitNames, **_FIELDS)
_LARGE = ("args", "kwargs", "trigger_payload", "memo", "search_attributes")
"""What a summary of a schedule leaves out."""
_LARGE_OF_RUN = ("action", "memo", "search_attributes", "lineage", "attempts", "result")
"""What a summary of a run leaves out."""


ScheduleSummary: Any = _without("ScheduleSummary", ScheduleResponse, _LARGE)


def schedule_response(schedule: Schedule, latest: LatestRun | None = None, *, is_slim: bool = False) -> dict[str, Any]:
    """Return a schedule, in our names and in the Pipelit document's."""
    fields = describe_plainly(schedule, latest)
    surface = loads(schedule.definition.surface)
    fields |= {
        "id": schedule.schedule_id,
        "name": surface.get("name") or schedule.schedule_id,
        "workflow_id": fields["workflow"],
        "interval_seconds": _interval_seconds(schedule),
        "total_repeats": schedule.policies.max_successes or 0,
        "max_retries": schedule.policies.retry.max_retries,
        "timeout_seconds": fields["timeout"],
        "trigger_payload": fields["kwargs"],
        "current_repeat": fields["success_count"],
    }
    if "trigger_node_id" in surface:
        fields["trigger_node_id"] = surface["trigger_node_id"]
    if "user_profile_id" in surface:
        fields["user_profile_id"] = fields["owner"]
    if is_slim:
        for name in _LARGE:
            del fields[name]
    return fields


def _interval_seconds(schedule: Schedule) -> float | None:
    every = [member.every for member in schedule.spec.members if isinstance(member, Every)]
    return every[0].total_seconds() if len(every) == 1 and len(schedule.spec.members) == 1 else None


class SchedulesResponse(Schema):
    """A page of schedules, in the order they were created."""

    items: list[ScheduleResponse | ScheduleSummary]
    """Fewer than asked for where they are large: `next_cursor` tells whether there are more."""
    next_cursor: str | None
    total: int | None = None
    """The number of all matching schedules; only when `total` was asked for."""


class RunResponse(Schema):
    """One run."""

    uid: str
    schedule_uid: str
    number: int
    instance_id: str
    kind: str
    occurrence_at: datetime
    status: str
    created_at: datetime
    workflow: str
    executor: str
    action: dict[str, Any]
    queue: str | None
    connection: str | None
    timeout: int | None
    priority: int
    overlap: str
    is_override: bool
    trigger_number: int | None
    labels: dict[str, Any]
    memo: dict[str, Any]
    search_attributes: dict[str, Any]
    lineage: dict[str, Any]
    attempt: int
    delivery: int
    worker: str | None
    due_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    retry_at: datetime | None
    heartbeat_at: datetime | None
    attempts: list[dict[str, Any]]
    result: Any
    error: str | None
    idempotency_key: str | None
    backfill_uid: str | None
    asked_attempt: int | None
    """The attempt that an operator asked for last; None when nobody did."""
    dispatched_at: datetime | None
    target_counts: dict[str, int] | None
    blocked_at: datetime | None
    """Since when no worker that took it could find its workflow; None unless it is blocked (and `pending`)."""
    blocked_reason: str | None
    """Which worker was the last of them, and what it lacked."""


RunSummary: Any = _without("RunSummary", RunResponse, _LARGE_OF_RUN)


def run_response(run: Run, *, is_slim: bool = False) -> dict[str, Any]:
    """Return every field of a run but its fencing token."""
    hidden = (*_PRIVATE, *_LARGE_OF_RUN) if is_slim else _PRIVATE
    fields = {name: value for name, value in asdict(run).items() if name not in hidden}
    fields |= {name: fields[name] and loads(fields[name]) for name in _JSON_FIELDS if name in fields}
    return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in fields.items()}


class TargetProgressResponse(Schema):
    """How far the targets of a run are."""

    counts: dict[str, int]
    total: int
    ended: int
    failed: int
    """Those that failed or were lost."""
    per_second: float | None
    """How many ended each second lately."""
    ends_at: datetime | None
    """When the last one ends at that pace."""


class TargetResponse(Schema):
    """One target of a run."""

    number: int
    target_id: str
    status: str
    attempt: int
    error: str | None
    """The error of the newest failed attempt, or why it is blocked."""
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    retry_at: datetime | None


class TargetsResponse(Schema):
    """How far the targets of a run are, and a page of them in the order they were named."""

    progress: TargetProgressResponse | None
    """None when the run has no targets."""
    items: list[TargetResponse]
    next_cursor: str | None


def targets_response(run: RunHandle, limit: int, cursor: str | None, status: str | None) -> dict[str, Any]:
    """Return how far the targets of a run are, and a page of them."""
    page, progress = run.targets(limit, cursor, status=status), run.progress()
    items = [target.to_dict() for target in page.items]
    return {"progress": progress and progress.to_dict(), "items": items, "next_cursor": page.next_cursor}


class RetryRowResponse(Schema):
    """What a bulk retry did with one run."""

    run_uid: str
    schedule_id: str
    instance_id: str
    outcome: str
    """`started`, `buffered`, `skipped`, or `would_retry` in a dry run."""
    reason: str | None


class RetryFailedResponse(Schema):
    """What a bulk retry did, oldest end first."""

    matched: int
    """How many runs were failed or lost."""
    started: int
    """Those that are on their queues now."""
    buffered: int
    """Those that wait for the run ahead of them."""
    skipped: int
    """Those that changed meanwhile."""
    items: list[RetryRowResponse]


def retry_failed_response(rows: Sequence[RetryRow]) -> dict[str, Any]:
    """Return what a bulk retry did."""
    outcomes = [row.outcome for row in rows]
    counts = {name: outcomes.count(name) for name in ("started", "buffered", "skipped")}
    return {"matched": len(rows), **counts, "items": [row.to_dict() for row in rows]}


class BulkRowResponse(Schema):
    """What a bulk operation did with one schedule."""

    schedule_id: str
    outcome: str
    """`paused`, `resumed`, `triggered`, `buffered`, `skipped`; `would_pause` and so on in a dry run."""
    reason: str | None


class BulkResponse(Schema):
    """What a bulk operation did, in the order in which the schedules were created."""

    matched: int
    """How many schedules matched."""
    counts: dict[str, int]
    """How many had each outcome."""
    items: list[BulkRowResponse]


def bulk_response(rows: Sequence[BulkRow]) -> dict[str, Any]:
    """Return what a bulk operation did."""
    counts = Counter(row.outcome for row in rows)
    return {"matched": len(rows), "counts": dict(counts), "items": [row.to_dict() for row in rows]}


class RunsResponse(Schema):
    """A page of runs, newest first."""

    items: list[RunResponse | RunSummary]
    next_cursor: str | None


class FoundRunResponse(RunResponse):
    """A run with the id of its schedule."""

    schedule_id: str


FoundRunSummary: Any = _without("FoundRunSummary", FoundRunResponse, _LARGE_OF_RUN)


class FoundRunsResponse(Schema):
    """A page of runs of all schedules, newest first."""

    items: list[FoundRunResponse | FoundRunSummary]
    next_cursor: str | None


class TriggerResponse(Schema):
    """What a manual trigger did."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    reason: str | None
    """Why no run was started; None otherwise."""
    instance_id: str | None
    run: RunResponse | None
    buffer_depth: int | None


def trigger_response(result: TriggerResult[RunHandle]) -> dict[str, Any]:
    """Return the outcome of a manual trigger, with its run."""
    return {
        "outcome": result.outcome,
        "reason": result.reason,
        "instance_id": result.instance_id,
        "run": run_response(result.run.state) if result.run else None,
        "buffer_depth": result.buffer_depth,
    }


class EventResponse(Schema):
    """One audit event."""

    schedule_uid: str
    sequence: int
    event_type: str
    payload: dict[str, Any]
    workflow_instance_id: str | None
    workflow_run_id: str | None
    recorded_at: datetime


def event_response(event: AuditRecord) -> dict[str, Any]:
    """Return an audit event as it was recorded."""
    return asdict(event) | {"recorded_at": iso_utc(event.recorded_at)}


class EventsResponse(Schema):
    """A page of audit events, oldest first."""

    items: list[EventResponse]
    next_cursor: str | None


class FoundEventResponse(EventResponse):
    """An audit event with the id of its schedule."""

    id: str
    """Its place among those of all schedules: what follows it is read with `after`."""
    schedule_id: str


class FoundEventsResponse(Schema):
    """A page of audit events of all schedules, oldest first."""

    items: list[FoundEventResponse]
    next_cursor: str | None


class DeliveryResponse(Schema):
    """One notification: a message to a workflow, a webhook, a heartbeat or Sentry."""

    uid: str
    kind: str
    """`workflow`, `webhook`, `heartbeat` or `sentry`."""
    destination: str
    """The workflow, the monitor, or where the URL leads."""
    event_type: str
    run_uid: str | None
    status: str
    """`pending`, `running`, `succeeded` or `failed`."""
    attempt: int
    error: str | None
    """Why the newest attempt failed."""
    message: dict[str, Any]
    created_at: datetime
    due_at: datetime
    """When it is attempted next, while it is pending."""
    started_at: datetime | None
    ended_at: datetime | None
    worker: str | None


class DeliveriesResponse(Schema):
    """A page of notifications, newest first."""

    items: list[DeliveryResponse]
    next_cursor: str | None


class UpcomingResponse(Schema):
    """The next instants at which a schedule fires, jitter included."""

    items: list[datetime]


class BackfillRowResponse(Schema):
    """The outcome of one occurrence of a backfill."""

    occurrence_time: datetime
    instance_id: str | None = None
    outcome: str
    reason: str | None = None


class BackfillResponse(Schema):
    """A backfill and its progress."""

    uid: str | None
    """None for a dry run."""
    status: str
    """`running`, `done`, `stopped` or `dry_run`."""
    reason: str | None = None
    start_at: datetime
    end_at: datetime
    cursor: datetime | None = None
    """The instant from which it continues; None for a dry run."""
    attempted: int
    started: int
    buffered: int
    skipped: int
    already_run: int
    created_at: datetime | None = None
    updated_at: datetime | None = None
    rows: list[BackfillRowResponse] | None = None
    """One per occurrence, when the backfill completed within the request."""


class BackfillsResponse(Schema):
    """A page of backfills, newest first."""

    items: list[BackfillResponse]
    next_cursor: str | None


_BACKFILL = ("uid", "status", "reason", "attempted", "started", "buffered", "skipped", "already_run")
_INSTANTS = ("start_at", "end_at", "cursor", "created_at", "updated_at")


def backfill_response(backfill: Backfill, rows: list[BackfillRow] | None = None) -> dict[str, Any]:
    """Return a backfill's progress, with its rows when they are given."""
    fields = {name: getattr(backfill, name) for name in _BACKFILL}
    fields |= {name: iso_utc(getattr(backfill, name)) for name in _INSTANTS}
    return fields if rows is None else fields | {"rows": [row.to_dict() for row in rows]}


class WorkflowResponse(Schema):
    """A workflow that some process registered."""

    name: str
    queue: str | None
    connection: str | None
    timeout: int | None
    on_failure: str | None
    """The workflow that is told of failures of its runs."""
    on_recovery: str | None
    """The workflow that is told of the first success after them."""
    targets: str | None
    """What names the targets that its runs call it for; None when nothing does."""
    registered_at: datetime | None
    """When a worker recorded it; None when only this process knows it."""


class WorkflowsResponse(Schema):
    """Every registered workflow, by name."""

    items: list[WorkflowResponse]
