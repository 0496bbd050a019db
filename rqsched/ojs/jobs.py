"""Routes for jobs: workers fetch jobs, end them and send heartbeats; clients read, cancel and retry jobs.

A dead letter is a job that has failed for good and is kept, because the retry policy of its cron job says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from rqsched.api import external_runs
from rqsched.api import runs as run_queries
from rqsched.api.external_runs import AttemptOutcome, AttemptResult, ClaimedRun, settle_run
from rqsched.api.options import ErrorTypes
from rqsched.api.states import OPEN
from rqsched.api.values import MEMO_BYTES, dumps, json_text, uid_to_uuid, uuid_to_uid
from rqsched.errors import RunNotFoundError, RunStateError
from rqsched.http.dependencies import Admin, Call, Operate, Read
from rqsched.ojs import requests, responses
from rqsched.ojs.errors import OjsError, OjsResponse, invalid
from rqsched.ojs.requests import (
    LEAST_VISIBILITY,
    MOST_VISIBILITY,
    Body,
    body_schema,
    require_queue,
    whole,
)
from rqsched.ojs.responses import REFUSED, WRONG_STATE, at
from rqsched.types import Run, RunStatus

router = APIRouter(prefix="/v1")
JobId = Annotated[str, Path(description="The id of the job.")]
MAX_JOBS = 100
"""The maximum number of jobs of one fetch, and of queues that a fetch may name. A larger `count` of jobs is reduced."""
MAX_DEAD_LETTERS = 100
"""The maximum number of dead letters of one page. A larger `limit` is reduced to this number."""
MAX_ERROR = 8_192
"""The maximum number of characters of an error's JSON that are stored with its attempt."""
MAX_TEXT = 2_000
"""If an error is larger, each of its texts is cut to this number of characters."""
_FINAL_CODES = {"DISCARD": False, "FAIL": False, "DEAD_LETTER": True}
"""The error codes after which a job is not retried. The value says whether the job becomes a dead letter."""


@router.post("/workers/fetch", response_model=responses.JobsResponse, openapi_extra=body_schema(requests.FetchRequest))
def fetch_jobs(call: Operate, body: Body) -> Response:
    """Claim waiting jobs of the queues; each job goes to one worker."""
    fields = _fields(body)
    queues = fields.get("queues")
    if not isinstance(queues, list) or not queues or len(queues) > MAX_JOBS:
        raise invalid(f"queues: must name 1 to {MAX_JOBS} queues.", field="queues")
    count = fields.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise invalid("count: must be a whole number, 1 or more.", field="count")
    names = [require_queue(queue) for queue in queues]
    claimed = external_runs.claim(
        call.scheduler.runtime,
        names,
        None if fields.get("worker_id") is None else _worker_id(fields),
        namespace=call.namespace,
        count=min(count, MAX_JOBS),
        held_for=_visibility(fields),
    )
    return OjsResponse({"jobs": [responses.job(one, call.scheduler.settings) for one in claimed]})


@router.post(
    "/workers/ack",
    response_model=responses.AcknowledgedResponse,
    responses=REFUSED.of(WRONG_STATE),
    openapi_extra=body_schema(requests.AckRequest),
)
def ack_job(call: Operate, body: Body) -> Response:
    """Record that a job succeeded, with its result."""
    fields = _fields(body)
    run, result = _held(call, fields), fields.get("result")
    text = None if result is None else json_text("result", result, MEMO_BYTES)
    ended = _finish(call, run, AttemptResult(AttemptOutcome.SUCCEEDED, result=text)).run
    job_id = uid_to_uuid(run.uid)
    return OjsResponse(
        {"acknowledged": True, "job_id": job_id, "state": "completed", "completed_at": at(ended.ended_at)}
    )


@router.post(
    "/workers/nack",
    response_model=responses.FailedResponse,
    response_model_exclude_none=True,
    responses=REFUSED.of(WRONG_STATE),
    openapi_extra=body_schema(requests.NackRequest),
)
def nack_job(call: Operate, body: Body) -> Response:
    """Record that an attempt failed. The job is retried while its retry policy has attempts left."""
    fields = _fields(body)
    claimed = _finish(call, _held(call, fields), _failure(_error_of(fields.get("error"))))
    run = claimed.run
    next_at, ended_at = at(run.retry_at), at(run.ended_at)
    when = {"next_attempt_at": next_at} if next_at is not None else {"discarded_at": ended_at}
    return OjsResponse(
        {
            "job_id": uid_to_uuid(run.uid),
            "state": responses.state_of(run),
            "attempt": responses.attempt_of(run),
            "max_attempts": claimed.schedule.policies.retry.max_retries + 1,
            **when,
        }
    )


