"""`/bulk/`: an operation on every schedule or every run that matches, one chunk for each request."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from starlette.responses import Response

from rqsched.api.list_filters import ListFilters
from rqsched.errors import FrozenError, InvalidLimitError, InvalidPolicyError
from rqsched.features.bulk.api import Bulk, begin, begin_runs
from rqsched.features.bulk.runs import BulkRuns
from rqsched.http.dependencies import OperateOrCount
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.requests import BulkRequest, BulkRunsRequest
from rqsched.http.native.responses import BulkResponse, bulk_response
from rqsched.http.openapi import PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["schedules"])
BulkOperation = Annotated[Literal["pause", "resume", "trigger", "skip-next"], Path(description="What is done to each.")]


@router.post(
    "/bulk/{operation}/",
    response_model=BulkResponse,
    responses=PROBLEM.of(InvalidPolicyError, InvalidLimitError, TooManyHeavyReadsError),
)
def bulk(call: OperateOrCount, operation: BulkOperation, body: BulkRequest) -> Response:
    """Pause, resume, trigger or skip the next occurrences of every schedule that matches, one chunk for each request.

    The first request, without `cursor`, only counts the schedules. If more than `bound` match, the response is 422.
    Then send the same body with the `next_cursor` of each response as `cursor`, until it is null: each request handles
    some schedules, each in a separate transaction. If the filters or parameters differ from the first request, the
    response is 422. If a response is lost, send the request again: triggers find the runs that they started. But a
    schedule that somebody resumed meanwhile is paused again, `skip-next` skips one more for each skipped occurrence
    that has passed, and a trigger that the overlap policy skipped may start a run now.
    """
    asked = Bulk.of(
        operation.replace("-", "_"),
        reason=body.reason,
        note=body.note,
        on_resume=body.on_resume,
        until=body.until,
        overlap=body.overlap,
        idempotency_key=body.idempotency_key,
        count=body.count,
        context=call.context,
    )
    filters = ListFilters(
        status=body.status,
        outcome=body.outcome,
        workflow=body.workflow,
        owner=body.owner,
        labels=body.labels,
        search_attributes=body.search_attributes,
        managed_by=body.managed_by,
        text=body.q,
        overdue=body.overdue,
        created_since=body.created_since,
        created_until=body.created_until,
        next_since=body.next_since,
        next_until=body.next_until,
        query=body.query,
    )
    chunks = begin(
        call.scheduler.runtime,
        asked,
        call.namespace,
        filters,
        dry_run=body.dry_run,
        bound=body.bound,
        cursor=body.cursor,
    )
    return Json(bulk_response(next(chunks)))


@router.post(
    "/bulk/runs/{action}/",
    response_model=BulkResponse,
    responses=PROBLEM.of(FrozenError, InvalidLimitError, TooManyHeavyReadsError),
)
def bulk_runs(
    call: OperateOrCount,
    action: Annotated[Literal["cancel", "retry"], Path(description="What is done to each.")],
    body: BulkRunsRequest,
) -> Response:
    """Cancel or retry every run that matches, one chunk for each request.

    The first request, without `cursor`, only counts the runs, which fixes the set. If more than `bound` match, the
    response is 422. Then send the same body with the `next_cursor` of each response as `cursor`, until it is null.
    Runs that are created, end or are retried after the count are left out. Runs that no longer match when their turn
    comes are left as they are, so `done` may remain below `matched`, and `items` may be empty. If a response is lost,
    send the request again: no run is retried twice.
    """
    filters = {
        "status": body.status,
        "schedule_id": body.schedule_id,
        "workflow": body.workflow,
        "limit": body.limit,
        "in_line": body.in_line,
        "since": body.since,
        "until": body.until,
        "error": body.error,
        "backfill_uid": body.backfill_uid,
    }
    asked = BulkRuns.of(action, call.namespace, filters, reason=body.reason, context=call.context, dry_run=body.dry_run)
    return Json(bulk_response(next(begin_runs(call.scheduler.runtime, asked, bound=body.bound, cursor=body.cursor))))
