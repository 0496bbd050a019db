"""What both senders share: how a request is made of an Ask, what its answer means, and when it is sent again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import tenacity

from rqsched.client.errors import AnswerError, error_of
from rqsched.client.requests import Ask
from rqsched.errors import BackendUnavailableError, NotFoundError, RqschedError

T = TypeVar("T")
TIMEOUT = httpx.Timeout(15.0, connect=5.0)


@dataclass(frozen=True, slots=True)
class Retries:
    """When a request is sent again: never when it could happen twice."""

    most: int = 3
    """Further tries after the first; 0 sends everything once."""
    first: float = 0.1
    """Seconds before the first of them; later ones double, or wait as long as the server says."""
    longest: float = 10.0
    """The most seconds before any of them."""

    def options(self, ask: Ask[Any]) -> dict[str, Any]:
        """Give the options of a tenacity loop for one Ask."""
        return {
            "stop": tenacity.stop_after_attempt(self.most + 1),
            "wait": self._wait,
            "retry": tenacity.retry_if_exception(lambda error: may_retry(ask, error)),
            "reraise": True,
        }

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        said: float | None = getattr(error, "retry_after", None)
        doubling = tenacity.wait_random_exponential(multiplier=self.first, max=self.longest)(state)
        return min(self.longest, doubling if said is None else said)


def may_retry(ask: Ask[Any], error: BaseException) -> bool:
    """Tell whether a request that ended so may be sent again."""
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return True  # it never arrived
    if isinstance(error, AnswerError):
        return error.code == "rate_limited"  # it was not looked at
    return ask.may_repeat and isinstance(error, (httpx.TransportError, BackendUnavailableError))


def arguments(ask: Ask[Any]) -> dict[str, Any]:
    """Give what httpx takes for an Ask."""
    given: dict[str, Any] = {"method": ask.method, "url": ask.path, "headers": dict(ask.headers)}
    if ask.params:
        given["params"] = dict(ask.params)
    return given if ask.body is None else given | {"json": dict(ask.body)}


def headers(token: str | None, namespace: str | None) -> Mapping[str, str]:
    """Give what every request carries."""
    found = {"Accept": "application/json"}
    if token is not None:
        found["Authorization"] = f"Bearer {token}"
    return found if namespace is None else found | {"X-Namespace": namespace}


def read(ask: Ask[T], response: httpx.Response, *, is_repeated: bool) -> T:
    """Read an answer; raises the error it stands for."""
    if response.is_success:
        return ask.read(response)
    error = error_of(response)
    if is_repeated and ask.method == "DELETE" and isinstance(error, NotFoundError):
        return ask.read(response)  # the try before this one deleted it
    raise error


def unreachable(error: httpx.TransportError) -> RqschedError:
    """Translate what the transport raised."""
    kind = "in time" if isinstance(error, httpx.TimeoutException) else f"({type(error).__name__})"
    return BackendUnavailableError(f"the rqsched API does not answer {kind}; try again later.")