@router.post(
    "/workers/heartbeat",
    response_model=responses.HeartbeatResponse,
    openapi_extra=body_schema(requests.HeartbeatRequest),
)
def heartbeat(call: Operate, body: Body) -> Response:
    """Record that a worker is alive, and which jobs it executes. Return the jobs that the worker must stop."""
    fields = _fields(body)
    jobs = fields.get("active_jobs", [])
    if not isinstance(jobs, list) or len(jobs) > 10 * MAX_JOBS:
        raise invalid("active_jobs: must be an array of job ids.", field="active_jobs")
    uids = [_uid(job) for job in jobs]
    runtime = call.scheduler.runtime
    alive, stopped = external_runs.heartbeat(
        runtime, _worker_id(fields), uids, namespace=call.namespace, held_for=_visibility(fields)
    )
    return OjsResponse(
        {
            "state": "running",
            "jobs_extended": [uid_to_uuid(uid) for uid in alive],
            "x_jobs_cancelled": [uid_to_uuid(uid) for uid in stopped],
            "server_time": at(runtime.now()),
        }
    )


@router.get("/jobs/{job_id}", response_model=responses.JobResponse)
def read_job(call: Read, job_id: JobId) -> Response:
    """Read a job."""
    return _job(call, _find(call, job_id))


@router.delete("/jobs/{job_id}", response_model=responses.CancelledResponse, responses=REFUSED.of(WRONG_STATE))
def cancel_job(call: Operate, job_id: JobId) -> Response:
    """Cancel a job that has not ended. If a worker executes the job, the answer to its next heartbeat stops it."""
    found = _find(call, job_id)
    before: list[str] = []

    def is_open(current: Run) -> bool:
        before[:] = [responses.state_of(current)]
        return current.status in OPEN

    change = settle_run(call.scheduler.runtime, found.run.uid, AttemptResult(AttemptOutcome.CANCELLED), fence=is_open)
    ended = _find(call, job_id)
    if change is None:
        details = {"job_id": job_id, "current_state": responses.state_of(ended.run)}
        raise OjsError(409, "invalid_request", f"the job is {details['current_state']} already.", details=details)
    return _job(call, ended, previous_state=before[0])


@router.get("/dead-letter", response_model=responses.DeadLettersResponse)
def list_dead_letters(
    call: Read,
    queue: Annotated[str | None, Query(description="Only of this queue.")] = None,
    limit: Annotated[int, Query(ge=1, description="The size of a page.")] = 50,
    cursor: Annotated[str | None, Query(max_length=500, description="The next_cursor of the previous page.")] = None,
    offset: Annotated[int, Query(ge=0, le=10_000_000, description="How many to pass over.")] = 0,
) -> Response:
    """List dead letters, the newest first."""
    settings = call.scheduler.settings
    wanted = run_queries.DeadLetters(
        namespace=call.namespace,
        queue=None if queue is None else require_queue(queue),
        default_queue=settings.default_queue,
    )
    database, limit = call.scheduler.runtime.database, min(limit, MAX_DEAD_LETTERS)
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
    jobs = [responses.job(ClaimedRun(run, schedule), settings) for run, schedule in page.items]
    return OjsResponse({"jobs": jobs, "pagination": pagination})


@router.get("/dead-letter/{dead_letter_id}", response_model=responses.JobResponse)
def read_dead_letter(call: Read, dead_letter_id: JobId) -> Response:
    """Read a dead letter with the error of each attempt."""
    return _job(call, _find_dead_letter(call, dead_letter_id))


@router.post(
    "/dead-letter/{dead_letter_id}/retry", response_model=responses.RetriedResponse, responses=REFUSED.of(WRONG_STATE)
)
def retry_dead_letter(call: Operate, dead_letter_id: JobId) -> Response:
    """Give a dead letter one more attempt. Its earlier errors are kept. 409 if its cron job was removed."""
    found = _find_dead_letter(call, dead_letter_id)
    runtime = call.scheduler.runtime
    try:
        run = external_runs.retry_run(runtime, found.run.uid, context=call.context)
    except RunStateError as error:
        details = {"job_id": dead_letter_id.lower(), "current_state": responses.state_of(found.run)}
        raise OjsError(409, "invalid_request", str(error), details=details) from error
    return _job(call, ClaimedRun(run, found.schedule), re_enqueued_at=at(runtime.now()))


@router.delete("/dead-letter/{dead_letter_id}", response_model=responses.ForgottenResponse)
def forget_dead_letter(call: Admin, dead_letter_id: JobId) -> Response:
    """Remove a dead letter for good. Its run stays in the history of the schedule."""
    uid, database = uuid_to_uid(dead_letter_id), call.scheduler.runtime.database
    if uid is None or not database.transact(lambda c: run_queries.forget_dead_letter(c, uid, namespace=call.namespace)):
        raise _no_job(dead_letter_id, "dead_letter_job")
    return OjsResponse({"deleted": True, "job_id": dead_letter_id.lower()})


def _job(call: Call, claimed: ClaimedRun, **more: Any) -> Response:
    """Return a run as a job, with its newest state."""
    return OjsResponse({"job": responses.job(claimed, call.scheduler.settings) | more})


