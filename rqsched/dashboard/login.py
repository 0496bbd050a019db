"""Logging in with a token, logging out, and the choice between light and dark."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rqsched.dashboard import session
from rqsched.dashboard.rendering import render
from rqsched.dashboard.visit import HEADERS
from rqsched.http.dependencies import wiring_of

_YEAR = 31_536_000


def show(request: Request, form: Mapping[str, str]) -> Response:
    """Show the form that asks for a token."""
    del form
    return _render(request, 200)


def submit(request: Request, form: Mapping[str, str]) -> Response:
    """Begin a session, and go where the viewer wanted to go."""
    session.require_csrf(request, form.get("csrf", ""))
    wiring = wiring_of(request)
    principal = wiring.authenticator.find(form.get("token", ""), request)
    if principal is None:
        return _render(request, 401, "This token is unknown. RQSCHED_TOKENS lists those that are accepted.")
    response = RedirectResponse(_target(request, form.get("to", "")), 303)
    session.start(response, request, wiring.authenticator.tokens, principal, wiring.scheduler.runtime.now())
    return response


def leave(request: Request, form: Mapping[str, str]) -> Response:
    """End the session."""
    session.require_csrf(request, form.get("csrf", ""))
    response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
    session.end(response, request)
    return response


def choose_theme(request: Request, form: Mapping[str, str]) -> Response:
    """Remember light, dark, or what the system prefers."""
    session.require_csrf(request, form.get("csrf", ""))
    response = RedirectResponse(_target(request, form.get("to", "")), 303)
    theme = form.get("theme", "")
    session.remember(response, request, session.THEME, theme if theme in {"light", "dark"} else "", seconds=_YEAR)
    return response


def _target(request: Request, wanted: str) -> str:
    """Return where to go on: only a path of this site."""
    root = str(request.scope.get("root_path", ""))
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_own else f"{root}/"


def _render(request: Request, status: int, problem: str = "") -> Response:
    csrf = session.csrf_of(request)
    text = render(
        "login.html", request=request, csrf=csrf, problem=problem, to=request.query_params.get("to", ""),
        root=request.scope.get("root_path", ""), theme=request.cookies.get(session.THEME, ""),
    )  # fmt: skip
    response = HTMLResponse(text, status, headers=HEADERS)
    session.remember(response, request, session.CSRF, csrf)
    return response
