"""Dead letters: jobs whose attempts are used up and which their cron job wants to keep."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.chain import retrying
from rqsched.chain.external_runs import Claimed
from rqsched.core.ids import uuid_to_uid
from rqsched.errors import RunStateError
from rqsched.http.dependencies import Admin, Call, Operate, Read
from rqsched.http.ojs import responses
from rqsched.http.ojs.errors import OjsError, OjsResponse
from rqsched.http.ojs.requests import require_queue
from rqsched.http.ojs.responses import REFUSED, at
from rqsched.http.ojs.workers import job_of, no_job
from rqsched.store import run_queries

router = APIRouter(prefix="/v1/dead-letter")
MAX_PAGE = 100
"""The most dead letters of one page; a larger `limit` is reduced to it."""


@router.get("", response_model=responses.DeadLettersResponse)
def list_dead_letters(
    call: Read,
    queue: Annotated[str | None, Query()] = None,
    limit: Annotated[int, Query(ge=1)] = 50,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """List dead letters, the newest first."""
    wanted = run_queries.DeadLetters(
        namespace=call.namespace,
        queue=None if queue is None else require_queue(queue),
        default_queue=call.scheduler.settings.default_queue,
    )
    database, limit = call.scheduler.runtime.database, min(limit, MAX_PAGE)
    page = database.read(
        lambda c: run_queries.page_of_dead_letters(c, wanted, limit=limit, cursor=cursor or None, offset=offset)
    )
    pagination: dict[str, Any] = {
        "total": database.read(lambda c: run_queries.count_dead_letters(c, wanted)),
        "has_more": page.next_cursor is not None,
        "next_cursor": page.next_cursor,
        "limit": limit,
        "offset": offset,
    }
    jobs = [job_of(call, Claimed(run, schedule)) for run, schedule in page.items]
    return OjsResponse({"jobs": jobs, "pagination": pagination})


@router.get("/{dead_letter_id}", response_model=responses.JobResponse)
def read(call: Read, dead_letter_id: str) -> Response:
    """Read a dead letter with the error of each attempt."""
    return OjsResponse({"job": job_of(call, _find(call, dead_letter_id))})


@router.post("/{dead_letter_id}/retry", response_model=responses.RetriedResponse, responses=REFUSED.of(409))
def retry(call: Operate, dead_letter_id: str) -> Response:
    """Try a dead letter again: one more attempt, with its errors kept. 409 when its cron job was removed."""
    found = _find(call, dead_letter_id)
    try:
        run = retrying.retry_run(call.scheduler.runtime, found.run.uid, context=call.context)
    except RunStateError as error:
        details = {"job_id": dead_letter_id.lower(), "current_state": responses.state_of(found.run)}
        raise OjsError(409, "invalid_request", str(error), details=details) from error
    job = job_of(call, Claimed(run, found.schedule))
    return OjsResponse({"job": job | {"re_enqueued_at": at(call.scheduler.runtime.now())}})


@router.delete("/{dead_letter_id}", response_model=responses.ForgottenResponse)
def forget(call: Admin, dead_letter_id: str) -> Response:
    """Remove a dead letter for good; the run stays in the history of its schedule."""
    uid = uuid_to_uid(dead_letter_id)
    database = call.scheduler.runtime.database
    if uid is None or not database.transact(lambda c: run_queries.forget_dead_letter(c, uid, namespace=call.namespace)):
        raise no_job(dead_letter_id, "dead_letter_job")
    return OjsResponse({"deleted": True, "job_id": dead_letter_id.lower()})


def _find(call: Call, dead_letter_id: str) -> Claimed:
    uid = uuid_to_uid(dead_letter_id)
    database = call.scheduler.runtime.database
    found = (
        None if uid is None else database.read(lambda c: run_queries.find_dead_letter(c, uid, namespace=call.namespace))
    )
    if found is None:
        raise no_job(dead_letter_id, "dead_letter_job")
    return Claimed(*found)
