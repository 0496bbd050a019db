"""The surface, its version header and its form of errors."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from rqsched.http.errors import FieldProblem, HttpError, Problem
from rqsched.http.surface import Surface

VERSION_HEADER = "X-Durable-Workflow-Control-Plane-Version"
VERSION = "2"
_REASONS = {"invalid_input": "validation_failed", "malformed": "malformed_request"}


class ReasonError(HttpError):
    """An error of this surface: a status and a stable reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.code = reason
        super().__init__(message)


class TriggerFailedError(ReasonError):
    """A trigger that failed on the server; the caller gets its kind, the log the details."""

    def __init__(self, schedule_id: str, kind: str) -> None:
        self.schedule_id = schedule_id
        self.kind = kind
        super().__init__(500, "trigger_failed", f"the trigger failed ({kind}); the log contains this request's id.")


def render(problem: Problem, request_id: str) -> Response:
    """Render `{message, reason, ...}`; errors of fields are listed by name."""
    body: dict[str, Any] = {
        "message": problem.detail,
        "reason": _REASONS.get(problem.code, problem.code),
        "request_id": request_id,
    }
    if isinstance(problem.error, TriggerFailedError):
        body |= {"schedule_id": problem.error.schedule_id, "outcome": "trigger_failed", "reason": problem.error.kind}
    if problem.fields:
        body["errors"] = _by_field(problem.fields)
    return JSONResponse(body, status_code=problem.status, headers=dict(problem.headers))


def _by_field(fields: tuple[FieldProblem, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for field in fields:
        found.setdefault(field.field, []).append(field.message)
    return found


SURFACE = Surface("/api", render=render, headers=lambda _: {VERSION_HEADER: VERSION})
