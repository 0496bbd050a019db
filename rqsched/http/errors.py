"""Map errors to HTTP. Every surface gets the same Problem and renders it in its own form.

HttpError (also a RqschedError)
├── UnauthorizedError   401
├── ForbiddenError      403
├── MalformedError      400
├── TooSlowError        408
├── TooLargeError       413
├── RateLimitedError    429
├── TooManyStreamsError 503
├── TooManyHeavyReadsError 503
└── BusyError           503
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from rqsched.api.outages import UNREACHABLE, briefly, is_refusal
from rqsched.errors import (
    DatabaseInheritedError,
    DatabaseLimitError,
    DatabasePrivilegeError,
    DatabaseReadOnlyError,
    DatabaseUnavailableError,
    InvalidInputError,
    RqschedError,
)

MOST_ERRORS = 20
"""The maximum number of errors of fields that a response lists. Further errors are only counted."""
MORE = "more_errors"
"""The type of a pydantic error that replaces several errors and contains their number."""
_MOST_CHARACTERS = 255
RETRY_AFTER = 5
"""Seconds after which a caller may try again when a backend does not respond."""


class HttpError(RqschedError):
    """An error that only exists over HTTP."""

    retry_after: int | None = None
    """Seconds after which a caller may try again."""
    remedy = "Do what the message says; with a Retry-After, try again after so many seconds."

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the response."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class UnauthorizedError(HttpError):
    """The token is missing or unknown."""

    code = "unauthorized"
    remedy = "Send Authorization: Bearer TOKEN with a token of RQSCHED_TOKENS."
    http_status = 401

    def __init__(self) -> None:
        super().__init__("a valid bearer token is required: send Authorization: Bearer TOKEN.")

    @property
    def headers(self) -> Mapping[str, str]:
        """Name the authentication scheme (RFC 6750)."""
        return {"WWW-Authenticate": "Bearer"}


class ForbiddenError(HttpError):
    """The principal is known, but may not do this."""

    code = "forbidden"
    remedy = "Use a token of the role that the message names, or set RQSCHED_TOKENS where none is configured."
    http_status = 403


class MalformedError(HttpError):
    """The request cannot be read."""

    code = "malformed"
    remedy = "Correct what the message names; nothing was done."
    http_status = 400


class TooLargeError(HttpError):
    """The body exceeds the limit."""

    code = "too_large"
    remedy = "Send less at once, or have Limits(body_bytes=...) raised."
    http_status = 413

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body exceeds {limit} bytes; send less at once.")


class TooSlowError(HttpError):
    """The body did not arrive in time."""

    code = "too_slow"
    remedy = "Send the request again, whole."
    http_status = 408

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the body did not arrive within {seconds:g} s; send it again.")


class BusyError(HttpError):
    """The sender is not authenticated, and newer requests from its address have displaced this request."""

    code = "busy"
    remedy = "Try again after the seconds of Retry-After, or send a token."
    http_status = 503
    retry_after = RETRY_AFTER

    def __init__(self) -> None:
        super().__init__(
            "too many requests of your address are being read, and none has a token; try again later, or send a token."
        )


class RateLimitedError(HttpError):
    """The principal exceeds its rate."""

    code = "rate_limited"
    remedy = "Try again after the seconds of Retry-After, or have Limits(rate=..., burst=...) raised."
    http_status = 429

    def __init__(self, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(f"too many requests; try again in {retry_after} s.")


class TooManyStreamsError(HttpError):
    """No more streams of events can be opened, or the process stops."""

    code = "too_many_streams"
    remedy = "Try again after the seconds of Retry-After, or read pages of events instead."
    http_status = 503
    retry_after = RETRY_AFTER

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(f"this process serves {most} streams at most, or is stopping; try again later.")


class TooManyHeavyReadsError(HttpError):
    """The principal already has a heavy read under way, or the process admits no more heavy reads."""

    code = "too_many_heavy_reads"
    remedy = "Try again after the seconds of Retry-After, and ask for one load, timeline or why at a time."
    http_status = 503
    retry_after = RETRY_AFTER

    def __init__(self) -> None:
        super().__init__("another request of yours that takes long is under way, or many of others; try again later.")


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """The error of one field of a request."""

    field: str
    """Its name, dotted when it is nested."""
    message: str
    """The cause and the remedy."""
    code: str
    """A stable identifier of the kind of error."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error with its HTTP status, before a surface renders it."""

    status: int
    """The status of the native surface. Another surface may use a different status."""
    code: str
    """A stable identifier of the kind of error."""
    detail: str
    """The cause and the remedy."""
    fields: tuple[FieldProblem, ...] = ()
    """The refused fields."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of the response."""
    error: BaseException | None = None
    """The exception that was raised; None when there was none."""


