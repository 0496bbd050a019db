"""Authenticate viewers: by the application, by a session cookie made from a token, or because they use this machine.

A session names the token from which it was made. Its signature is made with the token's digest and a random secret that
only SQL stores. So somebody who knows only the settings cannot sign a session. Every web process accepts a session
until it expires or its token is removed. If a session is logged out, it has a row in SQL until it expires, and every
web process refuses it. Forms contain the value of a second cookie (double submit), which a page of another site can
neither read nor set.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, quote_plus, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from rqsched.api.database import DatabaseError
from rqsched.api.scheduler import Scheduler
from rqsched.dashboard.rendering import html, render
from rqsched.errors import DatabaseUnavailableError
from rqsched.http.auth import Authenticator, Principal, Tokens
from rqsched.http.dependencies import wiring_of
from rqsched.http.ended_sessions import EndedSessions
from rqsched.http.errors import ForbiddenError
from rqsched.http.middleware import allowed_methods
from rqsched.http.request_bodies import Knows

SESSION, CSRF, FLASH, THEME, ZONE = (f"rqsched_{name}" for name in ("session", "csrf", "flash", "theme", "zone"))
"""The names of the cookies."""
LIFETIME = timedelta(hours=12)
"""The longest life of a session. A cookie that expires later is refused."""
_SKEW = timedelta(minutes=1)
"""A cookie lives for `LIFETIME` minus this length. So a process whose clock is slow by this length accepts it."""
_PURPOSE = b"rqsched dashboard session"
AGAIN = "again"
"""The name of a hidden field of a form that a login interrupted. The form is shown, and its action is not done."""
_LOGIN_BYTES = 2_048
"""How many bytes of a login form are reserved for its token and its target."""
_CSRF_FORM, _MASKED_FORM = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{64}")
_YEAR = 31_536_000
_ENDED = "Your session has ended, so nothing was done. "
_KEPT = _ENDED + "Log in to continue: what you typed is kept."
_TOO_LONG = _ENDED + "What you typed is too long to be kept here: log in in another tab, then send the form again."
_ONLY_HERE = (
    "This browser is logged out. The database does not answer, so a copy of its cookie is accepted until it expires: "
    "where there may be one, remove the token from RQSCHED_TOKENS."
)


class _Session(NamedTuple):
    """The content of a cookie whose signature was verified."""

    principal: Principal
    """The principal that logged in."""
    key: str
    """Identifies the session without revealing the signature of its cookie."""
    expires_at: int
    """When it expires, in seconds since the epoch."""


def principal_of(request: Request, now: datetime) -> Principal:
    """Return the viewer of a page; raises UnauthorizedError or ForbiddenError."""
    wiring = wiring_of(request)
    found = _session(request, wiring.authenticator.tokens, wiring.ended_sessions.secret, now)
    if found is not None and not wiring.ended_sessions.has(found.key):
        return found.principal
    return wiring.authenticator.principal_of(request)


def lasting(request: Request, now: datetime) -> Callable[[], bool]:
    """Return a function that says whether a request's session is still valid. Without a session, it says True."""
    wiring = wiring_of(request)
    ended = wiring.ended_sessions
    found = _session(request, wiring.authenticator.tokens, ended.secret, now)
    if found is None or ended.had(found.key):
        return lambda: True
    return lambda: found.expires_at > wiring.scheduler.runtime.now().timestamp() and not ended.has(found.key)


def sessions(scheduler: Scheduler, authenticator: Authenticator, ended: EndedSessions) -> Knows:
    """Return a coroutine function that says whether a request has a valid session.

    It uses the values that were last read from SQL. If no signing secret was read yet, it reads SQL in a thread.
    """

    async def knows(connection: HTTPConnection) -> bool:
        if SESSION in connection.cookies and authenticator.tokens and ended.known_secret is None:
            with suppress(DatabaseUnavailableError, DatabaseError):
                await run_in_threadpool(ended.secret)
        now = scheduler.runtime.now()
        found = _session(connection, authenticator.tokens, lambda: ended.known_secret, now)
        return found is not None and not ended.had(found.key)

    return knows


