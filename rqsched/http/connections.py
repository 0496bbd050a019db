"""Limit the connections of a web process, and close connections that wait for a request for too long.

uvicorn and h11 wait without limit for the rest of a request's head. asyncio accepts connections even when no descriptor
is left, and then writes thousands of tracebacks a second. Here a request's head has 5 s to arrive. If there are too
many connections, the connection that has been idle longest is closed. Some file descriptors are reserved for SQL, Redis
and files.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

_log = logging.getLogger(__name__)

HEAD_SECONDS = 5.0
"""Seconds that a request's head may take to arrive before its connection is closed."""
_SPARE = 128
"""The number of descriptors reserved for SQL, Redis and files. At most half of all descriptors are reserved."""
_LOG_AGAIN = 60.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def most_connections() -> int:
    """Return how many connections this process may hold: its limit of descriptors (`ulimit -n`) minus the reserve."""
    return _limit() - _spare()


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _spare() -> int:
    return min(_SPARE, _limit() // 2)


class Connections(ServerState):
    """The connections of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: dict[Connection, None] = {}
        """Connections without a request to answer, the longest idle first."""
        self._logged_at = -_LOG_AGAIN

    def tell(self, text: str, *values: object) -> None:
        """Log that connections are refused or closed, at most once a minute."""
        if monotonic() - self._logged_at >= _LOG_AGAIN:
            self._logged_at = monotonic()
            _log.warning(text, *values, extra={"action": "connections_refused"})

    def handle_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the event loop. If descriptors run out, asyncio stops accepting for a second."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            self.tell("no connection is accepted for a second: %s; raise the limit of descriptors (ulimit -n)", error)
        else:
            loop.default_exception_handler(context)


class Connection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive completely in time."""

    server_state: Connections
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request. If there are too many connections, close the connection that has been idle longest."""
        super().connection_made(transport)
        idle = self.server_state.idle
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency and idle:
            next(iter(idle)).give_up()
            self.server_state.tell(
                "more than %d connections: those without a request are closed, further requests answered 503; see "
                "--max-connections and ulimit -n", self.limit_concurrency - 1,
            )  # fmt: skip
        self._watch(has_begun=True)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. A part of a head does not extend the deadline for the whole head."""
        super().data_received(data)
        self._watch(has_begun=True)

    def on_response_complete(self) -> None:
        """Expect the next request. uvicorn closes the connection if no request comes."""
        super().on_response_complete()
        self._watch(has_begun=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection at once."""
        self._forget()
        self.transport.abort()

    def _watch(self, *, has_begun: bool) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        if not is_answered or self not in self.connections:  # an upgrade to a WebSocket removes it
            self._forget()
            return
        self.server_state.idle.setdefault(self)
        if has_begun and self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.give_up)

    def _forget(self) -> None:
        self.server_state.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


_AT_ONCE = 4
"""The maximum number of connections that are accepted in one turn of the event loop. If connections are closed to make
room, their descriptors become free in the next turn. Until then, the next connection needs another free descriptor."""


class Listening(socket.socket):
    """A listening socket that refuses connections when only reserved descriptors are left."""

    def __init__(self, bound: socket.socket, connections: Connections) -> None:
        """Take over the descriptor of a bound socket. The object `bound` is detached from it."""
        # uvicorn's socket has no protocol, and asyncio turns Nagle's algorithm off only if the protocol is TCP. With
        # that algorithm, the body of a response waits up to 40 ms until the client has acknowledged the head. A socket
        # that is made from the descriptor gets its protocol from the system.
        super().__init__(fileno=bound.detach())
        self._connections = connections
        self._most = _limit() - _spare() // 2  # compared with new descriptors, which get the lowest free number
        self._has_failed = False
        self._taken = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raises BlockingIOError to make asyncio try again later."""
        if self._has_failed or self._taken >= _AT_ONCE:  # asyncio would accept the whole backlog at once
            self._has_failed, self._taken = False, 0
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            self._has_failed, self._taken = error.errno in _EXHAUSTED, 0
            raise
        self._taken += 1
        if accepted.fileno() < self._most:
            return accepted, address
        accepted.close()
        self._connections.tell("connections are refused: few descriptors are left; raise their limit (ulimit -n)")
        raise BlockingIOError
