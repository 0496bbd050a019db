"""The targets of a run: their progress, and a page of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from rqsched.api.run_handle import RunHandle
from rqsched.errors import InvalidLimitError, RunNotFoundError, ScheduleNotFoundError
from rqsched.http.dependencies import Read
from rqsched.http.native.requests import Cursor, Limit, ScheduleId
from rqsched.http.native.responses import TargetsResponse
from rqsched.http.native.runs import UID_LENGTH, RunId
from rqsched.http.openapi import PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute)
TargetFilter = Annotated[str | None, Query(max_length=20, description="Only targets of this status, such as failed.")]


@router.get(
    "/schedules/{schedule_id}/runs/{run}/targets/",
    response_model=TargetsResponse,
    responses=PROBLEM.of(ScheduleNotFoundError, RunNotFoundError, InvalidLimitError),
    tags=["runs"],
)
def list_targets(
    call: Read,
    schedule_id: ScheduleId,
    run: RunId,
    status: TargetFilter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Read the progress of a run's targets, and a page of them in the order they were named."""
    return _targets(call.newest(schedule_id).run(run), limit, cursor, status)


@router.get(
    "/runs/{run_uid}/targets/",
    response_model=TargetsResponse,
    responses=PROBLEM.of(RunNotFoundError, InvalidLimitError),
    tags=["runs"],
)
def list_targets_of_run(
    call: Read,
    run_uid: Annotated[str, Path(max_length=UID_LENGTH, description="The uid of the run.")],
    status: TargetFilter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Read the progress of a run's targets, and a page of them. The uid names the run, whatever its schedule."""
    run = call.scheduler.runs.get(run_uid.upper(), namespace=call.namespace)
    return _targets(run, limit, cursor, status)


def _targets(run: RunHandle, limit: int, cursor: str | None, status: str | None) -> Response:
    page = run.targets(limit, cursor, status=status)
    return Json({"progress": run.progress(), "items": page.items, "next_cursor": page.next_cursor})
