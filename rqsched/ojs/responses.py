"""The responses of this surface and their schemas.

The documents of Open Job Spec name some fields differently. Each response has these fields under all names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import ConfigDict

from rqsched import OverlapPolicy
from rqsched.api.external_runs import ClaimedRun, fence_of
from rqsched.api.values import loads, uid_to_uuid
from rqsched.config import Settings
from rqsched.errors import InvalidSpecError
from rqsched.http.openapi import ErrorLike, Refusals, Schema
from rqsched.ojs.errors import MEDIA_TYPE
from rqsched.ojs.requests import timeout_seconds
from rqsched.types import Run, RunStatus, Schedule, ScheduleStatus
from rqsched.when.duration import format_short
from rqsched.when.members import Cron as CronMember
from rqsched.when.spec import Every, Spec

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
    """Return the expression and the options that the client sent last, verbatim."""
    found: dict[str, Any] = loads(schedule.definition.surface).get("ojs", {})
    return found


def expression_of(schedule: Schedule) -> str:
    """Return the expression as it was sent. If the timing has changed since, derive an expression from the spec."""
    expression, spec = sent_fields(schedule).get("expression"), schedule.spec
    if expression is not None and _says(expression, spec):
        return str(expression)
    if len(spec.members) == 1 and isinstance(every := spec.members[0], Every):
        return f"@every {format_short(every.every)}"
    return spec.primary_cron or spec.describe()


def _says(expression: str, spec: Spec) -> bool:
    try:
        shown = spec.in_numbers()
        said = Spec(CronMember(expression, seconds="first"), spec.timezone, dst_gap=spec.dst_gap)
        return said.anchored_like(shown) == shown
    except InvalidSpecError:
        return False


def specs_beyond(schedule: Schedule) -> dict[str, Any] | None:
    """Return the whole spec of a schedule if one expression cannot express it, else None."""
    spec = schedule.spec
    is_said = _is_plain_interval(spec) or _says(expression_of(schedule), spec)
    return None if is_said else loads(schedule.definition.spec)


def _is_plain_interval(spec: Spec) -> bool:
    """Return whether `@every` can express the spec: one interval that starts at the registration and has no end."""
    if spec.newer or len(spec.members) > 1 or spec.start_at is not None or spec.end_at is not None or spec.exclude:
        return False
    member = spec.members[0]
    return isinstance(member, Every) and member.offset is None and not member.from_completion


def cron_job(schedule: Schedule) -> dict[str, Any]:
    """Return a cron job, with `x_specs` if `cron` does not express its whole timing."""
    definition, expression = schedule.definition, expression_of(schedule)
    options = sent_fields(schedule).get("options", {})
    args = loads(definition.action)["args"]
    is_enabled = schedule.status is ScheduleStatus.ACTIVE
    specs = specs_beyond(schedule)
    return {
        **({} if specs is None else {"x_specs": specs}),
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
    """Return a run's state as Open Job Spec names it."""
    return _STATES[run.status]


def attempt_of(run: Run) -> int:
    """Return the number of the newest execution: 0 before the first one."""
    is_waiting = run.status in {RunStatus.PENDING, RunStatus.BUFFERED} or run.started_at is None
    return run.attempt - 1 if is_waiting else run.attempt


