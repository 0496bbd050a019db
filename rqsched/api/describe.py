"""Descriptions: everything one may want to know of a schedule, as plain values for people and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from rqsched.core.due import due_of
from rqsched.core.ids import iso_utc
from rqsched.core.lifecycle import anchored
from rqsched.core.model import Run, Schedule
from rqsched.core.payload import loads


@dataclass(frozen=True, slots=True)
class Description:
    """A schedule as `describe` shows it. Instants are aware UTC."""

    uid: str
    namespace: str
    schedule_id: str
    status: str
    status_reason: str | None
    workflow: str
    spec: dict[str, Any]
    timing: str
    """The spec in words."""
    timezone: str
    overlap_policy: str
    policies: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str | None
    connection: str | None
    timeout: int | None
    executor: str
    priority: int
    jitter_seconds: float
    max_runs: int | None
    remaining_actions: int | None
    labels: dict[str, str]
    memo: dict[str, Any]
    search_attributes: dict[str, Any]
    description: str | None
    owner: str | None
    note: str | None
    next_run_at: datetime | None
    """Nominal."""
    due_at: datetime | None
    """With jitter or backoff."""
    last_run_at: datetime | None
    run_count: int
    success_count: int
    error_count: int
    consecutive_failures: int
    skipped_count: int
    missed_count: int
    buffered_actions: int
    last_skip_reason: str | None
    last_skipped_at: datetime | None
    last_error: str | None
    current_retry: int
    """How many attempts of the newest run have failed so far."""
    latest_instance_id: str | None
    latest_run_uid: str | None
    position: int
    """`n` of the chain."""
    version: int
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    deleted_at: datetime | None

    def to_dict(self) -> dict[str, Any]:
        """Give JSON-native values; instants as ISO 8601 UTC."""
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in asdict(self).items()}


def describe(schedule: Schedule, latest: Run | None = None) -> Description:
    """Describe a schedule; `latest` is its newest run, when it is known."""
    definition, policies = schedule.definition, loads(schedule.definition.policies)
    action, defaults = loads(definition.action), loads(definition.defaults)
    same = {name: getattr(schedule, name) for name in _SAME_STATE}
    same |= {name: getattr(definition, name) for name in _SAME_DEFINITION}
    return Description(
        **same,
        status=schedule.status.value,
        spec=loads(definition.spec),
        timing=schedule.spec.describe(),
        timezone=schedule.spec.timezone,
        overlap_policy=schedule.policies.overlap.value,
        policies=policies,
        args=action["args"],
        kwargs=action["kwargs"],
        queue=definition.queue or defaults.get("queue"),
        connection=definition.connection or defaults.get("connection"),
        timeout=definition.timeout or defaults.get("timeout"),
        jitter_seconds=definition.jitter.total_seconds(),
        remaining_actions=schedule.remaining,
        labels=loads(definition.labels),
        memo=loads(definition.memo),
        search_attributes=loads(definition.search_attributes),
        buffered_actions=schedule.buffer_depth + schedule.backfill_waiting,
        current_retry=latest.attempt - 1 + (latest.status.value == "retrying") if latest else 0,
        position=schedule.n,
    )


_SAME_STATE = (
    "uid", "namespace", "schedule_id", "status_reason", "note", "next_run_at", "due_at", "last_run_at", "run_count",
    "success_count", "error_count", "consecutive_failures", "skipped_count", "missed_count", "last_skip_reason",
    "last_skipped_at", "last_error", "latest_instance_id", "latest_run_uid", "version", "created_at", "updated_at",
    "paused_at", "deleted_at",
)  # fmt: skip
_SAME_DEFINITION = ("workflow", "executor", "priority", "max_runs", "description", "owner")


def upcoming(schedule: Schedule, *, count: int, now: datetime) -> list[datetime]:
    """Name the next instants at which a schedule fires (jitter included), as far as they are known now."""
    return list(islice(iter_upcoming(schedule, now), count))


def iter_upcoming(schedule: Schedule, now: datetime) -> Iterator[datetime]:
    """Yield the next instants at which a schedule fires, lazily; nothing when it does not fire."""
    if not schedule.is_active or schedule.next_run_at is None or schedule.due_at is None:
        return
    yield schedule.due_at
    further = schedule.spec if schedule.spec.is_anchored else anchored(schedule.spec, now)
    if further.is_from_completion:
        return
    nominal = schedule.spec.next_after(max(schedule.next_run_at, now))
    while nominal is not None:
        yield due_of(schedule, nominal)
        nominal = schedule.spec.next_after(nominal)
