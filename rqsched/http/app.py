"""The ASGI application with all HTTP surfaces. Mount it in another application, or serve it alone (`rqsched web`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import cache, partial
from typing import Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

import rqsched
from rqsched import durable_workflow, ojs
from rqsched.api.async_scheduler import run
from rqsched.api.background_reconcile import Recovering
from rqsched.api.database import Patience
from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.errors import ConfigError, install
from rqsched.http import health, openapi
from rqsched.http.auth import Authenticate, Authenticator, Tokens, TrustedProxies, is_loopback
from rqsched.http.dependencies import Wiring, bearer
from rqsched.http.errors import EXPECTED
from rqsched.http.limits import Limits, TokenBuckets
from rqsched.http.middleware import Conditional, Guard, allowed_methods, render_error, tag_of
from rqsched.http.native import router as native
from rqsched.http.request_bodies import Knows, knows_nobody
from rqsched.http.root_path import SERVE_ELSEWHERE, collides
from rqsched.http.server import serve_visibly, serve_with_workers
from rqsched.http.surface import DEFAULT

_QUIET = {"log_config": None, "access_log": False, "server_header": False}
"""Options that turn off uvicorn's access log. It contains the query of each request, which may contain a secret."""
_PATIENCE = Patience(total=timedelta(seconds=3), waits_for_writes=False)
"""How long the web process waits for SQL. It waits for less time than a worker, so that callers get 503 soon."""
_REFUSED = (openapi.PROBLEM, ojs.REFUSED, durable_workflow.REFUSED)
_Render = Callable[[Request, Exception], Response]
_SURFACES = (native.SURFACE, ojs.SURFACE, durable_workflow.SURFACE, DEFAULT)


def create_app(
    scheduler: Scheduler | None = None,
    *,
    settings: Settings | None = None,
    limits: Limits | None = None,
    authenticate: Authenticate | None = None,
    recover: bool = True,
) -> FastAPI:
    """Create the ASGI application. By default, it makes a scheduler from `RQSCHED_*` and closes it at shutdown.

    >>> existing_app.mount("/rqsched", create_app(scheduler))  # doctest: +SKIP

    If `recover` is True, the application shares the reconcile passes with the workers. One such process is enough. If
    the application is mounted in another one, it makes no passes: call `scheduler.keep_recovering()` yourself.
    `authenticate` is your own authentication: it returns a Principal for a request, or None to let tokens decide.
    Raises ConfigError for invalid settings or tokens.
    """
    owned = scheduler is None
    scheduler = scheduler or _from_env(settings)
    limits = limits or Limits()
    app = FastAPI(
        title="rqsched", version=rqsched.__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=_lifespan(scheduler, owned=owned, recover=recover),
    )  # fmt: skip
    used = settings or scheduler.settings
    tokens, proxies = Tokens.of(used), TrustedProxies(used.trusted_proxies)
    authenticator = Authenticator(tokens, authenticate, TokenBuckets(limits.failure_rate, limits.failures))
    wiring = app.state.rqsched = Wiring.of(scheduler, authenticator, limits)
    pages, knows, render_unrouted, render_too_large = _dashboard(wiring)
    app.router.routes += [*_surface_routes(), openapi.docs_route(app), *pages]
    models = [refused.model for refused in _REFUSED]
    openapi.complete(app, requests=ojs.REQUESTS, responses=models, is_open=not tokens and authenticate is None)
    app.add_middleware(Conditional)
    app.add_middleware(
        Guard, surfaces=_SURFACES, limits=limits, authenticator=authenticator, knows=knows, proxies=proxies,
        render_too_large=render_too_large,
    )  # fmt: skip
    for kind in EXPECTED:
        app.add_exception_handler(kind, render_error)
    for status in (404, 405):
        app.add_exception_handler(status, render_unrouted)
    return app