def job(claimed: ClaimedRun, settings: Settings) -> dict[str, Any]:
    """Return a run as a job for a worker."""
    run, schedule = claimed.run, claimed.schedule
    action, options = loads(run.action), sent_fields(schedule).get("options", {})
    # Use created_at for the time of the trigger, because each retry changes queued_at.
    meta = {**loads(run.memo), "cron_name": schedule.schedule_id, "cron_triggered_at": at(run.created_at)}
    if run.traceparent is not None:
        meta["traceparent"] = run.traceparent
    errors = _errors(run)
    known = {
        "timeout": run.timeout,
        "x_kwargs": action["kwargs"] or None,
        "result": None if run.result is None else json.loads(run.result),
        "error": _last_error(run, errors),
        "errors": errors or None,
        "started_at": at(run.started_at),
        "x_fence": run.started_at and fence_of(run.started_at),
        _ENDED_AT.get(state_of(run), "completed_at"): at(run.ended_at),
        "next_attempt_at": at(run.retry_at),
    }
    return {
        "specversion": "1.0",
        "id": uid_to_uuid(run.uid),
        "type": run.workflow,
        "queue": run.queue or settings.default_queue,
        "args": action["args"],
        "meta": meta,
        "tags": options.get("tags") or [],
        "state": state_of(run),
        "attempt": attempt_of(run),
        "max_attempts": schedule.policies.retry.max_retries + 1,
        "timeout_ms": _timeout_ms(run, options, settings),
        "priority": run.priority,
        "created_at": at(run.created_at),
        "scheduled_at": at(run.occurrence_at),
        "enqueued_at": at(run.queued_at),
        **{name: value for name, value in known.items() if value is not None},
    }


_ENDED_AT = {"cancelled": "cancelled_at", "discarded": "discarded_at"}


def _timeout_ms(run: Run, options: Mapping[str, Any], settings: Settings) -> int:
    """Return the timeout that the client sent, if the run still has it; else the run's or the settings' timeout."""
    sent = options.get("timeout_ms")
    if sent is not None and options.get("timeout") is None and timeout_seconds(options) == run.timeout:
        return int(sent)
    return 1000 * (run.timeout or max(1, int(settings.run_timeout.total_seconds())))


def _errors(run: Run) -> list[dict[str, Any]]:
    """Return the error of each failed attempt as it was sent, with the number of the attempt and the time."""
    return [
        {**_error_of(entry), "attempt": entry["attempt"], "occurred_at": at(datetime.fromisoformat(entry["ended_at"]))}
        for entry in json.loads(run.attempts)
        if entry["outcome"] in {"failed", "lost"}
    ]


def _error_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    if (sent := entry.get("details")) is not None:
        return dict(sent)
    message = entry["error"] or "failed"
    is_timeout = message.startswith("timeout:")
    code = "x_lost" if entry["outcome"] == "lost" else "timeout" if is_timeout else "handler_error"
    return {"code": code, "message": message, "retryable": True}


