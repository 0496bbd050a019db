"""The native surface: its router, and the form of its errors (problem details, RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastapi import APIRouter, Depends
from fastapi.dependencies.models import Dependant
from starlette.requests import Request
from starlette.responses import Response

from rqsched.errors import InvalidInputError, ScheduleStateError, did_you_mean
from rqsched.features.list import parts_of
from rqsched.http.dependencies import SignedIn
from rqsched.http.errors import Problem
from rqsched.http.middleware import Tag, render_tagged, request_id_of
from rqsched.http.native import events, runs, schedules, workflows
from rqsched.http.native.operation import Operation
from rqsched.http.openapi import PROBLEM
from rqsched.http.request_bodies import StrictRoute
from rqsched.http.surface import Surface, render_problem


def _refuse_unknown_parameters(request: Request, principal: SignedIn) -> None:
    """Refuse query parameters that the route does not declare. If `?offset=100` were ignored, paging would never end.

    The principal is found first, so that only an authenticated caller gets this error.
    """
    del principal
    if not request.query_params:
        return
    known = sorted(set(_query_names(request.scope["route"].dependant)))
    for name in request.query_params:
        if name not in known:
            nearest = did_you_mean(name, known) or f"; known are {', '.join(known)}"
            raise InvalidInputError(name[:100], f"is not a parameter of this request{nearest}")


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


_BAD_REQUEST = frozenset({"pause", "resume"})
"""Operations that return 400 instead of 409 if the status of the schedule does not allow them."""


def render(problem: Problem, request_id: str) -> Response:
    """Render problem details. A refused pause or resume returns 400, as in the Pipelit document."""
    error = problem.error
    if isinstance(error, ScheduleStateError) and error.operation in _BAD_REQUEST:
        problem = replace(problem, status=400)
    return render_problem(problem, request_id)


SURFACE = Surface("/api/v1", render=render, has_slash=True)


def answer_error(request: Request, error: Exception) -> Response:
    """Render an error of rqsched in another application, in the form of this surface."""
    return render_tagged(Tag(request_id_of(request.headers), SURFACE), error)


router = APIRouter(
    prefix="/api/v1",
    route_class=StrictRoute,
    responses=PROBLEM.of_every_route(),
    generate_unique_id_function=lambda route: route.name,
    dependencies=[Depends(_refuse_unknown_parameters)],
)
router.include_router(schedules.router)
for part in parts_of("http"):
    router.include_router(part.router)
OPERATIONS: Sequence[Operation] = [
    *schedules.OPERATIONS,
    *runs.OPERATIONS,
    *(one for part in parts_of("http") for one in getattr(part, "OPERATIONS", ()))
]  # fmt: skip
"""The operations whose routes and clients are made from their entries."""
router.include_router(workflows.router)
router.include_router(runs.router)
router.include_router(events.router)
