"""The bases of the groups of both clients, and the conversion of synchronous operations to asynchronous ones.

An operation returns the result of its client's `send` or `_pages`. In the asynchronous client, `send` returns a
coroutine and `_pages` an asynchronous iterator. Therefore each operation is written only once. `awaited` and `iterated`
declare this to type checkers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from rqsched.client.requests import Request
from rqsched.types import Page

P = ParamSpec("P")
T = TypeVar("T")
Awaited = Coroutine[Any, Any, T]
Operation = Callable[Concatenate[Any, P], T]


def awaited(call: Operation[P, T]) -> Operation[P, Awaited[T]]:
    """Return an operation of the synchronous client as a coroutine function."""

    @wraps(call)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: Any = call(self, *args, **kwargs)
        result: T = await found
        return result

    return method


def iterated(call: Operation[P, Iterator[T]]) -> Operation[P, AsyncGenerator[T]]:
    """Return an operation of the synchronous client, declared to return an asynchronous iterator."""
    found: Any = call
    asynchronous: Operation[P, AsyncGenerator[T]] = found
    return asynchronous


class Sender:
    """The base of a client, which sends requests."""

    def send(self, request: Request[T]) -> T:
        """Send one request, and return the value of its response."""
        raise NotImplementedError

    def _pages(self, read: Callable[[str | None], Page[T]]) -> Iterator[T]:
        raise NotImplementedError


class Group:
    """The base of the groups of a client."""

    def __init__(self, client: Sender) -> None:
        self._client = client


class AsyncGroup:
    """The base of the groups of an asynchronous client."""

    def __init__(self, client: Any) -> None:
        self._client = client
