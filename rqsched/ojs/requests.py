"""The requests of this surface and their schemas. Cron jobs in any published form become options of schedules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from fastapi import Depends, Header
from pydantic import BaseModel, Field
from starlette.requests import Request

from rqsched import FailurePolicy, RetryPolicy
from rqsched.api.options import MAX_DELAY, MAX_ERROR_TYPES
from rqsched.http.dependencies import wiring_of
from rqsched.http.examples import shown
from rqsched.http.openapi import request_body
from rqsched.http.request_bodies import json_body
from rqsched.ojs.errors import MEDIA_TYPE, VERSION, OjsError, invalid
from rqsched.when.duration import parse_span
from rqsched.when.zones import require_timezone


async def require_version(
    request: Request,
    ojs_version: Annotated[str | None, Header(alias="OJS-Version", description="The spec's version: 1.0.")] = None,
) -> None:
    """Refuse an unsupported version, after the authentication of the route. A missing header means 1.0."""
    if ojs_version is not None and ojs_version.strip() not in {VERSION, "1"}:
        if not request.url.path.endswith("/manifest"):
            wiring_of(request).authenticator.principal_of(request)
        raise OjsError(422, "unsupported", f"OJS-Version {ojs_version!r} is not supported; send {VERSION}.")


Versioned = Depends(require_version)
MEDIA_TYPES = (MEDIA_TYPE, "application/json")


async def read_body(request: Request) -> Any:
    """Read a body as strict JSON; None for an empty body. Raises OjsError for an unsupported media type."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given and given not in MEDIA_TYPES and await request.body():
        raise invalid(f"Content-Type {given[:100]!r} is not supported; send {MEDIA_TYPE} or application/json.")
    return await json_body(request)


Body = Annotated[Any, Depends(read_body)]
"""The parsed body, of any JSON type."""

_NAME = re.compile(r"[a-z0-9][a-z0-9\-.]{0,254}")
_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]{0,127}")
LEAST_VISIBILITY, MOST_VISIBILITY = 1_000, 86_400_000
"""Milliseconds for which a worker may hold a job without a heartbeat."""
Overlap = Literal["skip", "allow", "cancel_previous", "enqueue"]
Type = Annotated[str, Field(pattern=f"^{_TYPE.pattern}$", max_length=255)]
Queue = Annotated[str, Field(pattern=f"^{_QUEUE.pattern}$")]
Worker = Annotated[str, Field(min_length=1, max_length=255)]
Visibility = Annotated[int, Field(ge=LEAST_VISIBILITY, le=MOST_VISIBILITY)]
_WORKER = "The worker's own name: only the worker that holds a job may end it."
_VISIBILITY = "Milliseconds for which it holds the jobs without a heartbeat."


class TemplateRequest(BaseModel):
    """The job that a cron job starts."""

    type: Type | None = Field(default=None, description="What a worker executes, such as report.generate.")
    args: list[Any] | None = Field(default=None, description="The positional arguments.")
    options: dict[str, Any] | None = Field(
        default=None, description="The options of the job: queue, timeout, retry, priority, tags, meta."
    )
    meta: dict[str, Any] | None = Field(
        default=None, description="Values that the job carries; merged into those of the options."
    )


class ChangeRequest(TemplateRequest, json_schema_extra=shown({"cron": "0 3 * * *"})):
    """The changes to a cron job: at least one field."""

    cron: str | None = Field(default=None, description="Five or six fields, an alias, or @every.")
    expression: str | None = Field(default=None, description="The same as cron.")
    timezone: str | None = Field(default=None, description="IANA name.")
    job_template: TemplateRequest | None = Field(default=None, description="Instead of type, args and options.")
    overlap_policy: Overlap | None = Field(
        default=None, description="What a fire does while an earlier job is unfinished."
    )
    enabled: bool = Field(default=True, description="Whether it fires.")
    description: str | None = Field(default=None, description="Free text.")


class RegisterRequest(
    ChangeRequest,
    json_schema_extra=shown({"name": "nightly", "cron": "0 2 * * *", "type": "invoices.sync", "args": ["eu"]}),
):
    """A cron job: its name, `cron` or `expression`, and a type, flat or in `job_template`."""

    name: Annotated[str, Field(pattern=f"^{_NAME.pattern}$")] = Field(description="Its name, unique in the namespace.")


class FetchRequest(BaseModel, json_schema_extra=shown({"queues": ["default"], "worker_id": "go-1", "count": 5})):
    """The queues and the number of jobs that a worker fetches."""

    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)] = Field(
        description="The queues that it takes from, in this order."
    )
    worker_id: Worker | None = Field(default=None, description=_WORKER)
    count: Annotated[int, Field(ge=1)] = Field(default=1, description="How many jobs at most.")
    visibility_timeout_ms: Visibility | None = Field(default=None, description=_VISIBILITY)


