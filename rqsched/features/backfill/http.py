"""`/backfills/`: the backfills of all schedules. A schedule begins them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rqsched.errors import BackfillNotFoundError, InvalidLimitError
from rqsched.http.dependencies import OperateAlways, Read
from rqsched.http.native.operation import Operation, routes
from rqsched.http.native.responses import BackfillResponse, BackfillsResponse

Uid = Annotated[str, Field(max_length=26)]
OPERATIONS = (
    Operation(
        "list_backfills", "GET", "/backfills/", "backfills.list", Read, BackfillsResponse, (InvalidLimitError,),
        is_repeatable=True,
        types={
            "schedule_id": Annotated[str, Field(max_length=255)] | None,
            "status": Literal["running", "done", "stopped"] | None,
        },
    ),
    Operation(
        "cancel_backfill", "POST", "/backfills/{uid}/cancel/", "backfills.cancel", OperateAlways, BackfillResponse,
        (BackfillNotFoundError,),
        is_repeatable=True,
        types={"uid": Uid},
        example={"reason": "the wrong month"},
    ),
    Operation(
        "read_backfill", "GET", "/backfills/{uid}/", "backfills.get", Read, BackfillResponse, (BackfillNotFoundError,),
        is_repeatable=True,
        types={"uid": Uid},
    ),
)  # fmt: skip
router = routes(OPERATIONS, "backfills")
