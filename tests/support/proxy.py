"""A TCP proxy that falls silent: connections stay open, whatever is sent is taken, and nothing arrives.

So looks a firewall that drops packets or a balancer whose server is gone, from one end: no error, no end, no answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit


@dataclass
class Proxy:
    """Forwards to a server until `swallow`; what connects later is forwarded again, unless it `is_silent`."""

    server: tuple[str, int]
    is_silent: bool = False
    """Whether what connects from now on is accepted and never forwarded."""
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    _connections: list[_Connection] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def url(self, direct: str) -> str:
        """The URL of the server, through this proxy."""
        parts = urlsplit(direct)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def swallow(self) -> int:
        """Stop forwarding on the current connections, in both directions, and return their number."""
        alive = [connection for connection in self._connections if not connection.is_silent.is_set()]
        for connection in alive:
            connection.is_silent.set()
        return len(alive)

    def cut(self) -> None:
        """End the current connections. Later ones are forwarded."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def run(self) -> None:
        """Accept connections until `close`."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.server)
            except OSError:  # it is down, and says so
                client.close()
                continue
            connection = _Connection(client, server, is_silent=self.is_silent)
            self._connections.append(connection)  # before it forwards, so that each answer is counted
            connection.start()

    @property
    def connections(self) -> int:
        """How many connections were made so far."""
        return len(self._connections)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()


class _Connection:
    """One client, one connection to the server, and a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket, *, is_silent: bool) -> None:
        self.is_silent = threading.Event()
        if is_silent:
            self.is_silent.set()
        self._ends = (client, server)

    def start(self) -> None:
        client, server = self._ends
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(65_536):
                if not self.is_silent.is_set():
                    sink.sendall(some)
            if not self.is_silent.is_set():
                sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    """A proxy inside the block, to the server of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy((parts.hostname, parts.port))
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
