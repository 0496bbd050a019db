"""One operation on every schedule of the namespace that matches a filter, with a dry run and a bound."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from starlette.responses import JSONResponse, Response

from rqsched.http.native.conditions import OperateAlways
from rqsched.http.native.requests import BulkRequest
from rqsched.http.native.responses import BulkResponse, bulk_response
from rqsched.http.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["schedules"])
Operation = Annotated[Literal["pause", "resume", "trigger"], Path(description="What is done to each.")]


@router.post("/bulk/{operation}/", response_model=BulkResponse)
def bulk(call: OperateAlways, operation: Operation, body: BulkRequest) -> Response:
    """Pause, resume or trigger every schedule that matches, each in a transaction of its own.

    More than `bound` is 422, and nothing is done. Sent again it goes on: what was paused is not active any more.
    """
    rows = call.scheduler.bulk(
        operation,
        reason=body.reason,
        note=body.note,
        catch_up=body.catch_up,
        overlap=body.overlap,
        idempotency_key=body.idempotency_key,
        dry_run=body.dry_run,
        bound=body.bound,
        context=call.context,
        namespace=call.namespace,
        status=body.status,
        outcome=body.outcome,
        workflow=body.workflow,
        owner=body.owner,
        labels=body.labels,
        text=body.q,
        overdue=body.overdue,
    )
    return JSONResponse(bulk_response(rows))
