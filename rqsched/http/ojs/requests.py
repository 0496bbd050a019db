"""What this surface is sent: every published form of a cron job, checked, and the schemas of all bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Depends, Header
from pydantic import BaseModel, Field

from rqsched.http.ojs.errors import MEDIA_TYPE, VERSION, OjsError, invalid
from rqsched.http.openapi import request_body
from rqsched.spec.zones import require_timezone


async def require_version(
    ojs_version: Annotated[str | None, Header(alias="OJS-Version", description="The spec's version: 1.0.")] = None,
) -> None:
    """Refuse a version this does not speak; none means 1.0."""
    if ojs_version is not None and ojs_version.strip() not in {VERSION, "1"}:
        raise OjsError(422, "unsupported", f"OJS-Version {ojs_version!r} is not served; send {VERSION}.")


Versioned = Depends(require_version)


Overlap = Literal["skip", "allow", "cancel_previous", "enqueue"]
Type = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", max_length=255)]
Queue = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-.]{0,127}$")]
Worker = Annotated[str, Field(min_length=1, max_length=255)]


class TemplateRequest(BaseModel):
    """The job that a cron job starts."""

    type: Type | None = None
    args: list[Any] | None = None
    options: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None


class ChangeRequest(TemplateRequest):
    """What changes of a cron job: at least one of these."""

    cron: str | None = Field(default=None, description="Five or six fields, an alias, or @every.")
    expression: str | None = Field(default=None, description="The same as cron.")
    timezone: str | None = Field(default=None, description="IANA name.")
    job_template: TemplateRequest | None = Field(default=None, description="Instead of type, args and options.")
    overlap_policy: Overlap | None = None
    enabled: bool = True
    description: str | None = None


class RegisterRequest(ChangeRequest):
    """A cron job: its name, `cron` or `expression`, and a type, flat or in `job_template`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-.]{0,254}$")]


class FetchRequest(BaseModel):
    """Which jobs a worker takes."""

    queues: Annotated[list[Queue], Field(min_length=1, max_length=100)]
    worker_id: Worker
    count: Annotated[int, Field(ge=1, le=100)] = 1


class EndRequest(BaseModel):
    """Which job ended; `worker_id` and `attempt` tell a worker that holds it no more."""

    job_id: UUID
    worker_id: Worker | None = None
    attempt: int | None = None


class AckRequest(EndRequest):
    """A job that succeeded."""

    result: Any = None


class NackRequest(EndRequest):
    """An attempt that failed; `retryable: false` in its error makes it the last."""

    error: Any = None


class HeartbeatRequest(BaseModel):
    """A worker that lives, and what it executes."""

    worker_id: Worker
    active_jobs: Annotated[list[UUID], Field(max_length=1000)] = []


REQUESTS = (RegisterRequest, ChangeRequest, FetchRequest, AckRequest, NackRequest, HeartbeatRequest)


def sent_as(model: type[BaseModel]) -> dict[str, Any]:
    """Give the `openapi_extra` of a route that reads this."""
    return request_body(model, "application/json", MEDIA_TYPE)


_NAME = re.compile(r"[a-z0-9][a-z0-9\-.]{0,254}")
_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]{0,127}")
_POLICIES = ("skip", "allow", "cancel_previous", "enqueue")
_TEMPLATE = ("type", "args", "options", "meta")
FIELDS = frozenset(
    {
        "cron", "expression", "timezone", "type", "args", "options", "job_template", "meta", "overlap_policy",
        "enabled", "description",
    }
)  # fmt: skip
"""What a client may say beside the name; system fields it sends are ignored."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What one request says of a cron job; None is what it does not say."""

    expression: str | None = None
    timezone: str | None = None
    type: str | None = None
    args: list[Any] | None = None
    options: Mapping[str, Any] | None = None
    """Verbatim."""
    meta: Mapping[str, Any] | None = None
    """What was sent beside the options; it belongs into them."""
    overlap_policy: str | None = None
    enabled: bool | None = None
    description: str | None = None
    has_description: bool = False


def read_registration(body: Any) -> Registration:
    """Read any of the published shapes: flat, or with a `job_template`; `cron` or `expression`."""
    form = require_object("body", body)
    template = require_object("job_template", form.get("job_template") or {})
    flat = {key: template.get(key) if form.get(key) is None else form[key] for key in _TEMPLATE}
    expression, other = form.get("cron"), form.get("expression")
    if expression is not None and other is not None and expression != other:
        raise invalid("cron and expression contradict each other; send one of them.")
    return Registration(
        expression=_text("cron", expression if expression is not None else other),
        timezone=_timezone(form.get("timezone")),
        type=_type(flat["type"]),
        args=_args(flat["args"]),
        options=_options(flat["options"]),
        meta=None if flat["meta"] is None else require_object("meta", flat["meta"]),
        overlap_policy=_overlap(form.get("overlap_policy")),
        enabled=_enabled(form),
        description=_text("description", form.get("description")),
        has_description="description" in form,
    )


def require_name(name: Any) -> str:
    """Check a cron job's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid("name: use 1 to 255 of a-z 0-9 - . with a letter or digit first.", field="name")
    return name


def require_queue(name: Any) -> str:
    """Check a queue's name."""
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
        raise invalid(f"{field}: must be text.", field=field)
    return value


def _timezone(value: Any) -> str | None:
    name = _text("timezone", value)
    return None if name is None else require_timezone(name).key


def _type(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 255 or not _TYPE.fullmatch(value):
        raise invalid("type: write dot-separated segments of a-z 0-9 _, such as report.generate.", field="type")
    return value


def _args(value: Any) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise invalid("args: must be an array.", field="args")
    return value


def _overlap(value: Any) -> str | None:
    if value is not None and value not in _POLICIES:
        raise invalid(f"overlap_policy: {value!r} is not one of {', '.join(_POLICIES)}.", field="overlap_policy")
    return value  # type: ignore[no-any-return]


def _enabled(form: Mapping[str, Any]) -> bool | None:
    value = form.get("enabled")
    if "enabled" in form and not isinstance(value, bool):
        raise invalid("enabled: must be true or false.", field="enabled")
    return value


def _options(options: Any) -> Mapping[str, Any] | None:
    if options is None:
        return None
    form = require_object("options", options)
    if form.get("queue") is not None:
        require_queue(form["queue"])
    require_object("options.meta", form.get("meta") or {})
    tags = form.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise invalid("options.tags: must be an array of texts.", field="options.tags")
    return form


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