def _last_error(run: Run, errors: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if run.error is None:
        return None
    if run.status in _WITH_ERROR and errors:
        return {name: value for name, value in errors[-1].items() if name not in {"attempt", "occurred_at"}}
    return {"code": "cancelled" if state_of(run) == "cancelled" else "handler_error", "message": run.error}


_WITH_ERROR = frozenset(RunStatus) - {RunStatus.CANCELLED, RunStatus.TERMINATED}


class Template(Schema):
    """The job that a cron job starts."""

    type: str
    """The name of a workflow, or the type that an external worker handles."""
    args: list[Any]
    """The positional arguments."""
    options: dict[str, Any]
    """The options of the job, as they were sent."""


class Cron(Template):
    """A cron job, under the names of every published form."""

    x_specs: dict[str, Any] | None = None
    """The complete timing, if `cron` cannot express it."""
    name: str
    """Its name, unique in the namespace."""
    cron: str
    """The cron expression, or `@every` with a length."""
    expression: str
    """The same as `cron`."""
    timezone: str
    """The IANA zone in which it is read."""
    job_template: Template
    """The same job under the name of another published form."""
    overlap_policy: str
    """How a fire treats an unfinished earlier job: `skip`, `allow`, `cancel_previous` or `enqueue`."""
    enabled: bool
    """Whether it fires."""
    status: str
    """The status of the schedule: active, paused, done or dead."""
    description: str | None
    """Free text."""
    last_run_at: datetime | None
    """When its newest job was started."""
    next_run_at: datetime | None
    """When it fires next; None while it does not fire."""
    run_count: int
    """How many jobs it has started."""
    created_at: datetime
    """When it was registered."""


class CronResponse(Schema):
    """One cron job, under both names."""

    cron_job: Cron
    """The cron job."""
    cron: Cron
    """The same."""


class Pagination(Schema):
    """The position in a list."""

    total: int
    """How many items match in all."""
    has_more: bool
    """Whether another page follows."""
    next_cursor: str | None
    """The `cursor` of the next page; None on the last page."""


class OffsetPagination(Pagination):
    """The position in a list, with `limit` and `offset` of the request."""

    limit: int
    """The size of a page, as requested."""
    offset: int
    """The start of the page, as requested."""


class CronsResponse(Schema):
    """A page of cron jobs, under both names."""

    crons: list[Cron]
    """The cron jobs of this page."""
    cron_jobs: list[Cron]
    """The same."""
    count: int
    """The number of all matching cron jobs."""
    pagination: Pagination
    """The total, and the cursor of the next page."""


class RemovedResponse(Schema):
    """The removed cron job."""

    deleted: Literal[True]
    """Always true."""
    name: str
    """The name of the cron job."""
    cron: Cron
    """The cron job as it was."""


class JobError(Schema):
    """Why an attempt failed, as its worker sent it."""

    model_config = ConfigDict(extra="allow")

    code: Any = None
    """The kind of error, such as `handler_error`, `timeout` or `x_lost`."""
    message: Any = None
    """What went wrong."""
    retryable: Any = None
    """Whether another attempt makes sense."""


class AttemptError(JobError):
    """The error of one attempt."""

    attempt: int
    """The number of the attempt."""
    occurred_at: datetime
    """When it failed."""


class Job(Schema):
    """A run as a job for a worker. Fields without a value are absent."""

    specversion: str
    """The version of the spec."""
    id: UUID
    """The id of the job: the uid of the run in the form of a UUID."""
    type: str
    """The name of the workflow, or the type that the worker handles."""
    queue: str
    """The queue that it waits on."""
    args: list[Any]
    """The positional arguments."""
    x_kwargs: dict[str, Any] | None = None
    """The keyword arguments, if it has any."""
    meta: dict[str, Any]
    """The memo of the schedule and the name of the cron job."""
    state: Literal["available", "active", "retryable", "pending", "completed", "cancelled", "discarded"]
    """Its state as the spec names it."""
    attempt: int
    """The number of the newest execution; 0 before the first."""
    max_attempts: int
    """How many attempts it has, the first one included."""
    priority: int
    """The priority. Jobs with a larger number are fetched first."""
    tags: list[str]
    """The tags of its options."""
    timeout: int | None = None
    """Seconds that an attempt may take."""
    timeout_ms: int
    """The timeout in milliseconds. If the job has no timeout, this is the default of the settings."""
    result: Any = None
    """The value that the worker returned."""
    error: JobError | None = None
    """Why the newest attempt failed."""
    errors: list[AttemptError] | None = None
    """Why each attempt failed, oldest first."""
    created_at: datetime
    """When the run was created."""
    scheduled_at: datetime
    """The occurrence of the run."""
    enqueued_at: datetime | None
    """When it was put on its queue; None if it is not there yet."""
    started_at: datetime | None = None
    """When its newest attempt began."""
    x_fence: int | None = None
    """The fencing token of the newest execution. It is larger than the tokens of the job's earlier executions."""
    completed_at: datetime | None = None
    """When it succeeded."""
    cancelled_at: datetime | None = None
    """When it was cancelled."""
    discarded_at: datetime | None = None
    """When it failed for good."""
    next_attempt_at: datetime | None = None
    """When its next attempt may begin."""


class JobResponse(Schema):
    """One job."""

    job: Job
    """The job."""


class JobsResponse(Schema):
    """The jobs that a worker claimed."""

    jobs: list[Job]
    """The jobs. If no more jobs wait, there are fewer than requested, or none."""


class CancelledJob(Job):
    """A job that was cancelled."""

    state: Literal["cancelled"]
    """Always `cancelled`."""
    previous_state: str
    """The state of the job before the cancel."""


class CancelledResponse(Schema):
    """The outcome of a cancel."""

    job: CancelledJob
    """The job."""


class AcknowledgedResponse(Schema):
    """A job that succeeded."""

    acknowledged: Literal[True]
    """Always true: the success is recorded."""
    job_id: UUID
    """The id of the job."""
    state: Literal["completed"]
    """Always `completed`."""
    completed_at: datetime
    """When it was recorded."""


class FailedResponse(Schema):
    """The outcome of a failed attempt: either `next_attempt_at`, or `discarded_at` if no attempt follows."""

    job_id: UUID
    """The id of the job."""
    state: Literal["retryable", "discarded"]
    """Whether another attempt follows."""
    attempt: int
    """The number of the attempt that failed."""
    max_attempts: int
    """How many attempts it has."""
    next_attempt_at: datetime | None = None
    """When the next attempt may begin."""
    discarded_at: datetime | None = None
    """When the job failed for good."""


class HeartbeatResponse(Schema):
    """The jobs that a worker still holds, and the jobs that it must stop."""

    state: Literal["running", "quiet", "terminate"]
    """The worker's instruction: continue, fetch nothing more, or end."""
    jobs_extended: list[UUID]
    """The jobs that it holds for another visibility timeout."""
    x_jobs_cancelled: list[UUID]
    """The jobs that it must stop: cancelled, or given to another worker."""
    server_time: datetime
    """The server's clock."""


class DeadLettersResponse(Schema):
    """A page of dead letters, the newest first."""

    jobs: list[Job]
    """The dead letters of this page."""
    pagination: OffsetPagination
    """The total, and the cursor of the next page."""


class RetriedJob(Job):
    """A dead letter that is tried again."""

    re_enqueued_at: datetime
    """When it was put on its queue again."""


class RetriedResponse(Schema):
    """The outcome of a dead letter's retry."""

    job: RetriedJob
    """The job."""


class ForgottenResponse(Schema):
    """A dead letter that was removed."""

    deleted: Literal[True]
    """Always true."""
    job_id: UUID
    """The id of the job."""


class HealthResponse(Schema):
    """Both backends responded."""

    status: Literal["ok"]
    """Always `ok`."""
    version: str
    """The version of rqsched."""


class ManifestResponse(Schema):
    """The parts of the spec that this server implements."""

    ojs_version: str
    """The version of the spec."""
    specversion: str
    """The same as `ojs_version`."""
    implementation: dict[str, str]
    """Name, version and language of this server."""
    protocols: list[str]
    """The bindings that it serves."""
    backend: str
    """The system that keeps jobs."""
    conformance_level: int | None
    """Always None, because level 0 requires that clients can enqueue single jobs, which this server does not offer."""
    capabilities: dict[str, Any]
    """For each optional feature of the spec, whether the server has it."""
    extensions: list[str]
    """The extensions of the spec that it serves."""
    endpoints: dict[str, str]
    """The paths of manifest and health."""
    x_chapters: dict[str, str]
    """The chapters of the HTTP binding: `served`, `partly` or `not served`."""


class ErrorBody(Schema):
    """The error."""

    code: str
    """A stable identifier of the kind of error."""
    message: str
    """The cause and the remedy."""
    retryable: bool
    """Whether the same request may succeed later."""
    request_id: str
    """The id of the request, which the server's log has."""
    details: dict[str, Any] | None = None
    """Values that belong to the error, such as the refused field."""


class ErrorResponse(Schema):
    """An error in the spec's form."""

    error: ErrorBody
    """The error."""


REFUSED = Refusals(
    ErrorResponse,
    (
        (400, "invalid_request"), (401, "x_unauthorized"), (403, "x_forbidden"), (403, "x_quota_exceeded"),
        (404, "not_found"),
        (408, "x_too_slow"), (413, "x_too_large"), (415, "x_unsupported_media_type"), (422, "unsupported"),
        (429, "rate_limited"), (500, "backend_error"), (503, "backend_error"),
    ),
    MEDIA_TYPE,
)  # fmt: skip
TAKEN: ErrorLike = (409, "duplicate")
"""The error if the name belongs to a schedule whose timing no cron job can express."""
WRONG_STATE: ErrorLike = (409, "invalid_request")
"""The error if the current state does not allow the operation."""
