"""The responses of this surface, with its names, and their schemas: items, details, events and results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from rqsched.api.description import TriggerResult
from rqsched.api.run_handle import RunHandle
from rqsched.core import audit
from rqsched.core.audit import AuditRecord
from rqsched.core.model import Run, RunKind, RunStatus, Schedule, ScheduleStatus
from rqsched.core.payload import loads
from rqsched.core.results import BackfillRow
from rqsched.http.openapi import Refusals, Schema


def status_of(schedule: Schedule) -> str:
    """Return the status as this surface has it: dead is paused. A done schedule is neither found nor listed."""
    return "paused" if schedule.status is ScheduleStatus.DEAD else schedule.status.value


def note_of(schedule: Schedule) -> str | None:
    """Return the note; a dead schedule's begins with why it died."""
    if schedule.status is not ScheduleStatus.DEAD:
        return schedule.note
    reason = f"dead: {schedule.status_reason or 'failed too often'}"
    return f"{reason}. {schedule.note}" if schedule.note else reason


def item(schedule: Schedule) -> dict[str, Any]:
    """Return an item of the list, under the names of the protocol and of the SDK."""
    definition, form = schedule.definition, schedule.spec.to_json()
    return {
        "schedule_id": schedule.schedule_id,
        "workflow_type": definition.workflow,
        "status": status_of(schedule),
        "paused": status_of(schedule) == "paused",
        "next_fire": schedule.due_at,
        "last_fire": schedule.last_run_at,
        "overlap_policy": schedule.policies.overlap.value,
        "note": note_of(schedule),
        "fires_count": schedule.run_count,
        "jitter_seconds": int(definition.jitter.total_seconds()),
        "max_runs": definition.max_runs,
        "remaining_actions": schedule.remaining,
        "spec": {
            "cron_expressions": form.get("cron_expressions", []),
            "intervals": form.get("intervals", []),
            "timezone": schedule.spec.timezone,
        },
        "action": action_form(schedule),
        "failures_count": schedule.error_count,
        "next_fire_at": schedule.due_at,
        "last_fired_at": schedule.last_run_at,
        "latest_workflow_instance_id": schedule.latest_instance_id,
        "paused_at": schedule.paused_at,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
    }


def detail(schedule: Schedule, recent: Sequence[Run], waiting: Sequence[Run]) -> dict[str, Any]:
    """Return all details of a schedule, its newest runs and those that wait."""
    fields = item(schedule)
    return {
        **fields,
        "namespace": schedule.namespace,
        "state": {name: fields[name] for name in State.model_fields},
        "info": {
            **{name: fields[name] for name in ("next_fire", "last_fire", "fires_count", "failures_count")},
            "recent_actions": [_recent(run) for run in recent],
            "buffered_actions": [_waiting(run) for run in waiting],
            "skipped_trigger_count": schedule.skipped_count,
            "last_skip_reason": schedule.last_skip_reason,
            "last_skipped_at": schedule.last_skipped_at,
        },
        "memo": loads(schedule.definition.memo),
        "search_attributes": loads(schedule.definition.search_attributes),
    }


def _waiting(run: Run) -> dict[str, Any]:
    return {
        "workflow_id": run.instance_id,
        "run_id": run.uid,
        "occurrence_time": run.occurrence_at,
        "buffered_at": run.created_at,
    }


_OUTCOMES = {RunKind.SCHEDULED: "scheduled", RunKind.MANUAL: "triggered", RunKind.BACKFILL: "backfilled"}


def _outcome_of(run: Run) -> str:
    """Return how a run came to start: by its kind, or because the run ahead of it ended."""
    if run.status is RunStatus.BUFFERED:
        return "buffered"
    has_waited = run.attempt == 1 and run.queued_at is not None and run.queued_at > run.created_at
    return "drained" if has_waited and run.kind is not RunKind.BACKFILL else _OUTCOMES[run.kind]


def _recent(run: Run) -> dict[str, Any]:
    fired_at = run.queued_at or run.created_at
    lag = fired_at - (run.due_at or run.occurrence_at)
    return {
        "workflow_id": run.instance_id,
        "run_id": run.uid,
        "outcome": _outcome_of(run),
        "status": run.status.value,
        "fired_at": fired_at,
        "occurrence_time": run.occurrence_at,
        "fire_lag_ms": max(0, round(lag.total_seconds() * 1000)),
    }


def sent_action(schedule: Schedule) -> dict[str, Any]:
    """Return the action as it was last sent, by key; empty when another surface created the schedule."""
    sent: dict[str, Any] = loads(schedule.definition.surface).get("action") or {}
    return sent


def arguments_of(sent: Any) -> list[Any]:
    """Return the arguments of an `input`: an encoded envelope ({codec, blob}) stays opaque, as the only argument."""
    return sent if isinstance(sent, list) else [] if sent is None else [sent]


def action_form(schedule: Schedule) -> dict[str, Any]:
    """Return the action as it was sent, as far as it is still current."""
    definition, sent = schedule.definition, sent_action(schedule)
    args = loads(definition.action)["args"]
    is_same = "input" in sent and arguments_of(sent["input"]) == args
    return sent | {
        "workflow_type": definition.workflow,
        "task_queue": definition.queue,
        "input": sent["input"] if is_same else args,
    }


def event(record: AuditRecord, schedule_id: str) -> dict[str, Any]:
    """Return an audit event."""
    return {
        "id": f"{record.schedule_uid}:{record.sequence}",
        "sequence": record.sequence,
        "event_type": record.event_type,
        "payload": _payload(record, schedule_id),
        "workflow_instance_id": record.workflow_instance_id,
        "workflow_run_id": record.workflow_run_id,
        "recorded_at": record.recorded_at,
    }


