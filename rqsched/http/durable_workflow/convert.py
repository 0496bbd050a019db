"""From the requests of this surface to our options, spec and command context."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.requests import Request

from rqsched.core.audit import CommandContext
from rqsched.core.payload import MEMO_BYTES, json_text
from rqsched.core.policy import Exhausted, OverlapPolicy, RetryPolicy
from rqsched.errors import InvalidPayloadError, InvalidSpecError
from rqsched.http.dependencies import Call
from rqsched.http.durable_workflow.errors import ReasonError
from rqsched.http.durable_workflow.requests import UpdateRequest
from rqsched.http.durable_workflow.responses import arguments_of
from rqsched.http.middleware import tag_of
from rqsched.spec.spec import Spec

_TIMEOUTS = (
    "run_timeout_seconds",
    "workflow_run_timeout_seconds",
    "workflow_run_timeout",
    "execution_timeout_seconds",
    "workflow_execution_timeout_seconds",
    "workflow_execution_timeout",
)
"""The tightest first: an attempt may take no longer than its run. Those without a unit are older names, in seconds."""
MAX_HEADER = 256
"""Characters of a header that are recorded."""
_SPEC_KEYS = {"cron_expressions", "intervals", "timezone"}


def spec_of(fields: dict[str, Any]) -> Spec:
    """Read `{cron_expressions, intervals, timezone}`; raises InvalidSpecError."""
    if unknown := sorted(set(fields) - _SPEC_KEYS):
        raise InvalidSpecError("spec", f"unknown key {unknown[0]!r}; the keys are {', '.join(sorted(_SPEC_KEYS))}")
    given = {key: value for key, value in fields.items() if value is not None}
    given["intervals"] = [_interval(interval) for interval in given.get("intervals", []) or []]
    return Spec.from_json(given)


def _interval(fields: Any) -> Any:
    if not isinstance(fields, dict):
        return fields
    if unknown := sorted(set(fields) - {"every", "offset"}):
        raise InvalidSpecError("spec.intervals", f"unknown key {unknown[0]!r}; the keys are every, offset")
    return {key: value for key, value in fields.items() if value is not None}


def workflow_of(action: dict[str, Any]) -> str:
    """Read `workflow_type`."""
    name = action.get("workflow_type")
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise ReasonError(422, "validation_failed", "action.workflow_type: is required: the name of a workflow type.")
    return name


def options_of(body: UpdateRequest) -> dict[str, Any]:
    """Return the fields that the body contains as our options; of the action, the keys it contains."""
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


def default_options() -> dict[str, Any]:
    """Return the defaults of this surface: used-up max runs delete, failed runs do not end the schedule."""
    return {"on_exhausted": "delete", "retry": RetryPolicy(then=Exhausted.CONTINUE)}


def command_context(call: Call, request: Request, schedule_id: str, command: str) -> CommandContext:
    """Return who requested what, in the form that this control plane records."""
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
    return CommandContext(source="control_plane", context=context)