def _find(call: Call, job_id: str) -> ClaimedRun:
    """Find a run of the namespace by its job id; raises OjsError 404."""
    uid = uuid_to_uid(job_id)
    if uid is None:
        raise _no_job(job_id)
    try:
        return external_runs.find(call.scheduler.runtime, uid, call.namespace)
    except RunNotFoundError as error:
        raise _no_job(uid_to_uuid(uid)) from error


def _find_dead_letter(call: Call, dead_letter_id: str) -> ClaimedRun:
    uid, database = uuid_to_uid(dead_letter_id), call.scheduler.runtime.database
    found = uid and database.read(lambda c: run_queries.find_dead_letter(c, uid, namespace=call.namespace))
    if not found:
        raise _no_job(dead_letter_id, "dead_letter_job")
    return ClaimedRun(*found)


def _no_job(job_id: str, kind: str = "job") -> OjsError:
    """Return the error of a job that does not exist, or that the caller may not see."""
    details = {"resource_type": kind, "resource_id": job_id[:64]}
    return OjsError(404, "not_found", f"there is no {kind.replace('_', ' ')} {job_id[:64]}.", details=details)


def _fields(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise invalid("body: must be an object.")
    return body


def _worker_id(fields: Mapping[str, Any]) -> str:
    worker_id = fields.get("worker_id")
    if not isinstance(worker_id, str) or not 1 <= len(worker_id) <= 255:
        raise invalid("worker_id: must be a string of 1 to 255 characters.", field="worker_id")
    return worker_id


def _visibility(fields: Mapping[str, Any]) -> timedelta | None:
    value = fields.get("visibility_timeout_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST_VISIBILITY <= value <= MOST_VISIBILITY:
        message = f"visibility_timeout_ms: must be a whole number from {LEAST_VISIBILITY} to {MOST_VISIBILITY}."
        raise invalid(message, field="visibility_timeout_ms")
    return timedelta(milliseconds=value)


def _uid(job_id: Any) -> str:
    uid = uuid_to_uid(job_id) if isinstance(job_id, str) else None
    if uid is None:
        raise invalid(f"{str(job_id)[:64]!r} is not a valid job id; ids are UUIDs.", field="job_id")
    return uid


def _held(call: Call, fields: Mapping[str, Any]) -> Run:
    """Find the run that the caller executes; raises OjsError 409 if the caller no longer holds the job.

    If another worker has claimed the job meanwhile, this is noticed only if the caller sends `worker_id` or `attempt`.
    """
    worker_id = None if fields.get("worker_id") is None else _worker_id(fields)
    attempt = whole("attempt", fields.get("attempt"))
    run = _find(call, uid_to_uuid(_uid(fields.get("job_id")))).run
    if run.executor != "external" or run.status is not RunStatus.RUNNING:
        raise _not_held(run, f"is {responses.state_of(run)}, not active")
    is_anothers = worker_id is not None and run.worker is not None and worker_id != run.worker
    if is_anothers or attempt not in (None, run.attempt):
        raise _not_held(run, "belongs to another attempt now")
    return run


def _not_held(run: Run, how: str) -> OjsError:
    details = {
        "job_id": uid_to_uuid(run.uid),
        "current_state": responses.state_of(run),
        "expected_state": "active",
        "attempt": responses.attempt_of(run),
    }
    return OjsError(409, "invalid_request", f"the job {how}.", details=details)


def _finish(call: Call, held: Run, attempt_result: AttemptResult) -> ClaimedRun:
    """End an attempt and return the changed job. Raises OjsError 409 if another caller was faster."""
    change = external_runs.finish(call.scheduler.runtime, held, attempt_result)
    if change is None:
        current = _find(call, uid_to_uuid(held.uid)).run
        raise _not_held(current, f"is {responses.state_of(current)}, not active")
    # Return the run as this request wrote it, because another worker may have claimed the next attempt since.
    return ClaimedRun(next(after for _, after in change.changed_runs if after.uid == held.uid), change.after)


def _error_of(given: Any) -> dict[str, Any]:
    """Return the error of an attempt as an object. If it is too large to store, keep and shorten only some fields."""
    error = dict(given) if isinstance(given, Mapping) else {"message": str(given) if given else "failed"}
    if len(dumps(error)) <= MAX_ERROR:
        return error
    kept = {name: error[name] for name in ("code", "type", "message", "retryable") if name in error}
    return {name: value[:MAX_TEXT] if isinstance(value, str) else value is True for name, value in kept.items()} | {
        "x_cut": True
    }


def _failure(error: Mapping[str, Any]) -> AttemptResult:
    """Return the result of a failed attempt: whether another attempt may follow, and the error to store."""
    types = tuple(one for one in (error.get("type"), error.get("code")) if isinstance(one, str) and one)
    message = error.get("message")
    code = error["code"] if isinstance(error.get("code"), str) else ""
    return AttemptResult(
        AttemptOutcome.FAILED,
        error=": ".join([*types[:1], *([str(message)] if message else [])]) or "failed",
        is_final=error.get("retryable") is False or code in _FINAL_CODES,
        error_types=ErrorTypes(types),
        details=dumps(error),
        dead_letter=_FINAL_CODES.get(code),
    )
