"""The description of a schedule, as plain values for people and JSON. Imports no SQL, cron or Redis: clients use it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from rqsched.core.ids import iso_utc


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
    overlap: str
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
    targets: str | None
    """What names the targets that a run calls its workflow for, its own or the workflow's; None without targets."""
    timeout: int | None
    """Seconds one attempt may take; None is the settings' run timeout."""
    executor: str
    """`rq` or `external`."""
    priority: int
    """Above 0, runs go to the front of their queue."""
    jitter: float
    """Seconds that a fire is delayed at most."""
    max_runs: int | None
    """How many runs may start in all; None is no limit."""
    remaining_runs: int | None
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
    buffered_count: int
    """Runs that wait for the run ahead of them, those of backfills included."""
    last_skip_reason: str | None
    """Why the newest skipped occurrence was skipped."""
    last_skipped_at: datetime | None
    """When the newest skip was recorded."""
    last_error: str | None
    """The error of the newest failed attempt or fire."""
    on_failure: str | None
    """The workflow that is told of failures, its own or the workflow's."""
    on_recovery: str | None
    """The workflow that is told of the first success after them."""
    expect_success_within: float | None
    """Seconds without a success after which it is overdue; None expects nothing."""
    overdue_since: datetime | None
    """Since when it has been without a success for as long as allowed; None when it is not."""
    last_success_at: datetime | None
    """When a run succeeded last; kept only while it expects successes."""
    notifications: dict[str, Any]
    """Where else it is told: `webhook` and `heartbeat` (their hosts), `events`, `sentry`."""
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
    blocked_reason: str | None = None
    """Which worker lacked what code for the newest run, when that one is blocked."""
    timing_in_words: str = ""
    """The spec as a phrase for people: `at 02:00, Monday to Friday, New York time`."""
    last_outcome: str | None = None
    """How the run that ended last did, such as `succeeded` or `failed`; None while none has."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values, the same objects where there are any; instants as ISO 8601 UTC."""
        return {  # a deep copy would be most of the cost of a list
            name: iso_utc(value) if type(value := getattr(self, name)) is datetime else value for name in _NAMES
        }


_NAMES = [field.name for field in fields(Description)]


@dataclass(frozen=True, slots=True)
class DeliveryDescription:
    """One notification: a message to a workflow, a webhook, a heartbeat or Sentry. Instants are aware UTC."""

    uid: str
    """Its identity."""
    kind: str
    """`workflow`, `webhook`, `heartbeat` or `sentry`."""
    destination: str
    """The workflow, the monitor, or of a URL, which may hold a secret, only the host."""
    event_type: str
    """The audit event, or what a ping says."""
    run_uid: str | None
    """The run it is about; None when it is about the schedule only."""
    status: str
    """`pending`, `running`, `succeeded` or `failed`."""
    attempt: int
    """The current attempt, from 1."""
    error: str | None
    """Why the newest attempt failed; None when none has."""
    message: dict[str, Any]
    """What is told."""
    created_at: datetime
    """When its transaction wrote it."""
    due_at: datetime
    """When it is attempted next, while it is pending."""
    started_at: datetime | None
    """When the newest attempt began; None before the first."""
    ended_at: datetime | None
    """When it arrived or was given up; None before."""
    worker: str | None
    """The process of the newest attempt; None before the first."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values; instants as ISO 8601 UTC."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in values}
