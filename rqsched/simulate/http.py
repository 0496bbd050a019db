"""The route `/load/`: how many schedules fire in each minute of the next hours."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.http.dependencies import ReadHeavy
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.openapi import PROBLEM, Json, Schema, schema_of
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.results import Load, Peak, QueueLoad
from rqsched.simulate.load import MOST_HOURS

router = APIRouter(route_class=StrictRoute)

PeakResponse: Any = schema_of("PeakResponse", Peak)
QueueLoadResponse: Any = schema_of("QueueLoadResponse", QueueLoad)


class _Parts(Schema):
    peaks: list[PeakResponse]
    queues: list[QueueLoadResponse]


LoadResponse: Any = schema_of("LoadResponse", Load, without=("peaks", "queues"), base=_Parts)


@router.get("/load/", response_model=LoadResponse, responses=PROBLEM.of(TooManyHeavyReadsError), tags=["load"])
def read_load(
    call: ReadHeavy, hours: Annotated[int, Query(ge=1, le=MOST_HOURS, description="How many hours ahead.")] = 24
) -> Response:
    """Count the fires of the next hours by minute; list the peaks with their schedules, and the load of each queue."""
    return Json(call.scheduler.load(hours, namespace=call.namespace))
