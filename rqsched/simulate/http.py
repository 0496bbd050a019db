"""The route `/load/`: how many schedules fire in each minute of the next hours."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rqsched.http.dependencies import ReadHeavy
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.operation import Operation, routes
from rqsched.http.openapi import Schema, schema_of
from rqsched.kernel.decide.results import Load, Peak, QueueLoad
from rqsched.simulate.load import MOST_HOURS

PeakResponse: Any = schema_of("PeakResponse", Peak)
QueueLoadResponse: Any = schema_of("QueueLoadResponse", QueueLoad)


class _Parts(Schema):
    peaks: list[PeakResponse]
    queues: list[QueueLoadResponse]


LoadResponse: Any = schema_of("LoadResponse", Load, without=("peaks", "queues"), base=_Parts)


OPERATIONS = (
    Operation(
        "read_load", "GET", "/load/", "load", ReadHeavy, LoadResponse, (TooManyHeavyReadsError,), is_repeatable=True,
        types={"hours": Annotated[int, Field(ge=1, le=MOST_HOURS)]},
    ),
)  # fmt: skip
router = routes(OPERATIONS, "load")
