"""`/schedules/{schedule_id}/backfill/` starts a backfill, and `/backfills/` lists the backfills of all schedules.

A small backfill completes within its request. A large backfill continues after the response and can be polled. The
progress of a backfill is stored in SQL, so reconcile continues the backfill after this process has ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from rqsched import BackfillRange, OverlapPolicy, Rerun
from rqsched.api.build_description import describe_preview
from rqsched.errors import (
    BackfillNotFoundError,
    FrozenError,
    InvalidLimitError,
    InvalidPolicyError,
    NewerReleaseError,
    ScheduleNotFoundError,
    TooMuchWorkError,
)
from rqsched.features.backfill import chain
from rqsched.http.dependencies import OperateAlways, OperateOrHeavy, Read
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.operation import Operation, routes
from rqsched.http.native.requests import BackfillRequest, ScheduleId
from rqsched.http.native.responses import BackfillResponse, BackfillsResponse
from rqsched.http.openapi import PROBLEM, Json

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


@router.post(
    "/schedules/{schedule_id}/backfill/",
    response_model=BackfillResponse,
    responses={
        202: {"model": BackfillResponse, "description": "It continues; poll Location."},
        **PROBLEM.of(
            NewerReleaseError,
            ScheduleNotFoundError,
            FrozenError,
            InvalidPolicyError,
            InvalidLimitError,
            TooMuchWorkError,
            TooManyHeavyReadsError,
        ),
    },
)
def start_backfill(call: OperateOrHeavy, schedule_id: ScheduleId, body: BackfillRequest, request: Request) -> Response:
    """Fire the occurrences of [start, end) that have passed and have no run yet.

    If there are at most 500, all fire within the request, and the response is 200 with a row for each. If there are
    more, the response is 202, and the backfill continues after it (see Location). A dry run counts all occurrences, and
    has rows for the first 500.
    """
    overlap = None if body.overlap is None else OverlapPolicy.of(body.overlap)
    rerun = None if body.rerun is None else Rerun.of(body.rerun)
    handle, wanted = (
        call.schedule(schedule_id),
        BackfillRange(body.start, body.end, overlap, body.bound, call.context, rerun),
    )
    if body.dry_run:
        chunks = chain.preview(call.scheduler.runtime, handle.refresh().state, wanted)
        return Json(describe_preview(handle.state, wanted, chunks, chain.CHUNK))
    first = next(iter(handle.backfill_in_chunks(wanted)))
    if first.is_done or first.uid is None:
        return Json(first)
    chain.continue_later(call.scheduler.runtime, first.uid)
    location = str(request.url_for("read_backfill", uid=first.uid))
    return Json(replace(first, rows=[]), 202, {"Location": location})
