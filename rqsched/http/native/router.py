"""The router of the native surface, and how it answers errors."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.errors import ScheduleStateError
from rqsched.http.errors import Problem
from rqsched.http.native.backfills import router as backfills
from rqsched.http.native.operations import router as operations
from rqsched.http.native.runs import router as runs
from rqsched.http.native.schedules import router as schedules
from rqsched.http.native.workflows import router as workflows
from rqsched.http.openapi import ANY, PROBLEM
from rqsched.http.strict_json import StrictRoute
from rqsched.http.surface import Surface, render_problem

_BAD_REQUEST = frozenset({"pause", "resume"})


def _render(problem: Problem, request_id: str) -> Response:
    """Answer 400 to a pause or resume in the wrong status, as the Pipelit document says."""
    error = problem.error
    if isinstance(error, ScheduleStateError) and error.operation in _BAD_REQUEST:
        problem = replace(problem, status=400)
    return render_problem(problem, request_id)


SURFACE = Surface("/api/v1", render=_render, has_slash=True)
router = APIRouter(prefix="/api/v1", route_class=StrictRoute, responses=PROBLEM.of(*ANY))
for _part in (schedules, operations, runs, backfills, workflows):
    router.include_router(_part)
