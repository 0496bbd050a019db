"""The shapes of what this surface is sent and answers, for the OpenAPI document; `registration` reads what is sent."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from rqsched.http.ojs.errors import MEDIA_TYPE
from rqsched.http.openapi import Refusals, Shape, request_body

Overlap = Literal["skip", "allow", "cancel_previous", "enqueue"]
Type = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", max_length=255)]
Queue = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-.]{0,127}$")]
Worker = Annotated[str, Field(min_length=1, max_length=255)]


# ---- sent: what is not said here is ignored


class TemplateBody(BaseModel):
    """The job that a cron job starts."""

    type: Type | None = None
    args: list[Any] | None = None
    options: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None


class ChangeBody(TemplateBody):
    """What changes of a cron job: at least one of these."""

    cron: str | None = Field(default=None, description="Five or six fields, an alias, or @every.")
    expression: str | None = Field(default=None, description="The same as cron.")
    timezone: str | None = Field(default=None, description="IANA name.")
    job_template: TemplateBody | None = Field(default=None, description="Instead of type, args and options.")
    overlap_policy: Overlap | None = None
    enabled: bool = True
    description: str | None = None


class RegisterBody(ChangeBody):
    """A cron job: its name, `cron` or `expression`, and a type, flat or in `job_template`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-.]{0,254}$")]


class FetchBody(BaseModel):
    """Which jobs a worker takes."""

    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)]
    worker_id: Worker
    count: Annotated[int, Field(ge=1, le=100)] = 1


class EndBody(BaseModel):
    """Which job ended; `worker_id` and `attempt` tell a worker that holds it no more."""

    job_id: UUID
    worker_id: Worker | None = None
    attempt: int | None = None


class AckBody(EndBody):
    """A job that succeeded."""

    result: Any = None


class NackBody(EndBody):
    """An attempt that failed; `retryable: false` in its error makes it the last."""

    error: Any = None


class HeartbeatBody(BaseModel):
    """A worker that lives, and what it executes."""

    worker_id: Worker
    active_jobs: Annotated[list[UUID], Field(max_length=1000)] = []


SENT = (RegisterBody, ChangeBody, FetchBody, AckBody, NackBody, HeartbeatBody)


def sent_as(model: type[BaseModel]) -> dict[str, Any]:
    """Give the `openapi_extra` of a route that reads this."""
    return request_body(model, "application/json", MEDIA_TYPE)


# ---- answered


class Template(Shape):
    """The job that a cron job starts."""

    type: str
    args: list[Any]
    options: dict[str, Any]


class Cron(Template):
    """A cron job, under the names of every published shape."""

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


class CronAnswer(Shape):
    """One cron job, under both names."""

    cron_job: Cron
    cron: Cron


class Pagination(Shape):
    """Where the list goes on."""

    total: int
    has_more: bool
    next_cursor: str | None


class CronsAnswer(Shape):
    """A page of cron jobs, under both names."""

    crons: list[Cron]
    cron_jobs: list[Cron]
    count: int
    """In all."""
    pagination: Pagination


class RemovedAnswer(Shape):
    """The cron job as it was."""

    deleted: Literal[True]
    name: str
    cron: Cron


class JobError(Shape):
    """Why the newest attempt failed."""

    message: str


class Job(Shape):
    """A run as the job it is for a worker; what is not known is absent."""

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


class JobAnswer(Shape):
    """One job."""

    job: Job


class JobsAnswer(Shape):
    """The jobs a worker was given."""

    jobs: list[Job]


class EndedAnswer(Shape):
    """What became of a job that a worker ended."""

    acknowledged: Literal[True]
    id: UUID
    job_id: UUID
    state: str
    attempt: int
    completed_at: datetime | None = None
    next_attempt_at: datetime | None = None


class HeartbeatAnswer(Shape):
    """What a worker still holds, and what it is to stop."""

    state: str
    active_jobs: list[UUID]
    jobs_to_cancel: list[UUID]
    server_time: datetime


class HealthAnswer(Shape):
    """Both backends answered."""

    status: Literal["ok"]
    version: str


class ManifestAnswer(Shape):
    """What is implemented."""

    ojs_version: str
    specversion: str
    implementation: dict[str, str]
    protocols: list[str]
    backend: str
    capabilities: dict[str, Any]


class ErrorFacts(Shape):
    """What was refused, and why."""

    code: str
    """A stable word."""
    message: str
    retryable: bool
    request_id: str
    details: dict[str, Any] | None = None


class ErrorAnswer(Shape):
    """An error in the spec's form."""

    error: ErrorFacts


REFUSED = Refusals(ErrorAnswer, MEDIA_TYPE)
