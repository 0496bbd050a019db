"""Bodies of requests: read within a size and a time, and only once it is known who sends them.

A login form comes from somebody who is not known yet: on the pages, a small body of a stranger is read, few at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive

from rqsched.http.auth import Authenticator
from rqsched.http.errors import BusyError, HttpError, TooLargeError, TooSlowError
from rqsched.http.limits import Limits
from rqsched.http.surface import DEFAULT, Surface

Knows = Callable[[HTTPConnection], bool]
"""Whether a request to the pages carries a session that is valid."""


def knows_nobody(connection: HTTPConnection) -> bool:
    """Where no pages are served there are no sessions."""
    del connection
    return False


class Bodies:
    """Reads the bodies of one application's requests."""

    def __init__(self, limits: Limits, authenticator: Authenticator, knows: Knows) -> None:
        self._limits = limits
        self._authenticator = authenticator
        self._knows = knows
        self._strangers = 0

    async def read(self, connection: HTTPConnection, surface: Surface, receive: Receive) -> Receive:
        """Return a receiver that replays the whole body, if there is one.

        Raises UnauthorizedError or ForbiddenError before anything is read, TooLargeError, TooSlowError and BusyError.
        """
        headers = connection.headers
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return receive
        announced = headers.get("content-length", "0")
        size = int(announced[:20]) if announced.isascii() and announced.isdigit() else 0
        if size > self._limits.body_bytes:
            raise TooLargeError(self._limits.body_bytes)
        if self._is_known(connection, surface):
            return await self._within(self._limits.body_bytes, size, receive)
        with self._as_stranger():
            return await self._within(self._limits.stranger_bytes, size, receive)

    def _is_known(self, connection: HTTPConnection, surface: Surface) -> bool:
        if surface is DEFAULT and self._knows(connection):
            return True
        try:
            self._authenticator.principal_of(connection)
        except HttpError:
            if surface is DEFAULT:
                return False
            raise
        return True

    @contextmanager
    def _as_stranger(self) -> Iterator[None]:
        if self._strangers >= self._limits.strangers:
            raise BusyError
        self._strangers += 1
        try:
            yield
        finally:
            self._strangers -= 1

    async def _within(self, limit: int, size: int, receive: Receive) -> Receive:
        if size > limit:
            raise TooLargeError(limit)
        try:
            with anyio.fail_after(self._limits.body_seconds):
                messages = await _read(receive, limit)
        except TimeoutError:
            raise TooSlowError(self._limits.body_seconds) from None
        return _replay(messages, receive)


async def _read(receive: Receive, limit: int) -> list[Message]:
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > limit:
            raise TooLargeError(limit)
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay
