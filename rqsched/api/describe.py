"""Descriptions: all that is known about a schedule, as plain values for people and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from rqsched.core.ids import iso_utc
from rqsched.core.lifecycle import anchored
from rqsched.core.model import Run, Schedule
from rqsched.core.occurrences import due_of
from rqsched.core.payload import loads


@dataclass(frozen=True, slots=True)
class Description:
    """A schedule as `describe` shows it. Instants are aware UTC."""

    uid: str
    """The incarnation: new after delete and re-create."""
    namespace: str
    """The namespace of the id."""
    schedule_id: str
    """The id its owner chose."""
    status: str
    """`active`, `paused`, `done`, `dead` or `deleted`."""
    status_reason: str | None
    """Why it is paused, done, dead or deleted."""
    workflow: str
    """The name of the workflow its runs execute."""
    spec: dict[str, Any]
    """The spec in its JSON form."""
    timing: str
    """The spec in words."""
    timezone: str
    """IANA name, of cron expressions that name none."""
    overlap_policy: str
    """What a fire does while an earlier run is unfinished; see OverlapPolicy."""
    policies: dict[str, Any]
    """All policies in their JSON form."""
    args: list[Any]
    """Positional arguments of the workflow."""
    kwargs: dict[str, Any]
    """Keyword arguments of the workflow."""
    queue: str | None
    """The queue of its runs, its own or the workflow's; None is the settings' default."""
    connection: str | None
    """The named Redis of its runs, its own or the workflow's; None is the settings' Redis."""
    timeout: int | None
    """Seconds one attempt may take; None is the settings' run timeout."""
    executor: str
    """`rq` or `external`."""
    priority: int
    """Above 0, runs go to the front of their queue."""
    jitter_seconds: float
    """The most a fire is delayed."""
    max_runs: int | None
    """How many runs may start in all; None is no limit."""
    remaining_actions: int | None
    """How many runs may still start; None is no limit."""
    labels: dict[str, str]
    """Short texts to filter by, copied to each run."""
    memo: dict[str, Any]
    """Copied to each run."""
    search_attributes: dict[str, Any]
    """Values to query by, copied to each run."""
    description: str | None
    """Free text for people."""
    owner: str | None
    """Who owns it."""
    note: str | None
    """The note given last, by create or a later operation."""
    next_run_at: datetime | None
    """The nominal time of the next occurrence; None while paused, ended or awaiting a run."""
    due_at: datetime | None
    """When the next occurrence may fire: with jitter or backoff."""
    last_run_at: datetime | None
    """When the newest run started."""
    run_count: int
    """Runs that have started, of every kind."""
    success_count: int
    """Runs that have succeeded."""
    error_count: int
    """Attempts that have failed."""
    consecutive_failures: int
    """Runs that have failed in a row."""
    skipped_count: int
    """Occurrences that were skipped."""
    missed_count: int
    """Occurrences that passed without a fire."""
    buffered_actions: int
    """Runs that wait for the run ahead of them, those of backfills included."""
    last_skip_reason: str | None
    """Why the newest skipped occurrence was skipped."""
    last_skipped_at: datetime | None
    """When the newest skip was recorded."""
    last_error: str | None
    """The error of the newest failed attempt or fire."""
    current_retry: int
    """How many attempts of the newest run have failed so far."""
    latest_instance_id: str | None
    """The instance id of the newest run."""
    latest_run_uid: str | None
    """The uid of the newest run."""
    position: int
    """`n`, the position in the chain of links."""
    version: int
    """Changes with every change a user makes; for `if_version`."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When its row was written last."""
    paused_at: datetime | None
    """When it was paused; None unless it is."""
    deleted_at: datetime | None
    """When it was deleted; None unless it is."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values; instants as ISO 8601 UTC."""
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in asdict(self).items()}


def describe(schedule: Schedule, latest: Run | None = None) -> Description:
    """Describe a schedule; `latest` is its newest run, if it has one."""
    definition, policies = schedule.definition, schedule.policies.plain()
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
    """Return the next instants at which a schedule fires (jitter included), as far as they are known now."""
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