class EndRequest(BaseModel):
    """The job that ended. `worker_id` and `attempt` show whether the worker still holds the job."""

    job_id: UUID = Field(description="The id of the job.")
    worker_id: Worker | None = Field(default=None, description=_WORKER)
    attempt: int | None = Field(default=None, description="The attempt that it ends; another one is refused.")


class AckRequest(
    EndRequest,
    json_schema_extra=shown(
        {"job_id": "0197a3c2-5f00-7000-8000-000000000001", "worker_id": "go-1", "result": {"rows": 12}}
    ),
):
    """A job that succeeded."""

    result: Any = Field(default=None, description="What the job returned.")


class NackRequest(
    EndRequest,
    json_schema_extra=shown(
        {
            "job_id": "0197a3c2-5f00-7000-8000-000000000001",
            "worker_id": "go-1",
            "error": {"code": "timeout", "message": "no answer in 30 s", "retryable": True},
        }
    ),
):
    """An attempt that failed. If its error contains `retryable: false`, no attempt follows."""

    error: Any = Field(default=None, description="Why it failed: an object with code, message and retryable.")


class HeartbeatRequest(
    BaseModel, json_schema_extra=shown({"worker_id": "go-1", "active_jobs": ["0197a3c2-5f00-7000-8000-000000000001"]})
):
    """A live worker and the jobs it executes."""

    worker_id: Worker = Field(description=_WORKER)
    active_jobs: Annotated[list[UUID], Field(max_length=1000)] = Field(
        default_factory=list, description="The jobs that it executes."
    )
    visibility_timeout_ms: Visibility | None = Field(default=None, description=_VISIBILITY)


REQUESTS = (RegisterRequest, ChangeRequest, FetchRequest, AckRequest, NackRequest, HeartbeatRequest)


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads this body."""
    return request_body(model, *MEDIA_TYPES)


_POLICIES = get_args(Overlap)
FIELDS = frozenset(ChangeRequest.model_fields)
"""The fields of a cron job except its name. System fields in a body are ignored."""
MAX_ATTEMPTS = 3
INITIAL_INTERVAL = timedelta(seconds=1)
COEFFICIENT = 2.0
MAX_INTERVAL = timedelta(minutes=5)
SPREAD = 0.5
"""The spread of delays with `jitter`: a delay is between 0.5 and 1.5 times the backoff's delay."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The fields of a cron job in one request; None for absent fields."""

    expression: str | None = None
    """`cron` or `expression`."""
    timezone: str | None = None
    """A valid IANA name."""
    type: str | None = None
    """The type of its jobs."""
    args: list[Any] | None = None
    """The arguments of its jobs."""
    options: Mapping[str, Any] | None = None
    """The options of its jobs, verbatim."""
    meta: Mapping[str, Any] | None = None
    """The `meta` that is sent outside the options. It is merged into the options' `meta`."""
    overlap_policy: str | None = None
    """An overlap policy of the spec."""
    enabled: bool | None = None
    """Whether it fires."""
    description: str | None = None
    """Free text."""
    has_description: bool = False
    """Whether the request contains a description, null included."""


def read_registration(body: Any) -> Registration:
    """Read any of the published forms: flat or with a `job_template`, and with `cron` or `expression`."""
    fields = require_object("body", body)
    template = require_object("job_template", fields.get("job_template") or {})
    flat = {key: template.get(key) if fields.get(key) is None else fields[key] for key in TemplateRequest.model_fields}
    expression, other = fields.get("cron"), fields.get("expression")
    if expression is not None and other is not None and expression != other:
        raise invalid("cron and expression differ; send one of them.")
    return Registration(
        expression=_text("cron", expression if expression is not None else other),
        timezone=None if (zone := _text("timezone", fields.get("timezone"))) is None else require_timezone(zone).key,
        type=_type(flat["type"]),
        args=_args(flat["args"]),
        options=_options(flat["options"]),
        meta=None if flat["meta"] is None else require_object("meta", flat["meta"]),
        overlap_policy=_overlap(fields.get("overlap_policy")),
        enabled=_enabled(fields),
        description=_text("description", fields.get("description")),
        has_description="description" in fields,
    )


def require_name(name: Any) -> str:
    """Check the name of a cron job."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid("name: use 1 to 255 of a-z 0-9 - . with a letter or digit first.", field="name")
    return name


def require_queue(name: Any) -> str:
    """Check the name of a queue."""
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise invalid("queue: use 1 to 128 of a-z 0-9 - . with a letter or digit first.", field="queue")
    return name


def require_object(field: str, value: Any) -> Mapping[str, Any]:
    """Check that a value is an object."""
    if not isinstance(value, Mapping):
        raise invalid(f"{field}: must be an object.", field=field)
    return value


def _text(field: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise invalid(f"{field}: must be a string.", field=field)
    return value


def _type(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 255 or not _TYPE.fullmatch(value):
        raise invalid("type: use dot-separated segments of a-z 0-9 _, such as report.generate.", field="type")
    return value


def _args(value: Any) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise invalid("args: must be an array.", field="args")
    return value


def _overlap(value: Any) -> str | None:
    if value is not None and value not in _POLICIES:
        raise invalid(f"overlap_policy: {value!r} is not one of {', '.join(_POLICIES)}.", field="overlap_policy")
    return value  # type: ignore[no-any-return]


def _enabled(fields: Mapping[str, Any]) -> bool | None:
    value = fields.get("enabled")
    if "enabled" in fields and not isinstance(value, bool):
        raise invalid("enabled: must be true or false.", field="enabled")
    return value


def _options(options: Any) -> Mapping[str, Any] | None:
    if options is None:
        return None
    fields = require_object("options", options)
    if fields.get("queue") is not None:
        require_queue(fields["queue"])
    require_object("options.meta", fields.get("meta") or {})
    tags = fields.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise invalid("options.tags: must be an array of strings.", field="options.tags")
    return fields


def number(field: str, value: Any) -> float | None:
    """Check a positive number; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**31 * 1000:
        raise invalid(f"{field}: must be a positive number.", field=field)
    return value