def _session(
    connection: HTTPConnection, tokens: Tokens, secret: Callable[[], bytes | None], now: datetime
) -> _Session | None:
    cookie = connection.cookies.get(SESSION)
    if not tokens or not cookie or (signing := secret()) is None:
        return None
    encoded, _, signature = cookie.partition(".")
    try:
        body = base64.urlsafe_b64decode(encoded)
    except ValueError:
        return None
    for digest, principal in tokens.entries():
        if hmac.compare_digest(_signature(_key(signing, digest), body).encode(), signature.encode()):
            expires_at = _expiry(body, principal.name, now)
            key = hashlib.sha256(signature.encode()).hexdigest()[:48]
            return None if expires_at is None else _Session(principal, key, expires_at)
    return None


def _expiry(body: bytes, name: str, now: datetime) -> int | None:
    """Return the expiry of a signed body; None if it has expired, expires too late or names another principal."""
    try:
        named, expires_at, *_ = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return None
    first, last = now.timestamp(), (now + LIFETIME).timestamp()
    is_valid = named == name and isinstance(expires_at, int) and first < expires_at <= last
    return expires_at if is_valid else None


def _key(secret: bytes, digest: bytes) -> bytes:
    """Return the key that signs the sessions of a token, derived from the secret in SQL and the token's digest."""
    return hmac.new(secret, _PURPOSE + digest, hashlib.sha256).digest()


