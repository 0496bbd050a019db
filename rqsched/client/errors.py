"""From problem details back to the errors of the in-process API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from rqsched import errors
from rqsched.errors import BackendUnavailableError, InvalidInputError, RqschedError, UnknownWorkflowError


class ResponseError(RqschedError):
    """An error that only HTTP has: unauthorized, forbidden, rate_limited, malformed, internal_error."""

    code = "response"

    def __init__(self, http_status: int, code: str, detail: str) -> None:
        self.http_status = http_status
        self.code = code
        super().__init__(detail)


_KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RqschedError) and kind is not RqschedError
}


def error_of(response: httpx.Response) -> RqschedError:
    """Rebuild the error a response stands for, with its `problem` and `retry_after` (seconds, or None)."""
    problem = _problem(response)
    error: Any = _rebuilt(response.status_code, problem)
    error.problem = problem
    error.retry_after = _seconds(response.headers.get("retry-after"))
    return error  # type: ignore[no-any-return]


def _rebuilt(status: int, problem: Mapping[str, Any]) -> RqschedError:
    code, detail = str(problem.get("code", "")), str(problem.get("detail") or f"the server responded with {status}.")
    kind = _KINDS.get(code)
    if kind is None:
        return BackendUnavailableError(detail) if status in {502, 503, 504} else ResponseError(status, code, detail)
    fields = problem.get("errors") or [{}]
    field, reason = str(fields[0].get("field", "")), str(fields[0].get("message", detail))
    if issubclass(kind, UnknownWorkflowError):
        return kind("", reason)
    if issubclass(kind, InvalidInputError):
        return kind(field, reason)
    error = kind.__new__(kind)
    RqschedError.__init__(error, detail)
    error.__dict__.update(problem.get("attributes") or {})
    return error


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