def whole(field: str, value: Any) -> int | None:
    """Check a whole number; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 10_000:
        raise invalid(f"{field}: must be a whole number.", field=field)
    return value


def job_options(registration: Registration, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the new job options, including `meta`; None if the request contains none."""
    if registration.options is None and registration.meta is None:
        return None
    options = dict(known if registration.options is None else registration.options)
    if registration.meta is not None:
        beside = {} if registration.options is None else registration.options.get("meta") or {}
        options["meta"] = {**beside, **registration.meta}
    return options


def our_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return job options as options of a schedule. Options without an equivalent are only stored verbatim."""
    return {
        "queue": options.get("queue"),
        "timeout": timeout_seconds(options),
        **_retry(options.get("retry")),
        "priority": whole("options.priority", options.get("priority")) or 0,
        "memo": memo_of(name, options),
    }


def memo_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memo of a cron job's runs: its `meta` and its name."""
    return {**(options.get("meta") or {}), "cron_name": name}


def timeout_seconds(options: Mapping[str, Any]) -> int | None:
    """Return the `timeout` in whole seconds, at least one; None if the options have no timeout."""
    seconds = number("options.timeout", options.get("timeout"))
    milliseconds = number("options.timeout_ms", options.get("timeout_ms"))
    value = seconds if seconds is not None else None if milliseconds is None else milliseconds / 1000
    return None if value is None else max(1, round(value))


def _retry(given: Any) -> dict[str, Any]:
    """Read a retry policy. Absent fields get the default of the spec."""
    fields = require_object("options.retry", given or {})
    attempts = whole("options.retry.max_attempts", fields.get("max_attempts"))
    if attempts is not None and attempts < 0:
        raise invalid("options.retry.max_attempts: must be at least 0.", field="options.retry.max_attempts")
    cap = _interval(fields, "max_interval") or MAX_INTERVAL
    factor = number("options.retry.backoff_coefficient", fields.get("backoff_coefficient"))
    return {
        "retry": RetryPolicy(
            max_retries=max(0, (MAX_ATTEMPTS if attempts is None else attempts) - 1),
            base=min(_interval(fields, "initial_interval") or INITIAL_INTERVAL, cap),
            factor=COEFFICIENT if factor is None else float(factor),
            cap=cap,
            then=FailurePolicy.CONTINUE,
        ),
        "retry_spread": SPREAD if _choice(fields, "jitter", (True, False)) else 0.0,
        "final_errors": _error_types(fields.get("non_retryable_errors")),
        "dead_letter": _choice(fields, "on_exhaustion", ("discard", "dead_letter")) == "dead_letter",
    }


def _choice(fields: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> Any:
    """Return the field's value, which must be allowed. If the field is absent, return the first allowed value."""
    value = fields.get(name)
    if value is None:
        return allowed[0]
    if not any(type(value) is type(one) and value == one for one in allowed):
        words = " or ".join(str(one).lower() for one in allowed)
        raise invalid(f"options.retry.{name}: must be {words}.", field=f"options.retry.{name}")
    return value


def _error_types(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    is_list = isinstance(value, list) and len(value) <= MAX_ERROR_TYPES
    if not is_list or not all(isinstance(one, str) and 0 < len(one) <= 255 for one in value):
        name = "options.retry.non_retryable_errors"
        raise invalid(f"{name}: must be an array of at most {MAX_ERROR_TYPES} error types.", field=name)
    return tuple(value)


def _interval(fields: Mapping[str, Any], name: str) -> timedelta | None:
    """Read an interval as ISO 8601, or in milliseconds under `{name}_ms`."""
    value, milliseconds = fields.get(name), fields.get(f"{name}_ms")
    if isinstance(value, str):
        span: timedelta | None = parse_span(value)
    else:
        length = number(f"options.retry.{name}", value if milliseconds is None else milliseconds)
        span = None if length is None else timedelta(milliseconds=length)
    if span is not None and span > MAX_DELAY:
        raise invalid(f"options.retry.{name}: must be at most {MAX_DELAY.days} days.", field=f"options.retry.{name}")
    return span