_UNREACHABLE = (*UNREACHABLE, RedisError)
_TOLD: Mapping[type[RqschedError], str] = {
    DatabaseReadOnlyError: "this server's database takes no writes, it is a standby or read-only; send what writes to "
    "a server of the primary, or try again after the promotion.",
    DatabaseInheritedError: "this process of the server cannot use its database and must be started again; its log has "
    "the reason.",
    DatabaseUnavailableError: "the database does not answer; try again later.",
    DatabaseLimitError: "the database stopped this request because it took too long; ask for less, or try again later.",
}
_CODES = {
    400: "malformed",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}
EXPECTED: tuple[type[Exception], ...] = (RqschedError, RequestValidationError, HTTPException, *_UNREACHABLE)
"""The errors that the application handles; everything else is a defect."""


def problem_of(error: BaseException) -> Problem:
    """Map an error to a Problem. An unexpected error reveals no details."""
    if isinstance(error, HttpError):
        return Problem(error.http_status, error.code, str(error), headers=error.headers, error=error)
    if isinstance(error, RqschedError):
        return _of_rqsched(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "error")
        return Problem(error.status_code, code, str(error.detail), headers=error.headers or {}, error=error)
    if isinstance(error, RedisError) and is_refusal(error):
        return _unavailable("backend_unavailable", f"{briefly(error)}; try again later.", error)
    if isinstance(error, _UNREACHABLE):
        return _unavailable("backend_unavailable", "a backend does not respond; try again later.", error)
    return Problem(500, "internal_error", "the server failed; its log contains this request's id.", error=error)


def _of_rqsched(error: RqschedError) -> Problem:
    if isinstance(error, DatabasePrivilegeError):
        unnamed = DatabasePrivilegeError(error.missing, "the log of this server has the reason")
        return _unavailable(error.code, str(unnamed), error)
    if error.http_status == 503:
        # Leave the cause out: a driver names hosts, users and databases, which callers must not see. The log has it.
        detail = next((text for kind, text in _TOLD.items() if isinstance(error, kind)), str(error))
        return _unavailable(error.code, detail, error)
    if error.http_status == 500:
        return Problem(
            500, "internal_error", "the server is not configured correctly; its log has the reason.", error=error
        )
    told = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    fields: tuple[FieldProblem, ...] = ()
    if isinstance(error, InvalidInputError):
        fields = (FieldProblem(error.field, f"{error.reason}{told}", error.code),)
    return Problem(error.http_status, error.code, f"{error}{told}", fields=fields, error=error)


def _unavailable(code: str, detail: str, error: BaseException) -> Problem:
    return Problem(503, code, detail, headers={"Retry-After": str(RETRY_AFTER)}, error=error)


def _of_validation(error: RequestValidationError) -> Problem:
    details = error.errors()
    told = [detail for detail in details if detail["type"] != MORE][:MOST_ERRORS]
    more = sum(detail["ctx"]["count"] if detail["type"] == MORE else 1 for detail in details) - len(told)
    fields = tuple(FieldProblem(_name(detail["loc"]), _reason(detail), "invalid_input") for detail in told)
    first = fields[0] if fields else FieldProblem("body", "is refused", "invalid_input")
    others = f" ({more} more errors are not listed)" if more else ""
    return Problem(422, "invalid_input", f"{first.field}: {first.message}{others}", fields=fields, error=error)


def _name(location: Sequence[Any]) -> str:
    """Return the name of a field without the part of the request that contains it (body, query, path)."""
    name = ".".join(str(part) for part in location[1:]) or str(location[0] if location else "body")
    return name[:_MOST_CHARACTERS]


def _reason(detail: Mapping[str, Any]) -> str:
    return str(detail["msg"]).removeprefix("Value error, ")
