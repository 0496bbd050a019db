"""What both clients share: how a request is sent, what its response means, and when it is sent again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import tenacity

from rqsched.client.errors import ResponseError, error_of
from rqsched.client.requests import Request
from rqsched.errors import BackendUnavailableError, NotFoundError, RqschedError

T = TypeVar("T")
TIMEOUT = httpx.Timeout(15.0, connect=5.0)
"""The default of `timeout`."""


@dataclass(frozen=True, slots=True)
class Retries:
    """When a request is sent again: never when it could take effect twice."""

    most: int = 3
    """Attempts after the first; 0 sends every request once."""
    first: float = 0.1
    """Seconds before the first of them; later delays double, or follow the Retry-After of the response."""
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
    given: dict[str, Any] = {"method": request.method, "url": request.path, "headers": dict(request.headers)}
    if request.params:
        given["params"] = dict(request.params)
    return given if request.body is None else given | {"json": dict(request.body)}


def headers(token: str | None, namespace: str | None) -> Mapping[str, str]:
    """Return the headers of every request."""
    found = {"Accept": "application/json"}
    if token is not None:
        found["Authorization"] = f"Bearer {token}"
    return found if namespace is None else found | {"X-Namespace": namespace}


def read(request: Request[T], response: httpx.Response, *, is_repeated: bool) -> T:
    """Read a response; raises the error it stands for."""
    if response.is_success:
        return request.read(response)
    error = error_of(response)
    if is_repeated and request.method == "DELETE" and isinstance(error, NotFoundError):
        return request.read(response)  # the attempt before this one deleted it
    raise error


def unreachable(error: httpx.TransportError) -> RqschedError:
    """Translate an error of the transport."""
    kind = "in time" if isinstance(error, httpx.TimeoutException) else f"({type(error).__name__})"
    return BackendUnavailableError(f"the rqsched API does not answer {kind}; try again later.")
