"""What this surface is sent, checked, and said in our options."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from rqsched.core.payload import MEMO_BYTES, json_text
from rqsched.core.policy import Exhausted, OverlapPolicy, RetryPolicy
from rqsched.errors import InvalidPayloadError, InvalidSpecError
from rqsched.http.durable_workflow.errors import ReasonError
from rqsched.http.durable_workflow.responses import arguments_of
from rqsched.spec.spec import Spec

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TIMEOUTS = (
    "run_timeout_seconds",
    "workflow_run_timeout_seconds",
    "execution_timeout_seconds",
    "workflow_execution_timeout_seconds",
)
"""The tightest first: an attempt may take no longer than its run."""
_SPEC_KEYS = {"cron_expressions", "intervals", "timezone"}

Note = Annotated[str, Field(max_length=1_000)]
Jitter = Annotated[int, Field(ge=0, le=3_600, strict=True)]
MaxRuns = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Overlap = Annotated[str, Field(max_length=32)]


class Body(BaseModel):
    """A body; fields it does not know are refused by nobody, as the server this imitates has it."""

    model_config = ConfigDict(extra="ignore")


class UpdateBody(Body):
    """What PUT may change; what is absent stays."""

    spec: dict[str, Any] | None = None
    action: dict[str, Any] | None = None
    overlap_policy: Overlap | None = None
    jitter_seconds: Jitter | None = None
    max_runs: MaxRuns | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    note: Note | None = None
    paused: Annotated[bool, Field(strict=True)] | None = None


class CreateBody(UpdateBody):
    """What POST takes."""

    schedule_id: Annotated[str, Field(max_length=128)] | None = None


class NoteBody(Body):
    """What pause and resume take."""

    note: Note | None = None


class TriggerBody(Body):
    """What trigger takes."""

    overlap_policy: Overlap | None = None


class BackfillBody(Body):
    """What backfill takes."""

    start_time: AwareDatetime
    end_time: AwareDatetime
    overlap_policy: Overlap | None = None


def require_schedule_id(schedule_id: str) -> str:
    """Check an id: at most 128 characters here."""
    if not _ID.fullmatch(schedule_id):
        raise ReasonError(422, "validation_failed", f"schedule_id: {schedule_id!r} is refused.")
    return schedule_id


def spec_of(form: dict[str, Any]) -> Spec:
    """Read `{cron_expressions, intervals, timezone}`; raises InvalidSpecError."""
    if unknown := sorted(set(form) - _SPEC_KEYS):
        raise InvalidSpecError("spec", f"unknown key {unknown[0]!r}; the keys are {', '.join(sorted(_SPEC_KEYS))}")
    given = {key: value for key, value in form.items() if value is not None}
    given["intervals"] = [_interval(interval) for interval in given.get("intervals", []) or []]
    return Spec.from_json(given)


def _interval(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    if unknown := sorted(set(form) - {"every", "offset"}):
        raise InvalidSpecError("spec.intervals", f"unknown key {unknown[0]!r}; the keys are every, offset")
    return {key: value for key, value in form.items() if value is not None}


def workflow_of(action: dict[str, Any]) -> str:
    """Read `workflow_type`."""
    name = action.get("workflow_type")
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise ReasonError(422, "validation_failed", "action.workflow_type: is missing; name a workflow type.")
    return name


def options_of(body: UpdateBody) -> dict[str, Any]:
    """Say what is sent in our options; of the action, what the keys that are sent say."""
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
    return options | _action_options(body.action or {})


def _memo(memo: dict[str, Any] | None) -> dict[str, Any]:
    try:
        json_text("memo", memo or {}, MEMO_BYTES)
    except InvalidPayloadError as error:
        reason = "memo_too_large" if "limit" in error.reason else "validation_failed"
        raise ReasonError(422, reason, str(error)) from error
    return memo or {}


def _action_options(sent: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "input" in sent:
        options["args"] = arguments_of(sent["input"])
    if "task_queue" in sent:
        options["queue"] = sent["task_queue"]
    if any(name in sent for name in _TIMEOUTS):
        options["timeout"] = next((sent[name] for name in _TIMEOUTS if sent.get(name) is not None), None)
    return options


def new_options() -> dict[str, Any]:
    """Give what this surface's schedules have where they say nothing: max runs delete, failures go on."""
    return {"on_exhausted": "delete", "retry": RetryPolicy(then=Exhausted.CONTINUE)}


def require_range(start: datetime, end: datetime) -> None:
    """Refuse an empty range."""
    if end <= start:
        raise ReasonError(422, "invalid_time_range", "end_time must be after start_time.")
