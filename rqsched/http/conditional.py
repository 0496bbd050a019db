"""HEAD wherever GET is, ETag and If-None-Match on reads, and Allow with every method of a path.

Plain ASGI, inside the guard. A stream, or any response in several parts, passes through as it is.
"""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rqsched.http.middleware import IS_HEAD

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_KEPT = frozenset({"etag", "cache-control", "content-location", "date", "expires", "vary", "location"})
"""The headers of a 304 (RFC 9110, 15.4.5)."""


class Conditional:
    """Turns HEAD into GET without a body, and answers 304 where the reader has the same bytes already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        known = Headers(scope=scope).get("if-none-match")
        scope["method"], scope[IS_HEAD] = "GET", is_head  # the guard's own copy: what is noted in it reaches the guard
        await self._app(scope, receive, _Sender(send, known, is_head=is_head))


class _Sender:
    def __init__(self, send: Send, known: str | None, *, is_head: bool) -> None:
        self._send = send
        self._known = known
        self._is_head = is_head
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            if not more and start["status"] == 200 and self._tag(start, body):
                body = b""
            await self._send(start)
        await self._send({"type": "http.response.body", "body": b"" if self._is_head else body, "more_body": more})

    def _tag(self, start: Message, body: bytes) -> bool:
        """Add the ETag of a whole response; returns whether the reader has it already, and makes it a 304 then."""
        headers = MutableHeaders(scope=start)
        if headers.get("content-type", "").startswith("text/event-stream"):
            return False
        own = headers.get("etag", "").strip('"')
        digest = hashlib.sha256(body).hexdigest()[:16]
        tag = headers["ETag"] = f'"{own}-{digest}"' if own else f'"{digest}"'
        if not _names(self._known, tag):
            return False
        start["status"] = 304
        start["headers"] = [pair for pair in start["headers"] if pair[0].decode().lower() in _KEPT]
        return True


def _names(known: str | None, tag: str) -> bool:
    """Return whether If-None-Match names an ETag, by the weak comparison (RFC 9110, 13.1.2)."""
    if known is None:
        return False
    return known.strip() == "*" or tag in {part.strip().removeprefix("W/") for part in known.split(",")}


def allowed_methods(request: Request) -> str:
    """Return every method of the request's path, for Allow: the router names those of one route only."""
    routes = request.app.router.routes
    found = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join(["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found)
