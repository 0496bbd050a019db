"""The surface, its version header and its form of errors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from starlette.responses import JSONResponse, Response

from rqsched.http.errors import HttpError, Problem
from rqsched.http.surface import Surface

VERSION_HEADER = "X-Durable-Workflow-Control-Plane-Version"
VERSION = "2"
REASONS = {"invalid_input": "validation_failed", "malformed": "malformed_request"}


class ReasonError(HttpError):
    """An error of this surface: a status and a stable reason."""

    def __init__(self, status: int, reason: str, message: str, *, field: str | None = None) -> None:
        self.http_status = status
        self.code = reason
        self.field = field
        super().__init__(message)


class PageTokenError(ReasonError):
    """The page token is malformed or belongs to another list."""

    def __init__(
        self, status: int, reason: str, message: str, *, last_safe_cursor: dict[str, Any] | None = None
    ) -> None:
        self.last_safe_cursor = last_safe_cursor
        super().__init__(status, reason, message, field="next_page_token")


class TriggerFailedError(ReasonError):
    """A trigger failed on the server. The caller gets the kind of error; the log has the details."""

    def __init__(self, schedule_id: str, kind: str) -> None:
        self.schedule_id = schedule_id
        self.kind = kind
        super().__init__(500, "trigger_failed", f"the trigger failed ({kind}); the log contains this request's id.")


def render(problem: Problem, request_id: str) -> Response:
    """Render `{message, reason, ...}`, with the errors of fields by field name."""
    body: dict[str, Any] = {
        "message": problem.detail,
        "reason": REASONS.get(problem.code, problem.code),
        "request_id": request_id,
    }
    if isinstance(problem.error, TriggerFailedError):
        body |= {"schedule_id": problem.error.schedule_id, "outcome": "trigger_failed", "reason": problem.error.kind}
    if problem.fields:
        messages = defaultdict[str, list[str]](list)
        for field in problem.fields:
            messages[field.field].append(field.message)
        body |= {"field": problem.fields[0].field, "errors": messages}
    elif isinstance(problem.error, ReasonError) and problem.error.field is not None:
        body |= {"field": problem.error.field, "errors": {problem.error.field: [problem.detail]}}
    if isinstance(problem.error, PageTokenError):
        body["last_safe_cursor"] = problem.error.last_safe_cursor
    return JSONResponse(body, status_code=problem.status, headers=dict(problem.headers))


SURFACE = Surface("/api", render=render, headers=lambda _: {VERSION_HEADER: VERSION})
