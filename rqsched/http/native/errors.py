"""The native surface and the form of its errors: problem details (RFC 9457)."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from rqsched.errors import ScheduleStateError
from rqsched.http.errors import Problem
from rqsched.http.middleware import Tag, render_tagged, request_id_of
from rqsched.http.surface import Surface, render_problem

_BAD_REQUEST = frozenset({"pause", "resume"})
"""Operations whose wrong status is 400 instead of 409."""


def render(problem: Problem, request_id: str) -> Response:
    """Render problem details; a pause or resume in the wrong status is 400, as the Pipelit document says."""
    error = problem.error
    if isinstance(error, ScheduleStateError) and error.operation in _BAD_REQUEST:
        problem = replace(problem, status=400)
    return render_problem(problem, request_id)


SURFACE = Surface("/api/v1", render=render, has_slash=True)


def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of rqsched in an application of somebody else's as this surface answers it."""
    return render_tagged(Tag(request_id_of(request.headers), SURFACE), error)
