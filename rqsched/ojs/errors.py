"""The surface, its media type and its form of errors."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from rqsched.errors import ScheduleExistsError
from rqsched.http.errors import HttpError, Problem
from rqsched.http.surface import Surface

VERSION = "1.0"
MEDIA_TYPE = "application/openjobspec+json"
_CODES = {
    400: "invalid_request",
    404: "not_found",
    409: "invalid_request",
    429: "rate_limited",
    500: "backend_error",
    503: "backend_error",
}
"""The spec's error codes by HTTP status. Other statuses have a code of rqsched, with the prefix of the spec."""


class OjsResponse(JSONResponse):
    """A response in the spec's media type."""

    media_type = MEDIA_TYPE


class OjsError(HttpError):
    """An error with a code of the spec."""

    def __init__(self, status: int, code: str, message: str, *, details: dict[str, Any] | None = None) -> None:
        self.http_status = status
        self.code = code
        self.details = details
        super().__init__(message)


def invalid(message: str, **details: Any) -> OjsError:
    """Return the error of an invalid request."""
    return OjsError(400, "invalid_request", message, details=details or None)


def render(problem: Problem, request_id: str) -> Response:
    """Render `{"error": {code, message, retryable, details?, request_id}}`."""
    own = isinstance(problem.error, OjsError)
    status = 400 if problem.status == 422 and not own else problem.status
    is_duplicate = isinstance(problem.error, ScheduleExistsError)
    code = "duplicate" if is_duplicate else _CODES.get(status, f"x_{problem.code}")
    error: dict[str, Any] = {
        "code": problem.code if own else code,
        "message": problem.detail,
        "retryable": status in {429, 500, 503},
        "request_id": request_id,
    }
    own_details = problem.error.details if isinstance(problem.error, OjsError) else None
    if details := own_details or {field.field: field.message for field in problem.fields}:
        error["details"] = details
    return OjsResponse({"error": error}, status_code=status, headers=dict(problem.headers))


def accepted_type(connection: HTTPConnection, media_type: str) -> str:
    """Return `application/json` if the client accepts nothing else, as some SDKs do; else the spec's media type."""
    accepted = {entry.partition(";")[0].strip().lower() for entry in connection.headers.get("accept", "").split(",")}
    return "application/json" if media_type == MEDIA_TYPE and accepted == {"application/json"} else media_type


SURFACE = Surface("/ojs", render=render, headers=lambda _: {"OJS-Version": VERSION}, media_type=accepted_type)
