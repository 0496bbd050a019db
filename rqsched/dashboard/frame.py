"""The frame around each page of the dashboard: authentication, roles, forms, errors, and the stream of changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rqsched.api.database import DatabaseError
from rqsched.api.events import SETTLING, FoundEvent
from rqsched.api.options import require_id
from rqsched.dashboard import session
from rqsched.dashboard.equivalent import Equivalent
from rqsched.dashboard.rendering import html, render
from rqsched.dashboard.visit import Visit
from rqsched.errors import (
    DatabaseUnavailableError,
    InvalidInputError,
    NamespaceNotFoundError,
    RqschedError,
    WorkCancelledError,
)
from rqsched.http.auth import Principal, Role
from rqsched.http.dependencies import wiring_of
from rqsched.http.errors import (
    HttpError,
    MalformedError,
    Problem,
    RateLimitedError,
    TooLargeError,
    TooManyHeavyReadsError,
    TooManyStreamsError,
    UnauthorizedError,
    problem_of,
)
from rqsched.http.event_feed import Reader
from rqsched.http.event_stream import NamespaceCursor, open_stream
from rqsched.http.middleware import tag_of

_log = logging.getLogger(__name__)
_MOST_FIELDS = 2_000
_PATIENCE = 3.0
"""Seconds that a heavy page waits for another heavy page of the same viewer. Browsers may open several at once."""
AS_TEXT = "as_text"
"""The name of the button that shows what a form does, instead of doing it."""
_NOBODY = Principal("nobody", Role.READ, frozenset())
T = TypeVar("T")
Handler = Callable[[Visit], Response]


def page(
    path: str,
    handler: Handler,
    role: Role = Role.READ,
    method: str = "GET",
    *,
    is_heavy: bool = False,
    counts: str | None = None,
    again: Handler | None = None,
) -> Route:
    """Return the route of a page. A heavy page or a dry run computes for seconds, so it waits for admission.

    If a form has the field `counts` and no field `cursor`, its page counts rows and is heavy. `again` shows a form as
    it was filled in, after a login has interrupted it. Without `again`, a page lists the fields and asks whether to
    send them.
    """

    async def serve(request: Request) -> Response:
        try:
            fields = await _fields(request)
        except RqschedError as error:
            return _error(request, None, error)
        names, act = {name for name, _ in fields}, handler
        if session.AGAIN in names:
            act = again or _ask_again
        if not (is_heavy or "dry_run" in names or (counts in names and "cursor" not in names)):
            return await run_in_threadpool(_serve, request, fields, act, role)
        # Find the viewer in a thread first. Then wait for the admission without a thread.
        visit = await run_in_threadpool(_serve, request, fields, _same, role)
        if isinstance(visit, Response):
            return visit
        try:
            async with wiring_of(request).heavy_reads.admit(request, visit.principal.name, patience=_PATIENCE):
                return await run_in_threadpool(_show, request, visit, act)
        except TooManyHeavyReadsError as error:
            response = _error(request, visit, error)
            if method == "GET":
                response.headers["Refresh"] = response.headers["Retry-After"]  # the browser reloads the page by itself
            return response

    return Route(path, serve, methods=[method], include_in_schema=False)


def _same(visit: Visit) -> Visit:
    return visit


def _show(request: Request, visit: Visit, handler: Handler) -> Response:
    try:
        return handler(visit)
    except Exception as error:  # noqa: BLE001 - as in `_serve`
        return _error(request, visit, error)


class Form(Route):
    """The route to which a form is sent."""

    equivalent: Callable[[Visit], Equivalent] | None = None
    """Returns what the form does as a command and in Python; None if neither can do it."""


def form(
    path: str,
    handler: Handler,
    role: Role = Role.OPERATE,
    *,
    counts: str | None = None,
    again: Handler | None = None,
    equivalent: Callable[[Visit], Equivalent] | None = None,
) -> Form:
    """Return the route to which a form is sent. `counts` and `again` are as in `page`.

    If the form's button `as_text` was pressed, only show what the form does as a command and in Python.
    """

    def do(visit: Visit) -> Response:
        if equivalent is not None and AS_TEXT in visit.form:
            return visit.page("as_text.html", same=equivalent(visit))
        return handler(visit)

    endpoint = page(path, do, role, "POST", counts=counts, again=again).endpoint
    route = Form(path, endpoint, methods=["POST"], include_in_schema=False)
    route.equivalent = equivalent
    return route


def _ask_again(visit: Visit) -> Response:
    """Show the fields of a form that a login has interrupted, and ask whether to send them."""
    own = {"csrf", "namespace", "id", session.AGAIN}
    fields = [(name, text) for name, text in visit.form.items() if name not in own]
    return visit.page("again.html", fields=[*fields, *(("id", one) for one in visit.chosen)])


def public(path: str, handler: Callable[[Request, Mapping[str, str]], Response], method: str = "POST") -> Route:
    """Return the route of a page that needs no principal."""

    async def serve(request: Request) -> Response:
        try:
            fields = dict(await _fields(request))
            return await run_in_threadpool(handler, request, fields)
        except Exception as error:  # noqa: BLE001 - as in `_serve`
            return _error(request, None, error)

    return Route(path, serve, methods=[method], include_in_schema=False)


async def stream(request: Request) -> Response:
    """Return the stream of events of the viewer's namespace. It begins at the time when the page was read."""
    try:
        visit = await run_in_threadpool(_visit, request, [])
        cursor = NamespaceCursor(visit.namespace, _since(visit))
        reader = Reader(visit.namespace, visit.now, may_read=session.lasting(request, visit.now))
        return await open_stream(wiring_of(request).feed, reader, cursor, is_new=False, fields=_least)
    except (UnauthorizedError, RateLimitedError, TooManyStreamsError, DatabaseUnavailableError, DatabaseError):
        return Response(status_code=204)  # no stream now; a browser would log any other status as an error
    except RqschedError as error:
        return _error(request, None, error)


