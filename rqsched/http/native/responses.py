"""The answers of the native surface: descriptions, runs, events and backfills as JSON, and their schemas."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, get_type_hints

from pydantic import create_model

from rqsched.api.describe import Description, describe
from rqsched.chain.backfill import Backfill
from rqsched.core.ids import iso_utc
from rqsched.core.model import Run, Schedule
from rqsched.core.payload import loads
from rqsched.core.start import BackfillRow
from rqsched.http.openapi import Shape
from rqsched.spec.spec import Every
from rqsched.store.listing import AuditRecord

_JSON_FIELDS = ("action", "labels", "memo", "search_attributes", "lineage", "attempts", "result")
_PRIVATE = ("token",)


class _PipelitNames(Shape):
    """The same facts under the Pipelit document's names."""

    id: str
    name: str
    workflow_id: str
    trigger_node_id: str | None
    user_profile_id: str | None
    interval_seconds: float | None
    total_repeats: int
    max_retries: int
    timeout_seconds: int | None
    trigger_payload: dict[str, Any]
    current_repeat: int


_FIELDS: Any = {name: (kind, ...) for name, kind in get_type_hints(Description).items()}
ScheduleAnswer: Any = create_model("ScheduleAnswer", __base__=_PipelitNames, **_FIELDS)


def schedule_answer(schedule: Schedule, latest: Run | None = None) -> dict[str, Any]:
    """Give everything there is to know of a schedule, in our words and in the Pipelit document's."""
    facts = describe(schedule, latest).to_dict()
    surface = loads(schedule.definition.surface)
    return facts | {
        "id": schedule.schedule_id,
        "name": surface.get("name") or schedule.schedule_id,
        "workflow_id": facts["workflow"],
        "trigger_node_id": surface.get("trigger_node_id"),
        "user_profile_id": facts["owner"],
        "interval_seconds": _interval_seconds(schedule),
        "total_repeats": schedule.policies.max_successes or 0,
        "max_retries": schedule.policies.retry.max_retries,
        "timeout_seconds": facts["timeout"],
        "trigger_payload": facts["kwargs"],
        "current_repeat": facts["success_count"],
    }


def _interval_seconds(schedule: Schedule) -> float | None:
    every = [member.every for member in schedule.spec.members if isinstance(member, Every)]
    return every[0].total_seconds() if len(every) == 1 and len(schedule.spec.members) == 1 else None


class ScheduleAnswers(Shape):
    """A page of schedules, in the order they were created."""

    items: list[ScheduleAnswer]
    next_cursor: str | None
    total: int | None = None
    """How many there are in all; only when it was asked for."""


class RunAnswer(Shape):
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


def run_answer(run: Run) -> dict[str, Any]:
    """Give every fact of a run but what fences it."""
    facts = {name: value for name, value in asdict(run).items() if name not in _PRIVATE}
    facts |= {name: facts[name] and loads(facts[name]) for name in _JSON_FIELDS}
    return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in facts.items()}


class RunAnswers(Shape):
    """A page of runs, newest first."""

    items: list[RunAnswer]
    next_cursor: str | None


class TriggerAnswer(Shape):
    """What a manual trigger did."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    reason: str | None
    """Why nothing was started."""
    instance_id: str | None
    run: RunAnswer | None
    buffer_depth: int | None


class EventAnswer(Shape):
    """One audit event."""

    schedule_uid: str
    sequence: int
    event_type: str
    payload: dict[str, Any]
    workflow_instance_id: str | None
    workflow_run_id: str | None
    recorded_at: datetime


def event_answer(event: AuditRecord) -> dict[str, Any]:
    """Give an audit event as it was recorded."""
    return asdict(event) | {"recorded_at": iso_utc(event.recorded_at)}


class EventAnswers(Shape):
    """A page of audit events, oldest first."""

    items: list[EventAnswer]
    next_cursor: str | None


class UpcomingAnswer(Shape):
    """The next instants at which a schedule fires, jitter included."""

    items: list[datetime]


class BackfillRowAnswer(Shape):
    """What became of one occurrence."""

    occurrence_time: datetime
    instance_id: str | None = None
    outcome: str
    reason: str | None = None


class BackfillAnswer(Shape):
    """A backfill and how far it is."""

    uid: str | None
    """None for a dry run."""
    status: str
    """`running`, `done`, `stopped` or `dry_run`."""
    reason: str | None = None
    start_at: datetime
    end_at: datetime
    cursor: datetime | None = None
    """Where it goes on."""
    attempted: int
    started: int
    buffered: int
    skipped: int
    already_run: int
    created_at: datetime | None = None
    updated_at: datetime | None = None
    rows: list[BackfillRowAnswer] | None = None
    """One an occurrence, where it was done at once."""


_BACKFILL = ("uid", "status", "reason", "attempted", "started", "buffered", "skipped", "already_run")
_INSTANTS = ("start_at", "end_at", "cursor", "created_at", "updated_at")


def backfill_answer(backfill: Backfill, rows: list[BackfillRow] | None = None) -> dict[str, Any]:
    """Give a backfill's progress, and its rows where they are at hand."""
    facts = {name: getattr(backfill, name) for name in _BACKFILL}
    facts |= {name: iso_utc(getattr(backfill, name)) for name in _INSTANTS}
    return facts if rows is None else facts | {"rows": [row.to_dict() for row in rows]}


class WorkflowAnswer(Shape):
    """A workflow some process registered."""

    name: str
    queue: str | None
    connection: str | None
    timeout: int | None
    registered_at: datetime | None
    """When a worker recorded it; None for one that only this process knows."""


class WorkflowAnswers(Shape):
    """Every registered workflow, by name."""

    items: list[WorkflowAnswer]
