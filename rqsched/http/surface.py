"""A surface is a path prefix of the application that has its own form of errors and headers, even for unknown paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from rqsched.errors import RqschedError
from rqsched.http.errors import HttpError, Problem


def render_problem(problem: Problem, request_id: str) -> Response:
    """Render problem details (RFC 9457), the native form."""
    body = {
        "type": f"urn:rqsched:error:{problem.code}",
        "title": problem.code.replace("_", " "),
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "request_id": request_id,
    }
    errors = [{"field": field.field, "message": field.message, "code": field.code} for field in problem.fields]
    attributes = {}
    if (
        isinstance(problem.error, RqschedError) and problem.status < 500 and not isinstance(problem.error, HttpError)
    ):  # a client builds the same exception from them
        given = {
            name: value for name, value in vars(problem.error).items() if name not in {"field", "reason"} or not errors
        }
        attributes = {name: value for name, value in given.items() if isinstance(value, str | int | list | None)}
    return JSONResponse(
        body | ({"errors": errors} if errors else {}) | ({"attributes": attributes} if attributes else {}),
        status_code=problem.status,
        headers=dict(problem.headers),
        media_type="application/problem+json",
    )


def _no_headers(connection: HTTPConnection) -> Mapping[str, str]:
    del connection
    return {}


def _as_it_is(connection: HTTPConnection, media_type: str) -> str:
    del connection
    return media_type


@dataclass(frozen=True, slots=True)
class Surface:
    """One prefix of the application, with its form of errors and its headers."""

    prefix: str
    """The prefix, such as `/ojs`, without a trailing slash. The empty prefix stands for all other paths."""
    render: Callable[[Problem, str], Response] = render_problem
    """Renders a problem with the request's id. The problem's headers are added afterwards."""
    headers: Callable[[HTTPConnection], Mapping[str, str]] = _no_headers
    """The headers of every response, even of errors."""
    media_type: Callable[[HTTPConnection, str], str] = _as_it_is
    """Returns the media type of a response, given the request and the usual media type."""
    has_slash: bool = False
    """Whether its routes end in a slash. Callers may use either form: the path is corrected before routing."""

    def holds(self, path: str) -> bool:
        """Return whether a path is under the prefix."""
        return path == self.prefix or path.startswith(self.prefix + "/")


DEFAULT = Surface("")


def surface_of(surfaces: Sequence[Surface], path: str) -> Surface:
    """Return the most specific surface that holds a path."""
    found = [surface for surface in surfaces if surface.holds(path)]
    return max(found, key=lambda surface: len(surface.prefix), default=DEFAULT)