def _since(visit: Visit) -> datetime:
    """Return the instant from which events are sent. It is at most `SETTLING` ago, because old pages are reloaded."""
    text = visit.query("since")
    try:
        at = datetime.fromisoformat(text) if text else visit.now
    except ValueError:
        raise InvalidInputError("since", f"{text[:64]!r} is not a time; load the page again") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(at, visit.now - SETTLING), visit.now)


def _least(event: FoundEvent, id_: str) -> dict[str, Any]:
    """Return only the schedule and the type of an event, because the page reads the details itself."""
    return {"id": id_, "schedule_id": event.schedule_id, "event_type": event.record.event_type}


def _serve(request: Request, fields: list[tuple[str, str]], handler: Callable[[Visit], T], role: Role) -> T | Response:
    visit: Visit | None = None
    try:
        visit = _visit(request, fields)
        if request.method == "POST":
            session.require_csrf(request, visit.form.get("csrf", ""))
        visit.require(role)
        return handler(visit)
    except UnauthorizedError:
        return session.ask_for_token(request, fields)
    except Exception as error:  # noqa: BLE001 - the boundary of a page: a browser shows no JSON
        return _error(request, visit, error)


def _visit(request: Request, fields: list[tuple[str, str]]) -> Visit:
    wiring = wiring_of(request)
    scheduler, form = wiring.scheduler, dict(fields)
    now = scheduler.runtime.now()
    principal = session.principal_of(request, now)
    wiring.buckets.take(principal.name)
    wanted = form.get("namespace") or request.query_params.get("namespace")
    namespace = _namespace(principal, wanted, scheduler.settings.namespace)
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
    """Read the fields of a form. If no form was sent, return none."""
    if request.method != "POST":
        return []
    try:
        text = (await request.body()).decode()
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise MalformedError("the form cannot be read; load the page again.") from None


def _error(request: Request, visit: Visit | None, error: BaseException) -> Response:
    """Render an error as a page that says what to do."""
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, (HttpError, WorkCancelledError)):
        _log.error(
            "page %s failed: %s", request.url.path, type(error).__name__,
            exc_info=error if problem.status == 500 else None, extra={"action": "page_failed"},
        )  # fmt: skip
    return _problem_page(request, visit, problem)


def _problem_page(request: Request, visit: Visit | None, problem: Problem) -> Response:
    """Render a problem. The page has the menu if the viewer is known and the backends answer."""
    response = None
    if visit is not None and problem.status < 500 and problem.status != 429:
        with suppress(RqschedError, DatabaseError):
            response = visit.page("error.html", problem.status, problem=problem)
    if response is None:
        scheduler, id_ = wiring_of(request).scheduler, tag_of(request).request_id
        shown = visit or Visit(request, scheduler, _NOBODY, scheduler.settings.namespace, id_, scheduler.runtime.now())
        text = render("error.html", visit=shown, problem=problem, csrf="", flash="", is_bare=True)
        response = html(request, text, problem.status)
    for name, value in problem.headers.items():
        response.headers.setdefault(name, value)
    return response


_UNROUTED = {
    404: "no page has this address.",
    405: "this address takes a form, and shows no page. Nothing was done.",
}


def show_too_large(request: Request, error: Exception) -> Response:
    """Render the page for a form that is too large to be read. A sender without a session may send less."""
    if isinstance(error, TooLargeError) and error.limit < wiring_of(request).feed.limits.body_bytes:
        return session.show_too_long(request)
    return _problem_page(request, None, problem_of(error))


def show_unrouted(request: Request, error: Exception) -> Response:
    """Render the page for a path that no route has, or for a method that no route of the path takes."""
    visit: Visit | None = None
    with suppress(RqschedError, DatabaseError):
        visit = _visit(request, [])
    problem = problem_of(error)
    return _problem_page(request, visit, replace(problem, detail=_UNROUTED.get(problem.status, problem.detail)))
