"""The forms of this surface: its media type, its version, its errors and its instants."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from rqsched.http.errors import HttpError, Problem
from rqsched.http.surface import Surface

VERSION = "1.0"
MEDIA_TYPE = "application/openjobspec+json"
_CODES = {
    400: "invalid_request",
    404: "not_found",
    409: "duplicate",
    429: "rate_limited",
    500: "backend_error",
    503: "backend_error",
}
"""The spec's codes; a status it has no word for keeps ours."""
_SENT_AS = {422: 400}
"""Where this surface's status differs from the native one's."""


class OjsResponse(JSONResponse):
    """An answer in the spec's media type."""

    media_type = MEDIA_TYPE


class OjsError(HttpError):
    """A refusal in this surface's words."""

    def __init__(self, status: int, code: str, message: str, *, details: dict[str, Any] | None = None) -> None:
        self.status = status
        self.code = code
        self.details = details
        super().__init__(message)


def invalid(message: str, **details: Any) -> OjsError:
    """Say that a request is refused, and why."""
    return OjsError(400, "invalid_request", message, details=details or None)


def render(problem: Problem, request_id: str) -> Response:
    """Render `{"error": {code, message, retryable, details?, request_id}}`."""
    own = isinstance(problem.error, OjsError)
    status = problem.status if own else _SENT_AS.get(problem.status, problem.status)
    error: dict[str, Any] = {
        "code": problem.code if own else _CODES.get(status, problem.code),
        "message": problem.detail,
        "retryable": status in {429, 500, 503},
        "request_id": request_id,
    }
    if details := _details(problem):
        error["details"] = details
    return OjsResponse({"error": error}, status_code=status, headers=dict(problem.headers))


def _details(problem: Problem) -> dict[str, Any] | None:
    if isinstance(problem.error, OjsError):
        return problem.error.details
    return {field.field: field.message for field in problem.fields} or None


SURFACE = Surface("/ojs", render=render, headers=lambda _: {"OJS-Version": VERSION})
