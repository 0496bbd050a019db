"""The shapes of what this surface answers, for the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from rqsched.http.openapi import Refusals, Shape


class SpecForm(Shape):
    """When a schedule fires."""

    cron_expressions: list[str]
    intervals: list[dict[str, Any]]
    timezone: str


class Item(Shape):
    """A line of the list."""

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
    failures_count: int
    next_fire_at: datetime | None
    last_fired_at: datetime | None
    latest_workflow_instance_id: str | None
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ItemsAnswer(Shape):
    """A page of schedules, created newest first."""

    schedules: list[Item]
    next_page_token: str | None


class State(Shape):
    """Whether a schedule fires."""

    status: str
    paused: bool
    note: str | None


class RecentAction(Shape):
    """One of the newest runs."""

    workflow_id: str
    run_id: str
    outcome: Literal["triggered", "buffered"]
    status: str
    fired_at: datetime
    occurrence_time: datetime
    fire_lag_ms: int


class Info(Shape):
    """What happened."""

    next_fire: datetime | None
    last_fire: datetime | None
    fires_count: int
    failures_count: int
    recent_actions: list[RecentAction] = Field(max_length=10)
    buffered_actions: int
    skipped_trigger_count: int
    last_skip_reason: str | None
    last_skipped_at: datetime | None


class DetailAnswer(Item):
    """Everything about a schedule."""

    namespace: str
    action: dict[str, Any]
    state: State
    info: Info
    memo: dict[str, Any]
    search_attributes: dict[str, Any]


class OutcomeAnswer(Shape):
    """What a command did."""

    schedule_id: str
    outcome: Literal["created", "updated", "deleted", "paused", "resumed"]


class TriggeredAnswer(Shape):
    """What a trigger did."""

    schedule_id: str
    outcome: Literal["triggered", "buffered", "buffer_full", "skipped"]
    workflow_id: str | None = None
    run_id: str | None = None
    buffer_depth: int | None = None
    reason: str | None = None


class BackfilledFire(Shape):
    """What became of one occurrence."""

    fire_time: datetime
    outcome: Literal["started", "skipped", "failed"]
    workflow_id: str | None = None
    reason: str | None = None


class BackfilledAnswer(Shape):
    """What a backfill did."""

    schedule_id: str
    outcome: Literal["backfill_started"]
    fires_attempted: int
    results: list[BackfilledFire]


class Event(Shape):
    """One audit event."""

    id: str
    sequence: int
    event_type: str
    payload: dict[str, Any]
    workflow_instance_id: str | None
    workflow_run_id: str | None
    recorded_at: datetime


class HistoryAnswer(Shape):
    """A page of audit events, oldest first."""

    schedule_id: str
    namespace: str
    events: list[Event]
    next_cursor: int | None
    has_more: bool


class ClusterAnswer(Shape):
    """Who this server is and what it can do."""

    server: str
    version: str
    namespace: dict[str, str]
    capabilities: dict[str, bool]
    control_plane: dict[str, str]
    worker_protocol: dict[str, Any]


class ReachableAnswer(Shape):
    """Both backends answered."""

    status: Literal["ok"]
    version: str


class RefusalAnswer(Shape):
    """A refusal; `reason` is a stable word."""

    message: str
    reason: str
    request_id: str
    errors: dict[str, list[str]] | None = None
    """By field."""
    schedule_id: str | None = None
    outcome: Literal["trigger_failed"] = "trigger_failed"


REFUSED = Refusals(RefusalAnswer)
