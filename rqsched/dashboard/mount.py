"""The dashboard as a WSGI application, for Flask, Django and other WSGI hosts.

The pages are the same as in ASGI, but they reload every few seconds, because a WSGI response cannot be a stream. The
API is left out, because it is for programs, and the session cookie of the host application must not reach it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection

from rqsched.api.scheduler import Scheduler
from rqsched.dashboard.frame import show_too_large, show_unrouted
from rqsched.dashboard.routes import routes
from rqsched.dashboard.session import sessions
from rqsched.errors import ConfigError, install
from rqsched.http.auth import Authenticator, Principal, Tokens, TrustedProxies
from rqsched.http.dependencies import Wiring
from rqsched.http.limits import Limits, TokenBuckets
from rqsched.http.middleware import Guard
from rqsched.http.surface import DEFAULT

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

Environ: TypeAlias = dict[str, Any]
Operator = Callable[[Environ], Principal | None]
"""The host's authentication. It gets the WSGI environ of a request, and returns the viewer; None for nobody."""
_PRINCIPAL = "rqsched.principal"


def wsgi(
    scheduler: Scheduler | None = None,
    *,
    operator: Operator | None = None,
    login_url: str | None = None,
    limits: Limits | None = None,
) -> WSGIApplication:
    """Return the dashboard as a WSGI application. Without `scheduler`, its first request opens one from `RQSCHED_*`.

    >>> app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/rqsched": wsgi(operator=operator)})  # doctest: +SKIP

    `operator` is the host's own authentication: it gets the environ of each request and returns a Principal, or None.
    If it returns None, the browser is redirected to `login_url`, with the page in the parameter `next`. If `login_url`
    is None, the answer is 401. With `operator`, RQSCHED_TOKENS is ignored. Without it, tokens decide; if there are no
    tokens either, only browsers on this machine are accepted.

    A server may fork after this call. Raises ConfigError if a2wsgi is not installed.
    """
    _asgi_middleware()
    return _Mounted(scheduler, operator, login_url, limits or Limits())


class _Mounted:
    """The dashboard in one process. It starts with its first request, because its threads would not survive a fork."""

    def __init__(
        self, scheduler: Scheduler | None, operator: Operator | None, login_url: str | None, limits: Limits
    ) -> None:
        self._scheduler = scheduler
        self._operator = operator
        self._login_url = login_url
        self._limits = limits
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._starting = threading.Lock()
        self._application: WSGIApplication | None = None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        environ = {**environ, "REMOTE_PORT": environ.get("REMOTE_PORT") or "0"}  # without it a2wsgi drops the address
        if self._operator is not None:
            principal = self._operator(environ)
            if principal is None:
                return self._send_away(environ, start_response)
            environ[_PRINCIPAL] = principal
        with self._starting:
            if self._application is None:
                self._application = _asgi_middleware()(self._pages())
            application = self._application
        # Read the whole response here. Otherwise, if the client disconnects, a2wsgi never ends the request.
        return [b"".join(application(environ, start_response))]

    def _send_away(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        text = ("Content-Type", "text/plain; charset=utf-8")
        if self._login_url is None:
            start_response("401 Unauthorized", [text])
            return [b"Log in to the application first.\n"]
        wanted = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        query = environ.get("QUERY_STRING", "")
        to = quote(wanted.encode("latin-1") + (f"?{query}".encode("latin-1") if query else b""), safe="/")
        joint = "&" if "?" in self._login_url else "?"
        start_response("303 See Other", [text, ("Location", f"{self._login_url}{joint}next={to}")])
        return [b""]

    def _pages(self) -> Starlette:
        scheduler = self._scheduler = self._scheduler or Scheduler.from_env()
        tokens = Tokens.of(scheduler.settings) if self._operator is None else Tokens()
        authenticator = Authenticator(
            tokens,
            None if self._operator is None else _principal,
            TokenBuckets(self._limits.failure_rate, self._limits.failures),
        )
        wiring = Wiring.of(scheduler, authenticator, replace(self._limits, streams=0))
        guard = Middleware(
            Guard,
            surfaces=(DEFAULT,),
            limits=self._limits,
            authenticator=authenticator,
            knows=sessions(scheduler, authenticator, wiring.ended_sessions),
            proxies=TrustedProxies(scheduler.settings.trusted_proxies),
            render_too_large=show_too_large,
        )
        pages = Starlette(
            routes=[route for route in routes() if self._operator is None or route.path not in {"/login", "/logout"}],
            middleware=[guard],
            exception_handlers={404: show_unrouted, 405: show_unrouted},
        )
        pages.state.rqsched = wiring
        return pages


def _principal(connection: HTTPConnection) -> Principal | None:
    principal: Principal | None = connection.scope["wsgi_environ"][_PRINCIPAL]
    return principal


def _asgi_middleware() -> Callable[..., Any]:
    try:
        from a2wsgi import ASGIMiddleware  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed: run {install('wsgi')}.") from error
    return ASGIMiddleware
