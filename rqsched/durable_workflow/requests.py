"""Read the requests of this surface: the version header, the bodies (as our options), list queries and page tokens.

A query combines equalities with AND. A page token is valid only for the namespace and filters of its list.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Header
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.requests import Request

from rqsched import CommandContext, FailurePolicy, OverlapPolicy, RetryPolicy
from rqsched.api.cursors import read_cursor
from rqsched.api.list_filters import narrowed
from rqsched.api.schedules import Filters
from rqsched.api.values import MEMO_BYTES, iso_utc, json_text
from rqsched.durable_workflow.errors import VERSION, VERSION_HEADER, PageTokenError, ReasonError
from rqsched.durable_workflow.responses import arguments_of
from rqsched.errors import InvalidInputError, InvalidLimitError, InvalidPayloadError, InvalidSpecError
from rqsched.http.dependencies import Call, SignedIn
from rqsched.http.examples import shown
from rqsched.http.middleware import tag_of
from rqsched.types import ScheduleStatus
from rqsched.when.spec import Spec, require_no_place

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TIMEOUTS = (
    "run_timeout_seconds",
    "workflow_run_timeout_seconds",
    "workflow_run_timeout",
    "execution_timeout_seconds",
    "workflow_execution_timeout_seconds",
    "workflow_execution_timeout",
)
"""The fields that set a timeout. The first of them that is sent is used. The fields for an attempt come first, because
an attempt may take no longer than its run. Names without a unit are older names; their values are in seconds."""
DEFAULTS: Mapping[str, Any] = {"on_max_runs": "delete", "retry": RetryPolicy(then=FailurePolicy.CONTINUE)}
"""The defaults of this surface. A schedule is deleted when it reaches `max_runs`; failed runs do not end it."""
MAX_HEADER = 256
"""The maximum number of characters of a header that are recorded."""
_SPEC_KEYS = {"cron_expressions", "intervals", "timezone"}
_STATUSES = {"active": ScheduleStatus.ACTIVE.value, "paused": ScheduleStatus.PAUSED.value}
SHOWN = ("active", "paused", "dead")
"""The statuses of listed schedules. Done schedules are not listed: to this surface they are deleted."""

Note = Annotated[str, Field(max_length=1_000)]
Jitter = Annotated[int, Field(ge=0, le=3_600, strict=True)]
MaxRuns = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Overlap = Annotated[str, Field(max_length=32)]
_NOTE = "A note for the next operator."
_OVERLAP = "What a fire does while an earlier run is unfinished."


class RequestBody(BaseModel):
    """A body. Unknown fields are ignored, as the server that this surface imitates does."""

    model_config = ConfigDict(extra="ignore")


class DurableUpdateRequest(RequestBody, json_schema_extra=shown({"overlap_policy": "buffer_one"})):
    """The body of PUT. Absent fields keep their values."""

    spec: dict[str, Any] | None = Field(
        default=None, description="When it fires: cron_expressions, intervals, timezone."
    )
    action: dict[str, Any] | None = Field(
        default=None, description="What it runs: workflow_type, input, task_queue and timeouts."
    )
    overlap_policy: Overlap | None = Field(default=None, description=_OVERLAP)
    jitter_seconds: Jitter | None = Field(default=None, description="The most that a fire is delayed.")
    max_runs: MaxRuns | None = Field(default=None, description="How many runs may start.")
    memo: dict[str, Any] | None = Field(default=None, description="JSON values that its runs carry.")
    search_attributes: dict[str, Any] | None = Field(default=None, description="JSON values to query by.")
    note: Note | None = Field(default=None, description=_NOTE)
    paused: Annotated[bool, Field(strict=True)] | None = Field(default=None, description="Whether it is paused.")


class DurableCreateRequest(
    DurableUpdateRequest,
    json_schema_extra=shown(
        {
            "schedule_id": "nightly",
            "spec": {"cron_expressions": ["0 2 * * *"]},
            "action": {"workflow_type": "invoice-sync"},
        }
    ),
):
    """The body of POST."""

    schedule_id: Annotated[str, Field(max_length=128)] | None = Field(
        default=None, description="The id; absent, a new one is drawn."
    )


class DurableNoteRequest(RequestBody, json_schema_extra=shown({"note": "the bank is closed"})):
    """The body of pause and resume."""

    note: Note | None = Field(default=None, description=_NOTE)


class DurableTriggerRequest(RequestBody, json_schema_extra=shown({"overlap_policy": "allow_all"})):
    """The body of trigger."""

    overlap_policy: Overlap | None = Field(default=None, description="Instead of the policy of the schedule.")


class DurableBackfillRequest(
    RequestBody, json_schema_extra=shown({"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-08T00:00:00Z"})
):
    """The body of backfill."""

    start_time: AwareDatetime = Field(description="The first instant, inclusive.")
    end_time: AwareDatetime = Field(description="The end, exclusive; never after now.")
    overlap_policy: Overlap | None = Field(default=None, description="Instead of the policy of the schedule.")


def require_schedule_id(schedule_id: str) -> str:
    """Check a schedule id, which may have at most 128 characters on this surface."""
    if not _ID.fullmatch(schedule_id):
        raise ReasonError(
            422,
            "validation_failed",
            f"schedule_id: {schedule_id!r} is not valid; use 1 to 128 of A-Z a-z 0-9 . _ : -, a letter or digit first.",
        )
    return schedule_id


async def require_version(
    principal: SignedIn,
    version: Annotated[str | None, Header(alias=VERSION_HEADER, description="The control plane's version: 2.")] = None,
) -> None:
    """Refuse a request without the header of version 2. The token is checked first."""
    del principal
    if version is None:
        raise ReasonError(400, "missing_control_plane_version", f"the header {VERSION_HEADER}: {VERSION} is required.")
    if version.strip() != VERSION:
        raise ReasonError(
            400, "unsupported_control_plane_version", f"version {version!r} is not supported; send {VERSION}."
        )


Versioned = Depends(require_version)


def spec_of(fields: dict[str, Any]) -> Spec:
    """Read `{cron_expressions, intervals, timezone}`; raises InvalidSpecError."""
    if unknown := sorted(set(fields) - _SPEC_KEYS):
        raise InvalidSpecError("spec", f"unknown key {unknown[0]!r}; the keys are {', '.join(sorted(_SPEC_KEYS))}")
    given = {"timezone": "UTC", **{key: value for key, value in fields.items() if value is not None}}
    given["intervals"] = [_interval(interval) for interval in given.get("intervals", []) or []]
    return require_no_place(Spec.from_json(given))


def _interval(fields: Any) -> Any:
    if not isinstance(fields, dict):
        return fields
    if unknown := sorted(set(fields) - {"every", "offset"}):
        raise InvalidSpecError("when.intervals", f"unknown key {unknown[0]!r}; the keys are every, offset")
    return {key: value for key, value in fields.items() if value is not None}


def workflow_of(action: dict[str, Any]) -> str:
    """Read `workflow_type`."""
    name = action.get("workflow_type")
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise ReasonError(422, "validation_failed", "action.workflow_type: is required: the name of a workflow type.")
    return name


def options_of(body: DurableUpdateRequest) -> dict[str, Any]:
    """Return the fields that the body contains, and the keys of its action, as our options."""
    given = body.model_dump(exclude_unset=True)
    options: dict[str, Any] = {}
    if given.get("overlap_policy") is not None:
        options["overlap"] = OverlapPolicy.of(given["overlap_policy"])
    if given.get("jitter_seconds") is not None:
        options["jitter"] = timedelta(seconds=given["jitter_seconds"])
    for name in ("max_runs", "search_attributes"):
        if name in given:
            options[name] = given[name]
    if "memo" in given:
        options["memo"] = _memo(given["memo"])
    sent = body.action or {}
    if "input" in sent:
        options["args"] = arguments_of(sent["input"])
    if "task_queue" in sent:
        options["queue"] = sent["task_queue"]
    if any(name in sent for name in _TIMEOUTS):
        options["timeout"] = next((sent[name] for name in _TIMEOUTS if sent.get(name) is not None), None)
    return options


def _memo(memo: dict[str, Any] | None) -> dict[str, Any]:
    try:
        json_text("memo", memo or {}, MEMO_BYTES)
    except InvalidPayloadError as error:
        reason = "memo_too_large" if "limit" in error.reason else "validation_failed"
        raise ReasonError(422, reason, str(error)) from error
    return memo or {}


def command_context(call: Call, request: Request, schedule_id: str, command: str) -> CommandContext:
    """Return the audit context: the caller and the command, in the form that the protocol records."""
    principal = call.principal
    context = {
        "request": {
            "method": request.method,
            "path": request.url.path,
            "ip": request.client.host if request.client else None,
            "user_agent": request.headers.get("user-agent", "")[:MAX_HEADER] or None,
            "request_id": tag_of(request).request_id,
        },
        "auth": {
            "method": "token" if request.headers.get("authorization") else "none",
            "role": principal.role.name.lower(),
            "principal": principal.name,
        },
        "server": {"namespace": call.namespace, "workflow_id": schedule_id, "command": f"schedule.{command}"},
    }
    return CommandContext(source="control_plane", context=context, traceparent=call.traceparent)


def filters_of(namespace: str, status: str | None, workflow_type: str | None, query: str | None) -> Filters:
    """Read the filters of a list; raises ReasonError 422."""
    filters = Filters(namespace=namespace, statuses=_statuses(status), workflow=workflow_type)
    try:
        return narrowed(filters, query or "", _statuses)
    except InvalidInputError as error:
        raise ReasonError(422, "invalid_query", str(error), field="query") from None


def _statuses(status: str | None) -> tuple[str, ...]:
    if status is None:
        return SHOWN
    if status not in _STATUSES:
        raise ReasonError(422, "invalid_status", f"status: {status!r} is not one of active, paused.", field="status")
    # A dead schedule shows as paused.
    return (_STATUSES[status], "dead") if status == "paused" else (_STATUSES[status],)


def encode_token(cursor: str | None, namespace: str, filters: Filters) -> str | None:
    """Return the page token of a cursor. It is valid only with this namespace and these filters."""
    if cursor is None:
        return None
    text = json.dumps([cursor, namespace, _digest(filters)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_token(token: str | None, namespace: str, filters: Filters) -> str | None:
    """Return the cursor of a page token; raises ReasonError: malformed 400, other namespace 403, other filters 409."""
    if not token:
        return None
    try:
        cursor, of_namespace, digest = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise PageTokenError(400, "invalid_page_token", "next_page_token is malformed.") from None
    if not isinstance(cursor, str):
        raise PageTokenError(400, "invalid_page_token", "next_page_token is malformed.")
    if of_namespace != namespace:
        raise PageTokenError(403, "page_token_namespace_mismatch", "next_page_token belongs to another namespace.")
    if digest != _digest(filters):
        raise PageTokenError(
            409,
            "page_token_filter_mismatch",
            "next_page_token belongs to other filters; start again without it.",
            last_safe_cursor=_position(cursor),
        )
    return cursor


def _position(cursor: str) -> dict[str, Any] | None:
    """Return the position in the list to which the token belongs, so that a client can continue that list."""
    try:
        created_at, uid = read_cursor(cursor.partition("~")[0])
    except InvalidLimitError:
        return None
    return {"created_at": iso_utc(created_at), "schedule_ulid": uid}


def _digest(filters: Filters) -> str:
    statuses = sorted(filters.statuses)
    return hashlib.sha256(repr(replace(filters, statuses=statuses)).encode()).hexdigest()[:16]
