"""HTTP with one deadline for connecting, sending and reading the answer.

The standard library has a time limit only for each read. So a receiver could occupy a thread without end if it sends a
byte now and then, or `100 Continue` again and again.
"""

from __future__ import annotations

import io
import socket
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from time import monotonic
from typing import Any

ANSWER_BYTES = 65_536
"""The maximum number of bytes that are read from a receiver."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes every redirect an error, because a redirect could lead to an address that is not allowed."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""


def opener() -> urllib.request.OpenerDirector:
    """Return an opener of URLs that follows no redirect and has one `timeout` for everything except name resolution.

    The system's resolver has its own time limit, which resolv.conf sets.
    """
    return urllib.request.build_opener(NoRedirect, _Http, _Https)


class _Incoming(io.RawIOBase):
    """The bytes that a receiver sends, read until the deadline and up to ANSWER_BYTES."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock, self._left, self._file, self._bytes = sock, left, sock.makefile("rb", buffering=0), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._bytes >= ANSWER_BYTES:
            raise OSError(f"sent {ANSWER_BYTES} bytes and no whole answer")
        self._sock.settimeout(self._left())
        count = self._file.readinto(buffer)
        self._bytes += count or 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Answer(HTTPResponse):
    """An answer that is read until the deadline."""

    def __init__(self, sock: socket.socket, *args: Any, left: Callable[[], float], **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Incoming(sock, left))


class _Connection(HTTPConnection):
    """A connection with one `timeout` for everything it does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ends_at = monotonic() + (self.timeout or 0)
        self._create_connection = self._reach
        self.response_class = partial(_Answer, left=self._left)  # type: ignore[assignment]

    def _left(self) -> float:
        """Return the seconds until the deadline; raises TimeoutError."""
        left = self._ends_at - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _reach(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """Connect to the first address that answers. Each address gets an equal share of the remaining time."""
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        error = OSError("its name has no address")
        for index, (family, kind, protocol, _name, place) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self._left() / (len(found) - index))
                sock.connect(place)
                sock.settimeout(self._left())  # for the handshake of TLS
            except OSError as failed:
                sock.close()
                error = failed
            else:
                return sock
        raise error

    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(self._left())
        super().send(data)


class _TlsConnection(_Connection, HTTPSConnection):
    """A connection over TLS with one `timeout` for everything it does."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Connection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_TlsConnection, request)
