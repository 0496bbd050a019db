"""One mapping from errors to HTTP: every surface gets the same Problem and renders it in its own form.

HttpError (also a RqschedError)
├── UnauthorizedError   401
├── ForbiddenError      403
├── NamespaceNotFoundError (also a NotFoundError)   404
├── MalformedError      400
├── TooLargeError       413
└── RateLimitedError    429
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from starlette.exceptions import HTTPException

from rqsched.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RqschedError,
    SchemaError,
    VersionConflictError,
)
from rqsched.store.database import UNREACHABLE

RETRY_AFTER = 5
"""Seconds after which a caller may try again when a backend does not answer."""


class HttpError(RqschedError):
    """An error that only a surface over HTTP meets."""

    status = 500

    @property
    def headers(self) -> Mapping[str, str]:
        """What the answer carries beside its body."""
        return {}


class UnauthorizedError(HttpError):
    """There is no token, or an unknown one."""

    code = "unauthorized"
    status = 401

    def __init__(self) -> None:
        super().__init__("a known bearer token is needed: send Authorization: Bearer TOKEN.")

    @property
    def headers(self) -> Mapping[str, str]:
        """Say which scheme is meant (RFC 6750)."""
        return {"WWW-Authenticate": "Bearer"}


class ForbiddenError(HttpError):
    """The principal is known and may not do this."""

    code = "forbidden"
    status = 403


class NamespaceNotFoundError(HttpError, NotFoundError):
    """The principal sees no such namespace, whether others do or not."""

    code = "namespace_not_found"
    status = 404

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"no namespace {namespace!r}.")


class MalformedError(HttpError):
    """The request cannot be read."""

    code = "malformed"
    status = 400


class TooLargeError(HttpError):
    """The body exceeds the limit."""

    code = "too_large"
    status = 413

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body exceeds {limit} bytes.")


class RateLimitedError(HttpError):
    """The principal sends more than its share."""

    code = "rate_limited"
    status = 429

    def __init__(self, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(f"too many requests; try again in {retry_after} s.")

    @property
    def headers(self) -> Mapping[str, str]:
        """Say when to try again."""
        return {"Retry-After": str(self.retry_after)}


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with one part of a request."""

    field: str
    """Its name, dotted where it is nested."""
    message: str
    code: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as HTTP sees it, before a surface gives it its form."""

    status: int
    """As the native surface answers; a surface may have its own."""
    code: str
    """A stable word."""
    detail: str
    """What is wrong and what to do."""
    fields: tuple[FieldProblem, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    error: BaseException | None = None
    """What was raised."""


_UNREACHABLE = (*UNREACHABLE, RedisConnectionError, RedisTimeoutError)
_STATUS: tuple[tuple[type[RqschedError], int], ...] = (
    (InvalidInputError, 422),
    (NotFoundError, 404),
    (VersionConflictError, 412),
    (ConflictError, 409),
    (BackendUnavailableError, 503),
    (SchemaError, 503),
)
_CODES = {
    400: "malformed",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}
EXPECTED: tuple[type[Exception], ...] = (RqschedError, RequestValidationError, HTTPException, *_UNREACHABLE)
"""What an application handles; everything else is a defect."""


def problem_of(error: BaseException) -> Problem:
    """Map an error; one that nobody expected tells nothing of itself."""
    if isinstance(error, HttpError):
        return Problem(error.status, error.code, str(error), headers=error.headers, error=error)
    if isinstance(error, RqschedError):
        return _of_rqsched(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "error")
        return Problem(error.status_code, code, str(error.detail), headers=error.headers or {}, error=error)
    if isinstance(error, _UNREACHABLE):
        return _unavailable("backend_unavailable", "a backend does not answer; try again later.", error)
    return Problem(500, "internal_error", "something went wrong here; the log has this request's id.", error=error)


def _of_rqsched(error: RqschedError) -> Problem:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 503:
        return _unavailable(error.code, str(error), error)
    if status == 500:
        return Problem(500, "internal_error", "this service is not set up well; the log says why.", error=error)
    fields = (FieldProblem(error.field, error.reason, error.code),) if isinstance(error, InvalidInputError) else ()
    return Problem(status, error.code, str(error), fields=fields, error=error)


def _unavailable(code: str, detail: str, error: BaseException) -> Problem:
    return Problem(503, code, detail, headers={"Retry-After": str(RETRY_AFTER)}, error=error)


def _of_validation(error: RequestValidationError) -> Problem:
    details = error.errors()
    fields = tuple(FieldProblem(_name(detail["loc"]), _reason(detail), "invalid_input") for detail in details)
    first = fields[0] if fields else FieldProblem("body", "is refused", "invalid_input")
    return Problem(422, "invalid_input", f"{first.field}: {first.message}", fields=fields, error=error)


def _name(location: Sequence[Any]) -> str:
    """Name the field: the first part says where it was sent (body, query, path)."""
    return ".".join(str(part) for part in location[1:]) or str(location[0] if location else "body")


def _reason(detail: Mapping[str, Any]) -> str:
    return str(detail["msg"]).removeprefix("Value error, ")