def _signature(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def csrf_of(request: Request) -> str:
    """Return the value of this browser's CSRF cookie, or a new value if there is no cookie."""
    known = request.cookies.get(CSRF, "")
    return known if _CSRF_FORM.fullmatch(known) else secrets.token_hex(16)


def masked(csrf: str) -> str:
    """Return a CSRF value for a form field, masked differently in each response.

    Pages are compressed. If every page contained the unmasked value, an attacker could find it: by injecting guesses
    into pages, and observing the length of responses (BREACH).
    """
    mask = secrets.token_bytes(16)
    return mask.hex() + _xor(mask, bytes.fromhex(csrf)).hex()


def _unmasked(given: str) -> str:
    if not _MASKED_FORM.fullmatch(given):
        return ""
    value = bytes.fromhex(given)
    return _xor(value[:16], value[16:]).hex()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def require_csrf(request: Request, given: str) -> None:
    """Refuse a form that was not sent from a page of this dashboard; raises ForbiddenError.

    Another subdomain may set cookies for this site. Therefore the headers in which the browser describes the sending
    page are checked, too.
    """
    if request.headers.get("sec-fetch-site", "same-origin") in {"cross-site", "same-site"}:
        raise ForbiddenError("a page of another site may not make changes; use those of this server.")
    known = request.cookies.get(CSRF, "")
    if not known or not hmac.compare_digest(known.encode(), _unmasked(given).encode()):
        raise ForbiddenError("the form is too old, or cookies are blocked; load the page again and repeat it.")


def remember(response: Response, request: Request, name: str, value: str, *, seconds: int | None = None) -> None:
    """Set a cookie of the dashboard. Without `seconds`, the browser forgets the cookie when it is closed."""
    response.set_cookie(
        name, value, max_age=seconds, path=_path(request), httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def forget(response: Response, request: Request, name: str) -> None:
    """Remove a cookie of the dashboard."""
    response.delete_cookie(name, path=_path(request))


def _path(request: Request) -> str:
    return str(request.scope.get("root_path", "")) or "/"


def show_login(request: Request, form: Mapping[str, str]) -> Response:
    """Show the form that asks for a token."""
    del form
    return _render(request, 200)


def ask_for_token(request: Request, fields: Sequence[tuple[str, str]]) -> Response:
    """Lead a viewer without a session to the login. The login form keeps the fields of a form that was sent.

    Only a form of this dashboard is kept. Otherwise a page of another site could fill in a form for the viewer.
    """
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    root = request.scope.get("root_path", "")
    if request.method == "POST":
        try:
            require_csrf(request, dict(fields).get("csrf", ""))
        except ForbiddenError:
            path = path if allowed_methods(request).startswith("GET") else f"{root}/"
        else:
            kept = urlencode([(name, value) for name, value in fields if name not in {"csrf", AGAIN}])
            is_short = len(quote_plus(kept)) + _LOGIN_BYTES <= wiring_of(request).feed.limits.stranger_bytes
            told = _KEPT if is_short else _TOO_LONG
            return _render(request, 401, told, to=path, kept=kept if is_short else "")
    return RedirectResponse(f"{root}/login?to={quote(path, safe='')}", 303)


def show_too_long(request: Request) -> Response:
    """Show the login form to a sender without a session whose form was too long to be read."""
    return _render(request, 413, _TOO_LONG, to=f"{request.scope.get('root_path', '')}/")


def log_in(request: Request, form: Mapping[str, str]) -> Response:
    """Begin a session, and redirect to the requested page. A kept form is sent there, to be shown again."""
    require_csrf(request, form.get("csrf", ""))
    wiring = wiring_of(request)
    principal = wiring.authenticator.find(form.get("token", ""), request)
    if principal is None:
        told = "This token is unknown. RQSCHED_TOKENS lists those that are accepted."
        return _render(request, 401, told, to=form.get("to"), kept=form.get("kept", ""))
    to = _target(request, form.get("to", ""))
    response: Response = RedirectResponse(to, 303)
    if kept := form.get("kept"):
        response = _render(request, 200, to=to, fields=parse_qsl(kept, keep_blank_values=True))
    digest = next(digest for digest, known in wiring.authenticator.tokens.entries() if known is principal)
    key = _key(wiring.ended_sessions.make_secret(), digest)
    expires_at = int((wiring.scheduler.runtime.now() + LIFETIME - _SKEW).timestamp())
    body = json.dumps([principal.name, expires_at, secrets.token_hex(8)]).encode()  # sessions are unique
    value = f"{base64.urlsafe_b64encode(body).decode()}.{_signature(key, body)}"
    remember(response, request, SESSION, value, seconds=int(LIFETIME.total_seconds()))
    return response


def log_out(request: Request, form: Mapping[str, str]) -> Response:
    """End the session in every web process. Remove the cookie even if the database does not answer."""
    require_csrf(request, form.get("csrf", ""))
    wiring = wiring_of(request)
    response: Response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
    ended, now = wiring.ended_sessions, wiring.scheduler.runtime.now()
    try:
        if (found := _session(request, wiring.authenticator.tokens, ended.secret, now)) is not None:
            ended.end(found.key, found.expires_at)
    except (DatabaseUnavailableError, DatabaseError):
        response = _render(request, 503, _ONLY_HERE)
    forget(response, request, SESSION)
    return response


def choose_theme(request: Request, form: Mapping[str, str]) -> Response:
    """Store the chosen theme in a cookie: light, dark, or the system's preference."""
    require_csrf(request, form.get("csrf", ""))
    response = RedirectResponse(_target(request, form.get("to", "")), 303)
    theme = form.get("theme", "")
    remember(response, request, THEME, theme if theme in {"light", "dark"} else "", seconds=_YEAR)
    return response


def _target(request: Request, wanted: str) -> str:
    """Return the page to redirect to. If it is not a path of this site, return the front page."""
    root = str(request.scope.get("root_path", ""))
    is_own = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_own else f"{root}/"


def _render(
    request: Request,
    status: int,
    problem: str = "",
    *,
    to: str | None = None,
    kept: str = "",
    fields: Sequence[tuple[str, str]] = (),
) -> Response:
    """Render the login form, which keeps another form. With `fields`, render that other form to be sent to `to`."""
    csrf, to = csrf_of(request), request.query_params.get("to", "") if to is None else to
    text = render(
        "login.html", csrf=masked(csrf), problem=problem, to=to, kept=kept, fields=fields, again=AGAIN,
        root=request.scope.get("root_path", ""), theme=request.cookies.get(THEME, ""),
    )  # fmt: skip
    response = html(request, text, status)
    remember(response, request, CSRF, csrf)
    return response