@cache
def _surface_routes() -> tuple[BaseRoute, ...]:
    """Build the routes of the surfaces, once for all applications of a process.

    A route finds the objects of its application in the application's state. FastAPI takes 100 ms of CPU to build the
    routes; newer releases of FastAPI do this at the first request.
    """
    router = APIRouter(dependencies=[Depends(bearer)])
    for module in (native, ojs, durable_workflow, health):
        router.include_router(module.router)
    return tuple(router.routes)


def _render_unrouted(page: _Render, request: Request, error: Exception) -> Response:
    """Render a 404 or 405. Outside the prefixes of the APIs, `page` renders it for a browser."""
    response = (page if tag_of(request).surface is DEFAULT else render_error)(request, error)
    if isinstance(error, HTTPException) and error.status_code == 405:
        response.headers["Allow"] = allowed_methods(request)
    return response


def _dashboard(wiring: Wiring) -> tuple[list[BaseRoute], Knows, _Render, _Render]:
    """Return the dashboard's routes, its session check, and two handlers.

    The first handler is for paths and methods without a route, the second is for too large bodies.

    If the dashboard's extra is not installed, the only route is a page with a hint.
    """
    try:
        from rqsched.dashboard.frame import show_too_large, show_unrouted  # noqa: PLC0415 - an optional extra
        from rqsched.dashboard.routes import routes  # noqa: PLC0415 - as above
        from rqsched.dashboard.session import sessions  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name not in {"jinja2", "markupsafe"}:
            raise
        hint = Route("/", _no_dashboard, include_in_schema=False)
        return [hint], knows_nobody, partial(_render_unrouted, render_error), render_error
    knows = sessions(wiring.scheduler, wiring.authenticator, wiring.ended_sessions)
    return [*routes()], knows, partial(_render_unrouted, show_unrouted), show_too_large


def _no_dashboard(request: Request) -> Response:
    del request
    return PlainTextResponse(f"The API is served here. {install('dashboard')} brings the pages.\n")


def _from_env(settings: Settings | None) -> Scheduler:
    scheduler = Scheduler.from_env(settings=settings)
    scheduler.runtime.database.patience = _PATIENCE
    return scheduler


def _lifespan(
    scheduler: Scheduler, *, owned: bool, recover: bool
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        recovering = Recovering(lambda: scheduler.runtime)
        if recover:
            recovering.begin()
        yield
        await run(recovering.end)
        if owned:
            scheduler.close()

    return lifespan


def serve(
    host: str = "127.0.0.1", port: int = 8000, *, settings: Settings | None = None, workers: int = 1, **options: Any
) -> int:
    """Serve until SIGTERM or Ctrl-C; `options` are uvicorn's. Requests are logged by `rqsched.http.access`.

    With `workers` above 1, that many processes serve the same address, and a process that ends is replaced. Returns
    the exit code. Raises ConfigError if `host` is not loopback and no token is configured. Raises ConfigError if
    `root_path` collides with a path of rqsched. Both are checked before anything is opened.
    """
    settings = settings or Settings()
    if collides(root_path := str(options.get("root_path", ""))):
        raise ConfigError(f"--root-path: {root_path} {SERVE_ELSEWHERE}")
    if not Tokens.of(settings) and not is_loopback(host):
        raise ConfigError(
            f"cannot serve {host!r} without tokens: everyone who can reach it could run code. "
            "Set RQSCHED_TOKENS, or serve 127.0.0.1."
        )
    if workers < 1:
        raise ConfigError(f"workers: {workers} is not a number of processes; give 1 or more.")

    def configure(recover: bool = True) -> uvicorn.Config:
        app = create_app(settings=settings, recover=recover)
        runtime = app.state.rqsched.scheduler.runtime
        runtime.imports.require()  # a wrong setting ends this process, not a request
        if runtime.tracing is not None:
            runtime.tracing.warn_unless_set_up()
        return uvicorn.Config(app, host=host, port=port, **_QUIET | options)

    if workers > 1:
        return serve_with_workers(workers, configure, settings)
    serve_visibly(configure())
    return 0
