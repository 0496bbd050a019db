"""The base of both clients: the arguments of a request, its retries, and the reading of its response."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import tenacity

from rqsched import errors
from rqsched.client.requests import Request
from rqsched.errors import (
    BackendUnavailableError,
    InvalidInputError,
    NotFoundError,
    RqschedError,
)

T = TypeVar("T")
TIMEOUT = httpx.Timeout(15.0, connect=5.0)
"""The default of `timeout`."""


class ResponseError(RqschedError):
    """An error that only HTTP has: unauthorized, forbidden, rate_limited, malformed, internal_error."""

    code = "response"
    remedy = "`code` and the message are the server's, which say what to do; of a 500, its log has the request's id."

    def __init__(self, http_status: int, code: str, detail: str) -> None:
        self.http_status = http_status
        self.code = code
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Retries:
    """How a request is retried. A request is retried only if it cannot take effect twice."""

    most: int = 3
    """Attempts after the first; 0 sends every request once."""
    first: float = 0.1
    """Seconds before the first retry. Later delays double, unless the response has a Retry-After."""
    longest: float = 10.0
    """The longest delay in seconds."""

    def options(self, request: Request[Any]) -> dict[str, Any]:
        """Return the options of a tenacity loop for one request."""
        return {
            "stop": tenacity.stop_after_attempt(self.most + 1),
            "wait": self._wait,
            "retry": tenacity.retry_if_exception(lambda error: may_retry(request, error)),
            "reraise": True,
        }

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        retry_after: float | None = getattr(error, "retry_after", None)
        doubling = tenacity.wait_random_exponential(multiplier=self.first, max=self.longest)(state)
        return min(self.longest, doubling if retry_after is None else retry_after)


def may_retry(request: Request[Any], error: BaseException) -> bool:
    """Return whether a request that ended with this error may be sent again."""
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return True  # it never arrived
    if isinstance(error, ResponseError):
        return error.code == "rate_limited"  # it was not executed
    return request.is_repeatable and isinstance(error, (httpx.TransportError, BackendUnavailableError))


def arguments(request: Request[Any]) -> dict[str, Any]:
    """Return the arguments of httpx for a request."""
    named = dict(request.headers) | _span()
    given: dict[str, Any] = {"method": request.method, "url": request.path, "headers": named}
    if request.params:
        given["params"] = dict(request.params)
    return given if request.body is None else given | {"json": dict(request.body)}


def _span() -> dict[str, str]:
    """Return the header that names the current span; empty if the application does not trace with OpenTelemetry."""
    propagate = sys.modules.get("opentelemetry.propagate")
    found: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(found)
    return {name: value for name, value in found.items() if name == "traceparent"}


def headers(token: str | None, namespace: str | None) -> Mapping[str, str]:
    """Return the headers of every request."""
    found = {"Accept": "application/json"}
    if token is not None:
        found["Authorization"] = f"Bearer {token}"
    return found if namespace is None else found | {"X-Namespace": namespace}


def read(request: Request[T], response: httpx.Response, *, is_repeated: bool) -> T:
    """Return the value of a successful response; raises the error of any other response."""
    if response.is_success:
        return request.read(response)
    error = error_of(response)
    if is_repeated and request.method == "DELETE" and isinstance(error, NotFoundError):
        return request.read(response)  # an earlier attempt of this request deleted it
    raise error


def unreachable(error: httpx.TransportError) -> RqschedError:
    """Translate an error of the transport."""
    kind = "in time" if isinstance(error, httpx.TimeoutException) else f"({type(error).__name__})"
    return BackendUnavailableError(f"the rqsched API does not answer {kind}; try again later.")


_KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RqschedError) and kind is not RqschedError
}


def error_of(response: httpx.Response) -> RqschedError:
    """Rebuild the error of a response, with the attributes `problem` and `retry_after` (seconds, or None)."""
    problem = _problem(response)
    error: Any = _rebuilt(response.status_code, problem)
    error.problem = problem
    error.retry_after = _seconds(response.headers.get("retry-after"))
    return error  # type: ignore[no-any-return]


def _rebuilt(status: int, problem: Mapping[str, Any]) -> RqschedError:
    code, detail = str(problem.get("code", "")), str(problem.get("detail") or f"the server responded with {status}.")
    kind = _KINDS.get(code)
    if kind is None and status not in {502, 503, 504}:
        return ResponseError(status, code, detail)
    # Do not call the error's __init__, because it would replace the server's message.
    kind = kind or BackendUnavailableError
    error = kind.__new__(kind)
    RqschedError.__init__(error, detail)
    if code and code != kind.code:
        error.code = code
    if isinstance(error, InvalidInputError):
        fields = problem.get("errors") or [{}]
        error.field, error.reason = str(fields[0].get("field", "")), str(fields[0].get("message", detail))
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
