"""The layers around every request. They are plain ASGI: they see errors before routing too, and do not buffer streams.

The outer layer, the guard, handles the request id, the size of the body, the surface, the security headers, and the
form of every error. The inner layer answers HEAD for every GET, and ETag and If-None-Match on reads.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rqsched.errors import WorkCancelledError
from rqsched.http.auth import PRINCIPAL, REFUSED_PREFIX, Authenticator, Principal, TrustedProxies
from rqsched.http.errors import HttpError, MalformedError, TooLargeError, problem_of
from rqsched.http.limits import Limits
from rqsched.http.request_bodies import Bodies, Knows
from rqsched.http.root_path import SERVE_ELSEWHERE, is_below, without_repeat
from rqsched.http.surface import DEFAULT, Surface, surface_of

_log = logging.getLogger(__name__)
_access = logging.getLogger("rqsched.http.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_KEY = "rqsched"
ADDED_HEADERS = "rqsched.headers"
"""The key under which a request's scope stores headers for its response, even if the response is an error."""
IS_HEAD = "rqsched.head"
"""The key under which a request's scope stores whether the caller wants only the headers (HEAD)."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_WRITING_SHARE = 0.75
_WRITES: RunVar[CapacityLimiter] = RunVar("rqsched_writes")  # one for each event loop, which has its own threads

_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers that every response gets unless it has them already. The dashboard and /docs set other policies."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The request id and the surface of a request."""

    request_id: str
    """The X-Request-Id of the caller if it is well-formed, else a new id."""
    surface: Surface
    """The surface of its path."""


def tag_of(connection: HTTPConnection) -> Tag:
    """Return the tag of a request."""
    tag: Tag = connection.scope[_KEY]
    return tag


def render_error(request: Request, error: BaseException) -> Response:
    """Render an error in the form of the request's surface."""
    return render_tagged(tag_of(request), error)


def render_tagged(tag: Tag, error: BaseException) -> Response:
    """Render an error of a request that may not have passed the guard. Log errors that a caller cannot correct."""
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, (HttpError, WorkCancelledError)):
        _log.error(
            "request %s failed: %s", tag.request_id, type(error).__name__,
            exc_info=error if problem.status == 500 else None, extra={"action": "request_failed"},
        )  # fmt: skip
    response = tag.surface.render(problem, tag.request_id)
    for name, value in problem.headers.items():
        response.headers.setdefault(name, value)
    return response


class Guard:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        surfaces: Sequence[Surface],
        limits: Limits,
        authenticator: Authenticator,
        knows: Knows,
        proxies: TrustedProxies,
        render_too_large: Callable[[Request, Exception], Response],
    ) -> None:
        self._app = app
        self._render_too_large = render_too_large
        self._proxies = proxies
        self._surfaces = surfaces
        self._bodies = Bodies(limits, authenticator, knows)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other kinds of connection pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = without_repeat(self._proxies.look_through(scope))
        surface = surface_of(self._surfaces, _route_path(scope))
        headers = Headers(scope=scope)
        tag = Tag(request_id_of(headers), surface)
        scope = {**scope, _KEY: tag, "path": _path(scope, surface)}
        connection = HTTPConnection(scope)
        sender = _Sender(send, connection, tag)
        begun = monotonic()
        try:
            _require_no_nul(scope)
            _require_clear_prefix(scope)
            receive = await self._bodies.read(connection, surface, receive)
            if scope["method"] in _READING:
                await self._app(scope, receive, sender)
            else:
                async with _writes():
                    await self._app(scope, receive, sender)
        except Exception as error:  # the last boundary: logged, and the caller gets no details
            if sender.has_started:
                raise
            is_large_form = isinstance(error, TooLargeError) and surface is DEFAULT
            render = self._render_too_large if is_large_form else render_error  # a browser shows no JSON
            await render(Request(scope), error)(scope, receive, sender)
        finally:
            sender.log(monotonic() - begun)


def _writes() -> CapacityLimiter:
    """Return the limiter of writes. They get three quarters of the threads, so that reads work even if Redis hangs."""
    try:
        return _WRITES.get()
    except LookupError:
        threads = to_thread.current_default_thread_limiter().total_tokens
        _WRITES.set(CapacityLimiter(max(1, int(threads * _WRITING_SHARE))))
        return _WRITES.get()


def _route_path(scope: Scope) -> str:
    """Return the path below the application's mount point."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if is_below(path, root) else path


def request_id_of(headers: Headers) -> str:
    """Return the X-Request-Id of the caller if it is well-formed, else a new id."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _path(scope: Scope, surface: Surface) -> str:
    """Return the path with or without a trailing slash, like the routes of the surface. The front page has a slash."""
    path = str(scope["path"])
    if surface.has_slash or not _route_path(scope).strip("/"):
        return path if path.endswith("/") else path + "/"
    return path.rstrip("/")


def _require_no_nul(scope: Scope) -> None:
    if "\x00" in scope["path"] or b"%00" in scope.get("query_string", b""):
        raise MalformedError("the URL contains a NUL character; remove it.")


def _require_clear_prefix(scope: Scope) -> None:
    if (prefix := scope.get(REFUSED_PREFIX)) is not None:
        raise MalformedError(f"the proxy's X-Forwarded-Prefix {prefix} {SERVE_ELSEWHERE}")


class _Sender:
    """Sends the response, with the headers that every response gets."""

    def __init__(self, send: Send, connection: HTTPConnection, tag: Tag) -> None:
        self._send = send
        self._connection = connection
        self._tag = tag
        self.has_started = False
        self._status = 0

    def log(self, seconds: float) -> None:
        """Write the access log's line. The query is left out, because it may contain a secret."""
        if not _access.isEnabledFor(logging.INFO):
            return
        scope = self._connection.scope
        principal: Principal | None = scope.get(PRINCIPAL)
        fields = {
            "method": scope["method"],
            "path": quote(str(scope["path"]), safe="/:@-._~!$&'()*+,;="),
            "status": self._status,
            "seconds": round(seconds, 4),
            "principal": principal.name if principal else "-",
            "peer": self._connection.client.host if self._connection.client else "-",
            "request_id": self._tag.request_id,
        }
        _access.info(
            "%(peer)s %(principal)s %(method)s %(path)s %(status)s %(seconds)s s, request %(request_id)s", fields,
            extra={"action": "request", **fields},
        )  # fmt: skip

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._tag.request_id
            if (usual := headers.get("content-type")) is not None:
                headers["Content-Type"] = self._tag.surface.media_type(self._connection, usual)
            added = self._connection.scope.get(ADDED_HEADERS, {})
            for name, value in (_SECURITY | dict(self._tag.surface.headers(self._connection)) | added).items():
                headers.setdefault(name, value)
        await self._send(message)


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_KEPT = frozenset({"etag", "cache-control", "content-location", "date", "expires", "vary", "location"})
"""The headers that a 304 response keeps (RFC 9110, 15.4.5)."""


class Conditional:
    """Turns HEAD into GET without a body, and answers 304 if the caller has the same bytes already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        known = Headers(scope=scope).get("if-none-match")
        scope["method"], scope[IS_HEAD] = "GET", is_head  # the guard made this copy, and reads both
        await self._app(scope, receive, _Tagging(send, known, is_head=is_head))


class _Tagging:
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
        """Add the ETag to a complete response. If the caller has its content already, make it a 304 and return True."""
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
    """Return every method of the request's path, for the header Allow. The router names only those of one route."""
    routes = request.app.router.routes
    found = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join(["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found)
