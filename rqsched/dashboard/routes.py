"""The addresses of the dashboard, and the frame around each page: authentication, roles, forms and errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from rqsched.core.option_table import require_id
from rqsched.dashboard import actions, backfills, editor, live, login, session, system, timeline
from rqsched.dashboard import overview as overview_page
from rqsched.dashboard import run as run_page
from rqsched.dashboard import schedule as schedule_page
from rqsched.dashboard import schedules as schedules_page
from rqsched.dashboard.rendering import STATIC, render
from rqsched.dashboard.visit import HEADERS, Visit
from rqsched.errors import DatabaseUnavailableError, NamespaceNotFoundError, RqschedError
from rqsched.http.auth import Principal, Role
from rqsched.http.dependencies import wiring_of
from rqsched.http.errors import MalformedError, RateLimitedError, TooManyStreamsError, UnauthorizedError, problem_of
from rqsched.http.middleware import tag_of
from rqsched.store.database import DatabaseError

_log = logging.getLogger(__name__)
_MOST_FIELDS = 2_000
_NOBODY = Principal("nobody", Role.READ, frozenset())
_YEAR = 31_536_000
_TYPES = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}
Handler = Callable[[Visit], Response]


def routes() -> list[Route]:
    """Return the routes of every page, form and static file."""
    schedule, run = "/schedules/{schedule_id}", "/runs/{uid}"
    return [
        _page("/", overview_page.show),
        _page("/schedules", schedules_page.show),
        _page("/schedules/new", editor.new, Role.ADMIN),
        _page(schedule, schedule_page.show),
        _page(f"{schedule}/edit", editor.edit, Role.ADMIN),
        _page(run, run_page.show),
        _page("/timeline", timeline.show),
        _page("/system", system.show),
        _page("/preview", editor.preview, Role.ADMIN),
        Route("/stream", _stream, methods=["GET"], include_in_schema=False),
        _form("/schedules", editor.create, Role.ADMIN),
        _form("/bulk", actions.bulk),
        _page("/retry-failed", actions.confirm_retry_failed, Role.OPERATE),
        _form("/retry-failed", actions.retry_failed),
        _form(f"{schedule}/edit", editor.update, Role.ADMIN),
        _form(f"{schedule}/do", actions.act_on_schedule),
        _form(f"{run}/do", actions.act_on_run),
        _form("/backfills/{uid}/cancel", backfills.cancel),
        _page("/schedules/{schedule_id}/confirm", actions.confirm),
        Route("/login", _open(login.show), methods=["GET"], include_in_schema=False),
        Route("/login", _open(login.submit), methods=["POST"], include_in_schema=False),
        Route("/logout", _open(login.leave), methods=["POST"], include_in_schema=False),
        Route("/theme", _open(login.choose_theme), methods=["POST"], include_in_schema=False),
        Route("/static/{name}", _static, methods=["GET"], include_in_schema=False),
    ]


def _page(path: str, handler: Handler, role: Role = Role.READ) -> Route:
    return Route(path, _framed(handler, role), methods=["GET"], include_in_schema=False)


def _form(path: str, handler: Handler, role: Role = Role.OPERATE) -> Route:
    return Route(path, _framed(handler, role), methods=["POST"], include_in_schema=False)


def _framed(handler: Handler, role: Role) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        fields = await _fields(request) if request.method == "POST" else []
        return await run_in_threadpool(_serve, request, fields, handler, role)

    return serve


def _open(handler: Callable[[Request, Mapping[str, str]], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page that needs no principal."""

    async def serve(request: Request) -> Response:
        fields = await _fields(request) if request.method == "POST" else []
        try:
            return handler(request, dict(fields))
        except RqschedError as error:
            return _error(request, None, error)

    return serve


async def _stream(request: Request) -> Response:
    try:
        visit = await run_in_threadpool(_visit, request, [])
        return await live.follow(visit)
    except (UnauthorizedError, RateLimitedError, TooManyStreamsError, DatabaseUnavailableError, DatabaseError):
        return live.none_now()
    except RqschedError as error:
        return _error(request, None, error)


def _serve(request: Request, fields: list[tuple[str, str]], handler: Handler, role: Role) -> Response:
    visit: Visit | None = None
    try:
        visit = _visit(request, fields)
        if request.method == "POST":
            session.require_csrf(request, visit.form.get("csrf", ""))
        visit.require(role)
        return handler(visit)
    except UnauthorizedError:
        to = quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""), safe="")
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login?to={to}", 303)
    except (RqschedError, DatabaseError, OSError) as error:
        return _error(request, visit, error)


def _visit(request: Request, fields: list[tuple[str, str]]) -> Visit:
    wiring = wiring_of(request)
    now = wiring.scheduler.runtime.now()
    principal = session.principal_of(request, wiring.authenticator, now)
    wiring.buckets.take(principal.name)
    form = dict(fields)
    scheduler = wiring.scheduler
    namespace = _namespace(
        principal, form.get("namespace") or request.query_params.get("namespace"), scheduler.settings.namespace
    )
    chosen = tuple(value for name, value in fields if name == "id")
    return Visit(request, scheduler, principal, namespace, tag_of(request).request_id, now, form, chosen)


def _namespace(principal: Principal, wanted: str | None, default: str) -> str:
    if wanted is None and not principal.sees(default):
        wanted = min(principal.namespaces or {default})
    namespace = require_id(wanted or default, "namespace")
    if not principal.sees(namespace):
        raise NamespaceNotFoundError(namespace)
    return namespace


async def _fields(request: Request) -> list[tuple[str, str]]:
    try:
        text = (await request.body()).decode()
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise MalformedError("the form cannot be read; load the page again.") from None


def _error(request: Request, visit: Visit | None, error: BaseException) -> Response:
    """Render an error as a page that says what to do."""
    problem = problem_of(error)
    if problem.status >= 500:
        _log.error(
            "page %s failed: %s", request.url.path, type(error).__name__,
            exc_info=error if problem.status == 500 else None, extra={"action": "page_failed"},
        )  # fmt: skip
    shown = visit or Visit(
        request,
        wiring_of(request).scheduler,
        _NOBODY,
        wiring_of(request).scheduler.settings.namespace,
        tag_of(request).request_id,
        wiring_of(request).scheduler.runtime.now(),
    )
    text = render("error.html", visit=shown, problem=problem, csrf="", flash="", is_bare=True)
    response = Response(text, problem.status, dict(HEADERS), "text/html")
    for name, value in problem.headers.items():
        response.headers.setdefault(name, value)
    return response


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _TYPES:
        return Response("not found", 404)
    keep = f"public, max-age={_YEAR}, immutable" if "v" in request.query_params else "no-cache"
    return FileResponse(STATIC / name, media_type=_TYPES[name], headers={"Cache-Control": keep})
