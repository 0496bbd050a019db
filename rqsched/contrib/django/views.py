"""The view that serves the dashboard to users whom Django has authenticated. It works under WSGI and ASGI."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt

from rqsched.contrib.django.lazy import scheduler
from rqsched.contrib.django.project import OPERATOR, own_settings
from rqsched.dashboard import Principal, Role, wsgi

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_REQUEST = "rqsched.principal_of_django"


def staff(request: HttpRequest) -> Principal | None:
    """Return the principal of a member of staff; None for others. Superusers may do everything, other staff may read.

    RQSCHED["OPERATOR"] may name a function that replaces this one.
    """
    user = getattr(request, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        return None
    return Principal(user.get_username(), Role.ADMIN if user.is_superuser else Role.READ)


@csrf_exempt  # type: ignore[untyped-decorator] # the dashboard's forms have their own CSRF token
def dashboard(request: HttpRequest, page: str = "") -> HttpResponse:
    """Serve one page or form. Redirect anonymous visitors to the login, and refuse users without access."""
    principal = _operator()(request)
    if principal is None:
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            raise PermissionDenied("Only staff of this site may see its schedules.")
        return redirect_to_login(request.get_full_path(), _login_url())
    root = reverse("rqsched-dashboard").rstrip("/")
    return _answer(_environ(request, root, f"/{page}", principal))


def _operator() -> Callable[[HttpRequest], Principal | None]:
    named = own_settings().get(OPERATOR)
    if named is None:
        return staff
    found: Callable[[HttpRequest], Principal | None] = import_string(named) if isinstance(named, str) else named
    return found


def _login_url() -> str:
    """Return the login URL of Django's admin. If the site has no admin, return LOGIN_URL."""
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(django_settings.LOGIN_URL))


@cache
def _pages() -> WSGIApplication:
    return wsgi(scheduler, operator=lambda environ: environ[_REQUEST])


def _environ(request: HttpRequest, root: str, path: str, principal: Principal) -> dict[str, Any]:
    """Return the request as a WSGI environ. An ASGI request has no environ, so it is built here."""
    plain = {name: value for name, value in request.META.items() if isinstance(value, str)}
    return plain | {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": root,
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": request.META.get("QUERY_STRING", ""),
        "SERVER_NAME": request.META.get("SERVER_NAME", "localhost"),
        "SERVER_PORT": request.get_port(),
        "SERVER_PROTOCOL": request.META.get("SERVER_PROTOCOL", "HTTP/1.1"),
        "CONTENT_LENGTH": str(len(request.body)),
        "HTTP_HOST": request.get_host(),
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.url_scheme": request.scheme,
        _REQUEST: principal,
    }


def _answer(environ: dict[str, Any]) -> HttpResponse:
    told: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
        told.update(status=status, headers=headers)
        return lambda _: None

    body = b"".join(_pages()(environ, start_response))
    response = HttpResponse(body, status=int(told["status"].partition(" ")[0]))
    for name, value in told["headers"]:
        if name.lower() == "set-cookie":  # the only header that may occur several times
            response.cookies.load(value)
        else:
            response[name] = value
    return response
