"""The responses of this surface: cron jobs and jobs, in one superset of every published form, and their schemas."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from rqsched.chain.external_runs import Claimed
from rqsched.core.ids import uid_to_uuid
from rqsched.core.model import Run, RunStatus, Schedule, ScheduleStatus
from rqsched.core.payload import loads
from rqsched.core.policy import OverlapPolicy
from rqsched.http.ojs.errors import MEDIA_TYPE
from rqsched.http.openapi import Refusals, Schema
from rqsched.spec.duration import format_short
from rqsched.spec.spec import Every, Spec

_POLICIES = {
    OverlapPolicy.ALLOW_ALL: "allow",
    OverlapPolicy.CANCEL_OTHER: "cancel_previous",
    OverlapPolicy.BUFFER_ALL: "enqueue",
}
_STATES = {
    RunStatus.PENDING: "available",
    RunStatus.RUNNING: "active",
    RunStatus.RETRYING: "retryable",
    RunStatus.BUFFERED: "pending",
    RunStatus.SUCCEEDED: "completed",
    RunStatus.CANCELLED: "cancelled",
    RunStatus.TERMINATED: "cancelled",
    RunStatus.FAILED: "discarded",
    RunStatus.LOST: "discarded",
}


def at(instant: datetime | None) -> str | None:
    """Write an instant as RFC 3339 UTC with Z and milliseconds."""
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sent_fields(schedule: Schedule) -> dict[str, Any]:
    """Return what the client last sent, verbatim: expression and options."""
    found: dict[str, Any] = loads(schedule.definition.surface).get("ojs", {})
    return found


def expression_of(schedule: Schedule) -> str:
    """Return the expression as it was sent, if it is still current; else one derived from the spec."""
    expression, spec = sent_fields(schedule).get("expression"), schedule.spec
    if expression is not None and Spec.coerce(expression, spec.timezone).anchored_like(spec) == spec:
        return str(expression)
    if len(spec.members) == 1 and isinstance(every := spec.members[0], Every):
        return f"@every {format_short(every.every)}"
    return spec.primary_cron or spec.describe()


def cron_job(schedule: Schedule) -> dict[str, Any]:
    """Return a cron job."""
    definition, expression = schedule.definition, expression_of(schedule)
    options = sent_fields(schedule).get("options", {})
    args = loads(definition.action)["args"]
    is_enabled = schedule.status is ScheduleStatus.ACTIVE
    return {
        "name": schedule.schedule_id,
        "cron": expression,
        "expression": expression,
        "timezone": schedule.spec.timezone,
        "type": definition.workflow,
        "args": args,
        "options": options,
        "job_template": {"type": definition.workflow, "args": args, "options": options},
        "overlap_policy": _POLICIES.get(schedule.policies.overlap, schedule.policies.overlap.value),
        "enabled": is_enabled,
        "status": schedule.status.value,
        "description": definition.description,
        "last_run_at": at(schedule.last_run_at),
        "next_run_at": at(schedule.due_at) if is_enabled else None,
        "run_count": schedule.run_count,
        "created_at": at(schedule.created_at),
    }


def cron_response(schedule: Schedule) -> dict[str, Any]:
    """Return one cron job under both published names."""
    job = cron_job(schedule)
    return {"cron_job": job, "cron": job}


def state_of(run: Run) -> str:
    """Return a run's state as the spec names it."""
    return _STATES[run.status]


def job(claimed: Claimed, default_queue: str) -> dict[str, Any]:
    """Return a run as a job for a worker."""
    run, schedule = claimed.run, claimed.schedule
    action, options = loads(run.action), sent_fields(schedule).get("options", {})
    # queued_at moves with each retry; the cron triggered when the run was created.
    meta = {**loads(run.memo), "cron_name": schedule.schedule_id, "cron_triggered_at": at(run.created_at)}
    known = {
        "tags": options.get("tags"),
        "timeout": run.timeout,
        "kwargs": action["kwargs"] or None,
        "result": None if run.result is None else json.loads(run.result),
        "error": None if run.error is None else {"message": run.error},
        "started_at": at(run.started_at),
        "completed_at": at(run.ended_at),
    }
    return {
        "specversion": "1.0",
        "id": uid_to_uuid(run.uid),
        "type": run.workflow,
        "queue": run.queue or default_queue,
        "args": action["args"],
        "meta": meta,
        "state": state_of(run),
        "attempt": run.attempt,
        "max_attempts": schedule.policies.retry.max_retries + 1,
        "priority": run.priority,
        "created_at": at(run.created_at),
        "scheduled_at": at(run.occurrence_at),
        "enqueued_at": at(run.queued_at),
        **{name: value for name, value in known.items() if value is not None},
    }


class Template(Schema):
    """The job that a cron job starts."""

    type: str
    args: list[Any]
    options: dict[str, Any]


class Cron(Template):
    """A cron job, under the names of every published form."""

    name: str
    cron: str
    expression: str
    timezone: str
    job_template: Template
    overlap_policy: str
    enabled: bool
    status: str
    description: str | None
    last_run_at: datetime | None
    next_run_at: datetime | None
    run_count: int
    created_at: datetime


class CronResponse(Schema):
    """One cron job, under both names."""

    cron_job: Cron
    cron: Cron


class Pagination(Schema):
    """Where the list continues."""

    total: int
    has_more: bool
    next_cursor: str | None


class CronsResponse(Schema):
    """A page of cron jobs, under both names."""

    crons: list[Cron]
    cron_jobs: list[Cron]
    count: int
    """The number of all matching cron jobs."""
    pagination: Pagination


class RemovedResponse(Schema):
    """The removed cron job."""

    deleted: Literal[True]
    name: str
    cron: Cron


class JobError(Schema):
    """Why the newest attempt failed."""

    message: str


class Job(Schema):
    """A run as a job for a worker; unknown fields are absent."""

    specversion: str
    id: UUID
    type: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any] | None = None
    meta: dict[str, Any]
    state: Literal["available", "active", "retryable", "pending", "completed", "cancelled", "discarded"]
    attempt: int
    max_attempts: int
    priority: int
    tags: list[str] | None = None
    timeout: int | None = None
    result: Any = None
    error: JobError | None = None
    created_at: datetime
    scheduled_at: datetime
    enqueued_at: datetime | None
    started_at: datetime | None = None
    completed_at: datetime | None = None


class JobResponse(Schema):
    """One job."""

    job: Job


class JobsResponse(Schema):
    """The jobs that a worker claimed."""

    jobs: list[Job]


class EndedResponse(Schema):
    """The state of a job after its attempt ended."""

    acknowledged: Literal[True]
    id: UUID
    job_id: UUID
    state: str
    attempt: int
    completed_at: datetime | None = None
    next_attempt_at: datetime | None = None


class HeartbeatResponse(Schema):
    """The jobs that a worker still holds, and those it must stop."""

    state: str
    active_jobs: list[UUID]
    jobs_to_cancel: list[UUID]
    server_time: datetime


class HealthResponse(Schema):
    """Both backends responded."""

    status: Literal["ok"]
    version: str


class ManifestResponse(Schema):
    """What is implemented."""

    ojs_version: str
    specversion: str
    implementation: dict[str, str]
    protocols: list[str]
    backend: str
    capabilities: dict[str, Any]


class ErrorBody(Schema):
    """The error."""

    code: str
    """A stable identifier of the kind of error."""
    message: str
    retryable: bool
    request_id: str
    details: dict[str, Any] | None = None


class ErrorResponse(Schema):
    """An error in the spec's form."""

    error: ErrorBody


REFUSED = Refusals(ErrorResponse, MEDIA_TYPE)
