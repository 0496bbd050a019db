"""The workers' side: fetch, ack, nack, heartbeat, and reading a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.chain import external_runs
from rqsched.chain.external_runs import Claimed
from rqsched.core.ids import uid_to_uuid, uuid_to_uid
from rqsched.core.model import Run, RunStatus
from rqsched.core.payload import MEMO_BYTES, json_text
from rqsched.core.settle import AttemptOutcome, AttemptResult
from rqsched.errors import RunNotFoundError
from rqsched.http.dependencies import Call, Operate, Read
from rqsched.http.ojs import requests, responses
from rqsched.http.ojs.errors import OjsError, OjsResponse, invalid
from rqsched.http.ojs.requests import body_schema, require_queue, whole
from rqsched.http.ojs.responses import REFUSED, at
from rqsched.http.strict_json import JsonBody

router = APIRouter(prefix="/v1")
MAX_JOBS = 100
"""The most jobs of one fetch, and the most queues it may name."""


@router.post("/workers/fetch", response_model=responses.JobsResponse, openapi_extra=body_schema(requests.FetchRequest))
def fetch(call: Operate, body: JsonBody) -> Response:
    """Claim waiting jobs of the queues; each job goes to one worker."""
    fields = _fields(body)
    queues = fields.get("queues")
    if not isinstance(queues, list) or not queues or len(queues) > MAX_JOBS:
        raise invalid(f"queues: must name 1 to {MAX_JOBS} queues.", field="queues")
    count = fields.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_JOBS:
        raise invalid(f"count: must be a whole number from 1 to {MAX_JOBS}.", field="count")
    runtime = call.scheduler.runtime
    names = [require_queue(queue) for queue in queues]
    claimed = external_runs.claim(runtime, names, _worker_id(fields), namespace=call.namespace, count=count)
    return OjsResponse({"jobs": [_job(call, one) for one in claimed]})


@router.post(
    "/workers/ack",
    response_model=responses.EndedResponse,
    responses=REFUSED.of(409),
    openapi_extra=body_schema(requests.AckRequest),
)
def ack(call: Operate, body: JsonBody) -> Response:
    """Record that a job succeeded, with its result."""
    fields = _fields(body)
    run, result = _held(call, fields), fields.get("result")
    text = None if result is None else json_text("result", result, MEMO_BYTES)
    return _ended(call, run, AttemptResult(AttemptOutcome.SUCCEEDED, result=text))


@router.post(
    "/workers/nack",
    response_model=responses.EndedResponse,
    responses=REFUSED.of(409),
    openapi_extra=body_schema(requests.NackRequest),
)
def nack(call: Operate, body: JsonBody) -> Response:
    """Record that an attempt failed; it is retried while the retry policy has attempts left."""
    fields = _fields(body)
    run, error = _held(call, fields), fields.get("error")
    is_final = isinstance(error, Mapping) and error.get("retryable") is False
    return _ended(call, run, AttemptResult(AttemptOutcome.FAILED, error=_message(error), is_final=is_final))


@router.post(
    "/workers/heartbeat",
    response_model=responses.HeartbeatResponse,
    openapi_extra=body_schema(requests.HeartbeatRequest),
)
def heartbeat(call: Operate, body: JsonBody) -> Response:
    """Record that a worker is alive and which jobs it executes; returns those it must stop."""
    fields = _fields(body)
    jobs = fields.get("active_jobs", [])
    if not isinstance(jobs, list) or len(jobs) > 10 * MAX_JOBS:
        raise invalid("active_jobs: must be an array of job ids.", field="active_jobs")
    uids = [_uid(job) for job in jobs]
    runtime = call.scheduler.runtime
    alive, stopped = external_runs.heartbeat(runtime, _worker_id(fields), uids, namespace=call.namespace)
    return OjsResponse(
        {
            "state": "running",
            "active_jobs": [uid_to_uuid(uid) for uid in alive],
            "jobs_to_cancel": [uid_to_uuid(uid) for uid in stopped],
            "server_time": at(runtime.now()),
        }
    )


@router.get("/jobs/{job_id}", response_model=responses.JobResponse)
def read(call: Read, job_id: str) -> Response:
    """Read a job, whichever worker executes it."""
    uid = uuid_to_uid(job_id)
    if uid is None:
        raise _no_job(job_id)
    return OjsResponse({"job": _job(call, _found(call, uid))})


def _fields(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise invalid("body: must be an object.")
    return body


def _worker_id(fields: Mapping[str, Any]) -> str:
    worker_id = fields.get("worker_id")
    if not isinstance(worker_id, str) or not 1 <= len(worker_id) <= 255:
        raise invalid("worker_id: must be a string of 1 to 255 characters.", field="worker_id")
    return worker_id


def _uid(job_id: Any) -> str:
    uid = uuid_to_uid(job_id) if isinstance(job_id, str) else None
    if uid is None:
        raise invalid(f"{str(job_id)[:64]!r} is not a valid job id; ids are UUIDs.", field="job_id")
    return uid


def _found(call: Call, uid: str) -> Claimed:
    try:
        return external_runs.find(call.scheduler.runtime, uid, call.namespace)
    except RunNotFoundError as error:
        raise _no_job(uid_to_uuid(uid)) from error


def _no_job(job_id: str) -> OjsError:
    return OjsError(404, "not_found", f"there is no job {job_id[:64]}.")


def _held(call: Call, fields: Mapping[str, Any]) -> Run:
    """Find the run whose attempt the caller holds; raises OjsError 409 when it no longer holds it.

    With `worker_id` or `attempt` this includes a job that another worker has claimed since.
    """
    worker_id = None if fields.get("worker_id") is None else _worker_id(fields)
    attempt = whole("attempt", fields.get("attempt"))
    run = _found(call, _uid(fields.get("job_id"))).run
    if run.executor != "external" or run.status is not RunStatus.RUNNING:
        raise _not_held(run, f"is {responses.state_of(run)}, not active")
    if worker_id not in (None, run.worker) or attempt not in (None, run.attempt):
        raise _not_held(run, "belongs to another attempt now")
    return run


def _not_held(run: Run, how: str) -> OjsError:
    details = {"state": responses.state_of(run), "attempt": run.attempt}
    return OjsError(409, "duplicate", f"the job {how}.", details=details)


def _ended(call: Call, held: Run, attempt_result: AttemptResult) -> Response:
    change = external_runs.finish(call.scheduler.runtime, held, attempt_result)
    run = _found(call, held.uid).run
    if change is None:
        raise _not_held(run, f"is {responses.state_of(run)}, not active")
    job_id = uid_to_uuid(run.uid)
    when = {"completed_at": at(run.ended_at), "next_attempt_at": at(run.retry_at)}
    known = {name: value for name, value in when.items() if value is not None}
    return OjsResponse(
        {"acknowledged": True, "id": job_id, "job_id": job_id, "state": responses.state_of(run), "attempt": run.attempt}
        | known
    )


def _message(error: Any) -> str:
    if isinstance(error, Mapping):
        kind, text = error.get("type") or error.get("code"), error.get("message")
        return ": ".join(str(part) for part in (kind, text) if part) or "failed"
    return str(error) if error else "failed"


def _job(call: Call, claimed: Claimed) -> dict[str, Any]:
    return responses.job(claimed, call.scheduler.settings.default_queue)