def _payload(record: AuditRecord, schedule_id: str) -> dict[str, Any]:
    """Return an event's payload; of a start its outcome says what asked for the run, as the instance id does."""
    if record.event_type != audit.TRIGGERED or record.payload.get("outcome") != "triggered":
        return record.payload
    named = (record.workflow_instance_id or "").removeprefix(f"schedule:{schedule_id}:")
    is_asked = named.startswith("manual:")
    outcome = "triggered" if is_asked else "backfilled" if named.startswith("backfill:") else "scheduled"
    return record.payload | {"outcome": outcome}


def triggered(schedule_id: str, result: TriggerResult[RunHandle]) -> dict[str, Any]:
    """Return the outcome of a trigger."""
    run = result.run
    known = {
        "workflow_id": run.state.instance_id if run else None,
        "run_id": run.state.uid if run else None,
        "buffer_depth": result.buffer_depth,
        "reason": result.reason,
    }
    fields = {name: value for name, value in known.items() if value is not None}
    return {"schedule_id": schedule_id, "outcome": result.outcome, **fields}


def backfilled(row: BackfillRow) -> dict[str, Any]:
    """Return the outcome of one occurrence of a backfill; a buffered run counts as started."""
    is_started = row.outcome in {"started", "buffered"}
    response: dict[str, Any] = {
        "fire_time": row.occurrence_at,
        "outcome": "started" if is_started else "skipped",
    }
    if row.instance_id is not None:
        response["workflow_id"] = row.instance_id
    if not is_started:
        response["reason"] = row.reason or row.outcome
    return response


class SpecForm(Schema):
    """When a schedule fires."""

    cron_expressions: list[str]
    intervals: list[dict[str, Any]]
    timezone: str


class Item(Schema):
    """An item of the list."""

    schedule_id: str
    workflow_type: str
    status: str
    paused: bool
    next_fire: datetime | None
    last_fire: datetime | None
    overlap_policy: str
    note: str | None
    fires_count: int
    jitter_seconds: int
    max_runs: int | None
    remaining_actions: int | None
    spec: SpecForm
    action: dict[str, Any]
    failures_count: int
    next_fire_at: datetime | None
    last_fired_at: datetime | None
    latest_workflow_instance_id: str | None
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ItemsResponse(Schema):
    """A page of schedules, created newest first."""

    schedules: list[Item]
    next_page_token: str | None


class State(Schema):
    """Whether a schedule fires."""

    status: str
    paused: bool
    note: str | None


class RecentAction(Schema):
    """One of the newest runs."""

    workflow_id: str
    run_id: str
    outcome: Literal["scheduled", "triggered", "backfilled", "drained", "buffered"]
    status: str
    fired_at: datetime
    occurrence_time: datetime
    fire_lag_ms: int


class BufferedAction(Schema):
    """A run that waits for the one ahead of it."""

    workflow_id: str
    run_id: str
    occurrence_time: datetime
    buffered_at: datetime


class Info(Schema):
    """Counters and the newest runs."""

    next_fire: datetime | None
    last_fire: datetime | None
    fires_count: int
    failures_count: int
    recent_actions: list[RecentAction] = Field(max_length=10)
    buffered_actions: list[BufferedAction] = Field(max_length=100)
    skipped_trigger_count: int
    last_skip_reason: str | None
    last_skipped_at: datetime | None


class DetailResponse(Item):
    """All details of a schedule."""

    namespace: str
    state: State
    info: Info
    memo: dict[str, Any]
    search_attributes: dict[str, Any]


class OutcomeResponse(Schema):
    """The outcome of a command."""

    schedule_id: str
    outcome: Literal["created", "updated", "deleted", "paused", "resumed"]


class TriggeredResponse(Schema):
    """The outcome of a trigger."""

    schedule_id: str
    outcome: Literal["triggered", "buffered", "buffer_full", "skipped"]
    workflow_id: str | None = None
    run_id: str | None = None
    buffer_depth: int | None = None
    reason: str | None = None


class BackfilledFire(Schema):
    """The outcome of one occurrence of a backfill."""

    fire_time: datetime
    outcome: Literal["started", "skipped", "failed"]
    workflow_id: str | None = None
    reason: str | None = None


class BackfilledResponse(Schema):
    """The outcome of a backfill."""

    schedule_id: str
    outcome: Literal["backfill_started"]
    backfill_id: str
    """It continues after the response when the range is large; the native API reads its progress by this id."""
    status: str
    fires_attempted: int
    results: list[BackfilledFire]


class Event(Schema):
    """One audit event."""

    id: str
    sequence: int
    event_type: str
    payload: dict[str, Any]
    workflow_instance_id: str | None
    workflow_run_id: str | None
    recorded_at: datetime


class HistoryResponse(Schema):
    """A page of audit events, oldest first."""

    schedule_id: str
    namespace: str
    events: list[Event]
    next_cursor: int | None
    has_more: bool


class ClusterResponse(Schema):
    """Who this server is and what it can do."""

    server: str
    version: str
    namespace: dict[str, str]
    capabilities: dict[str, bool]
    control_plane: dict[str, str]
    worker_protocol: dict[str, Any]


class ReachableResponse(Schema):
    """Both backends responded."""

    status: Literal["ok"]
    version: str


class RefusalResponse(Schema):
    """An error; `reason` is stable."""

    message: str
    reason: str
    request_id: str
    field: str | None = None
    """The refused field."""
    errors: dict[str, list[str]] | None = None
    """The messages of refused fields, by field."""
    last_safe_cursor: dict[str, Any] | None = None
    """Where the list of a page token stood that belongs to other filters."""
    schedule_id: str | None = None
    outcome: Literal["trigger_failed"] = "trigger_failed"


REFUSED = Refusals(RefusalResponse)
