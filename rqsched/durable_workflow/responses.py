"""The responses of this surface and their schemas: list items, details, events and results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from rqsched.api.description import TriggerResult
from rqsched.api.run_handle import RunHandle
from rqsched.api.states import TRIGGERED
from rqsched.api.values import loads
from rqsched.durable_workflow.errors import REASONS
from rqsched.http.openapi import EVERYWHERE, Refusals, Schema
from rqsched.types import AuditRecord, BackfillRow, Run, RunKind, RunStatus, Schedule, ScheduleStatus


def status_of(schedule: Schedule) -> str:
    """Return the status as this surface names it: a dead schedule is `paused`. Done schedules never appear here."""
    return "paused" if schedule.status is ScheduleStatus.DEAD else schedule.status.value


def note_of(schedule: Schedule) -> str | None:
    """Return the note. The note of a dead schedule begins with the reason of its death."""
    if schedule.status is not ScheduleStatus.DEAD:
        return schedule.note
    reason = f"dead: {schedule.status_reason or 'failed too often'}"
    return f"{reason}. {schedule.note}" if schedule.note else reason


def item(schedule: Schedule) -> dict[str, Any]:
    """Return an item of the list, under the names of the protocol and of the SDK."""
    definition, spec = schedule.definition, schedule.spec
    form = loads(definition.spec) if spec.newer else spec.in_numbers().to_json()
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
        "latest_workflow_instance_id": schedule.last_instance_id,
        "paused_at": schedule.paused_at,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
    }


def detail(schedule: Schedule, recent: Sequence[Run], waiting: Sequence[Run]) -> dict[str, Any]:
    """Return all details of a schedule, its newest runs and its waiting runs."""
    fields = item(schedule)
    return {
        **fields,
        "namespace": schedule.namespace,
        "state": {name: fields[name] for name in DurableState.model_fields},
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


_OUTCOMES = {
    RunKind.SCHEDULED: "scheduled",
    RunKind.MANUAL: "triggered",
    RunKind.AFTER: "triggered",  # the protocol has no word for a start after another schedule's run
    RunKind.BACKFILL: "backfilled",
}


def _outcome_of(run: Run) -> str:
    """Return how a run was started: `drained` if it waited for an earlier run, else according to its kind."""
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
    """Return the action as it was last sent. It is empty if another surface created the schedule."""
    sent: dict[str, Any] = loads(schedule.definition.surface).get("action") or {}
    return sent


def arguments_of(sent: Any) -> list[Any]:
    """Return the arguments of an `input`. An encoded envelope ({codec, blob}) is not decoded: it is one argument."""
    return sent if isinstance(sent, list) else [] if sent is None else [sent]


def action_form(schedule: Schedule) -> dict[str, Any]:
    """Return the action as it was sent, with the current workflow, queue and arguments."""
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
    """Return an event's payload. If a run was started, `outcome` says why, which is read from the run's instance id."""
    if record.event_type != TRIGGERED or record.payload.get("outcome") != "triggered":
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
    """Return the outcome of one occurrence of a backfill. A buffered run counts as started."""
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
    """Cron expressions."""
    intervals: list[dict[str, Any]]
    """Intervals, each with `every` and perhaps `offset`, as ISO 8601 lengths."""
    timezone: str
    """The IANA zone of the cron expressions."""


class DurableSchedule(Schema):
    """An item of the list."""

    schedule_id: str
    """The id, unique in its namespace."""
    workflow_type: str
    """The name of the workflow that it runs."""
    status: str
    """`active`, `paused` or `deleted`; a dead schedule shows as paused."""
    paused: bool
    """Whether it is paused."""
    next_fire: datetime | None
    """When it fires next; None while it does not fire."""
    last_fire: datetime | None
    """When its newest run was started."""
    overlap_policy: str
    """How a fire treats an unfinished earlier run."""
    note: str | None
    """The note of the last operator."""
    fires_count: int
    """How many runs it has started."""
    jitter_seconds: int
    """The maximum delay of a fire, in seconds."""
    max_runs: int | None
    """How many runs may start in all; None means no limit."""
    remaining_actions: int | None
    """How many runs may still start; None means no limit."""
    spec: SpecForm
    """When it fires."""
    action: dict[str, Any]
    """What it runs: `workflow_type`, `input`, `task_queue` and timeouts."""
    failures_count: int
    """How many of its runs have failed."""
    next_fire_at: datetime | None
    """The same as `next_fire`."""
    last_fired_at: datetime | None
    """The same as `last_fire`."""
    latest_workflow_instance_id: str | None
    """The instance id of its newest run."""
    paused_at: datetime | None
    """Since when it is paused."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When it was last changed."""


class DurableSchedulesResponse(Schema):
    """A page of schedules. The schedule that was created last comes first."""

    schedules: list[DurableSchedule]
    """The schedules of this page."""
    next_page_token: str | None
    """The token of the next page; None on the last page."""


class DurableState(Schema):
    """Whether a schedule fires."""

    status: str
    """The same as `status` in the list."""
    paused: bool
    """Whether it is paused."""
    note: str | None
    """The note of the last operator."""


class RecentAction(Schema):
    """One of the newest runs."""

    workflow_id: str
    """The instance id of the run."""
    run_id: str
    """Its uid."""
    outcome: Literal["scheduled", "triggered", "backfilled", "drained", "buffered"]
    """How it was started."""
    status: str
    """Its status."""
    fired_at: datetime
    """When it was started."""
    occurrence_time: datetime
    """The occurrence of the run."""
    fire_lag_ms: int
    """How long after the occurrence it was started."""


