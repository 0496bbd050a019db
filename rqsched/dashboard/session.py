"""Who looks at a page: the application's own authentication, a session cookie made from a token, or this machine.

A session names the token it was made from and is signed with that token's digest: nothing is stored on the server, any
web process accepts it, and it ends when the token is removed or its time is over. Forms carry the value of a second
cookie (double submit), which a page of another site can neither read nor set.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from rqsched.api.scheduler import Scheduler
from rqsched.http.auth import Authenticator, Principal, Tokens
from rqsched.http.errors import ForbiddenError

SESSION, CSRF, FLASH, THEME, ZONE = (f"rqsched_{name}" for name in ("session", "csrf", "flash", "theme", "zone"))
"""The names of the cookies."""
LIFETIME = timedelta(hours=12)
"""How long a session lasts."""
_PURPOSE = b"rqsched dashboard session"


def principal_of(request: Request, authenticator: Authenticator, now: datetime) -> Principal:
    """Return on whose behalf a page is shown; raises UnauthorizedError or ForbiddenError."""
    tokens = authenticator.tokens
    if tokens and (cookie := request.cookies.get(SESSION)) and (found := _read(cookie, tokens, now)) is not None:
        return found
    return authenticator.principal_of(request)


def sessions(scheduler: Scheduler, authenticator: Authenticator) -> Callable[[HTTPConnection], bool]:
    """Return what tells whether a request carries a valid session."""

    def knows(connection: HTTPConnection) -> bool:
        cookie = connection.cookies.get(SESSION)
        tokens = authenticator.tokens
        return bool(tokens and cookie) and _read(cookie or "", tokens, scheduler.runtime.now()) is not None

    return knows


def start(response: Response, request: Request, tokens: Tokens, principal: Principal, now: datetime) -> None:
    """Begin a session of a token's principal."""
    digest = next(digest for digest, known in tokens.entries() if known is principal)
    body = json.dumps([principal.name, int((now + LIFETIME).timestamp())]).encode()
    value = f"{base64.urlsafe_b64encode(body).decode()}.{_signature(digest, body)}"
    _set(response, request, SESSION, value, seconds=int(LIFETIME.total_seconds()))


def end(response: Response, request: Request) -> None:
    """End the session of this browser."""
    response.delete_cookie(SESSION, path=_path(request))


def _read(cookie: str, tokens: Tokens, now: datetime) -> Principal | None:
    encoded, _, signature = cookie.partition(".")
    try:
        body = base64.urlsafe_b64decode(encoded)
    except ValueError:
        return None
    for digest, principal in tokens.entries():
        if hmac.compare_digest(_signature(digest, body).encode(), signature.encode()):
            return principal if _holds(body, principal.name, now) else None
    return None


def _holds(body: bytes, name: str, now: datetime) -> bool:
    """Return whether a signed body names a principal and has not expired; who knows the token may sign anything."""
    try:
        named, expires_at = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return False
    return bool(named == name and isinstance(expires_at, int) and expires_at > now.timestamp())


def _signature(digest: bytes, body: bytes) -> str:
    return hmac.new(digest, _PURPOSE + body, hashlib.sha256).hexdigest()


def csrf_of(request: Request) -> str:
    """Return the value that forms of this browser carry; a new one when it has none."""
    known = request.cookies.get(CSRF, "")
    return known if len(known) == 32 and known.isalnum() else secrets.token_hex(16)


def require_csrf(request: Request, given: str) -> None:
    """Refuse a form that no page of ours was the origin of; raises ForbiddenError.

    A neighbouring subdomain may set cookies of ours: what the browser says of the page that sent the form counts, too.
    """
    if request.headers.get("sec-fetch-site", "same-origin") in {"cross-site", "same-site"}:
        raise ForbiddenError("a page of another site may not make changes.")
    known = request.cookies.get(CSRF, "")
    if not known or not hmac.compare_digest(known.encode(), given.encode("utf-8", "surrogatepass")):
        raise ForbiddenError("the form is too old, or cookies are blocked; load the page again and repeat it.")


def remember(response: Response, request: Request, name: str, value: str, *, seconds: int | None = None) -> None:
    """Set a cookie of the dashboard; one without `seconds` ends with the browser."""
    _set(response, request, name, value, seconds=seconds)


def forget(response: Response, request: Request, name: str) -> None:
    """Remove a cookie of the dashboard."""
    response.delete_cookie(name, path=_path(request))


def _set(response: Response, request: Request, name: str, value: str, *, seconds: int | None) -> None:
    response.set_cookie(
        name, value, max_age=seconds, path=_path(request), httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def _path(request: Request) -> str:
    return str(request.scope.get("root_path", "")) or "/"