class BufferedAction(Schema):
    """A run that waits for an earlier run of its schedule."""

    workflow_id: str
    """The instance id of the run."""
    run_id: str
    """Its uid."""
    occurrence_time: datetime
    """The occurrence of the run."""
    buffered_at: datetime
    """Since when it waits."""


class DurableInfo(Schema):
    """Counters and the newest runs."""

    next_fire: datetime | None
    """When it fires next; None while it does not fire."""
    last_fire: datetime | None
    """When its newest run was started."""
    fires_count: int
    """How many runs it has started."""
    failures_count: int
    """How many of its runs have failed."""
    recent_actions: list[RecentAction] = Field(max_length=10)
    """The newest runs."""
    buffered_actions: list[BufferedAction] = Field(max_length=100)
    """The runs that wait, oldest first."""
    skipped_trigger_count: int
    """How many occurrences and triggers started nothing."""
    last_skip_reason: str | None
    """Why the newest skipped occurrence or trigger started nothing."""
    last_skipped_at: datetime | None
    """When the newest skip was recorded."""


class DurableScheduleResponse(DurableSchedule):
    """All details of a schedule."""

    namespace: str
    """The namespace."""
    state: DurableState
    """Whether it fires."""
    info: DurableInfo
    """Counters and the newest runs."""
    memo: dict[str, Any]
    """The memo of its runs."""
    search_attributes: dict[str, Any]
    """The values to query by."""


class OutcomeResponse(Schema):
    """The outcome of a command."""

    schedule_id: str
    """The id."""
    outcome: Literal["created", "updated", "deleted", "paused", "resumed"]
    """What was done."""


class TriggeredResponse(Schema):
    """The outcome of a trigger."""

    schedule_id: str
    """The id."""
    outcome: Literal["triggered", "buffered", "buffer_full", "skipped"]
    """The outcome of the trigger."""
    workflow_id: str | None = None
    """The instance id of the run."""
    run_id: str | None = None
    """The uid of the run."""
    buffer_depth: int | None = None
    """How many runs wait."""
    reason: str | None = None
    """Why no run was started."""


class BackfilledFire(Schema):
    """The outcome of one occurrence of a backfill."""

    fire_time: datetime
    """The occurrence."""
    outcome: Literal["started", "skipped", "failed"]
    """Its outcome."""
    workflow_id: str | None = None
    """The instance id of its run."""
    reason: str | None = None
    """Why the occurrence has no run."""


class BackfilledResponse(Schema):
    """The outcome of a backfill."""

    schedule_id: str
    """The id."""
    outcome: Literal["backfill_started"]
    """Always `backfill_started`."""
    backfill_id: str
    """The id of the backfill. A large backfill continues after the response; the native API shows its progress."""
    status: str
    """Whether the backfill is running or done."""
    fires_attempted: int
    """How many occurrences have an outcome by now."""
    results: list[BackfilledFire]
    """The outcome of each occurrence, if the backfill completed within the request; else empty."""


class DurableEvent(Schema):
    """One audit event."""

    id: str
    """The id of the event."""
    sequence: int
    """1, 2, 3 ... within the schedule, without gaps."""
    event_type: str
    """What happened."""
    payload: dict[str, Any]
    """Its values by name."""
    workflow_instance_id: str | None
    """The instance id of the event's run; None if the event concerns no run."""
    workflow_run_id: str | None
    """The uid of that run."""
    recorded_at: datetime
    """When it was recorded."""


class HistoryResponse(Schema):
    """A page of audit events, oldest first."""

    schedule_id: str
    """The id."""
    namespace: str
    """The namespace."""
    events: list[DurableEvent]
    """The events of this page."""
    next_cursor: int | None
    """The `after_sequence` of the next page; None on the last page."""
    has_more: bool
    """Whether another page follows."""


class ClusterResponse(Schema):
    """The name, version and capabilities of this server."""

    server: str
    """The name of this server."""
    version: str
    """The version of rqsched."""
    namespace: dict[str, str]
    """The namespace of the request."""
    capabilities: dict[str, bool]
    """The features of the server by name."""
    control_plane: dict[str, str]
    """The version of the control plane that the server supports, and its header."""
    worker_protocol: dict[str, Any]
    """The offer to workers of this protocol. It is empty, because RQ's workers execute the runs."""


class ReachableResponse(Schema):
    """Both backends responded."""

    status: Literal["ok"]
    """Always `ok`."""
    version: str
    """The version of rqsched."""


class RefusalResponse(Schema):
    """An error; `reason` is stable."""

    message: str
    """The cause and the remedy."""
    reason: str
    """A stable identifier of the kind of error."""
    request_id: str
    """The id of the request, which the server's log has."""
    field: str | None = None
    """The refused field."""
    errors: dict[str, list[str]] | None = None
    """The messages of refused fields, by field."""
    last_safe_cursor: dict[str, Any] | None = None
    """If the page token belongs to a list with other filters: the position in that list."""
    schedule_id: str | None = None
    """The schedule that the error is about, if any."""
    outcome: Literal["trigger_failed"] = "trigger_failed"
    """Present only if a trigger failed."""


REFUSED = Refusals(
    RefusalResponse,
    (
        *(
            (400, reason)
            for reason in (REASONS["malformed"], "missing_control_plane_version", "unsupported_control_plane_version")
        ),
        (422, REASONS["invalid_input"]),
        *EVERYWHERE,
    ),
)
