"""The workers' side: fetch, ack, nack, heartbeat, and looking a job up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from rqsched import external
from rqsched.errors import RunNotFoundError
from rqsched.external import Claimed
from rqsched.http.body import JsonBody
from rqsched.http.deps import Call, Operate, Read
from rqsched.ids import uid_to_uuid, uuid_to_uid
from rqsched.payload import MEMO_BYTES, json_text
from rqsched.settlement import Ending, Verdict
from rqsched.state import RunStatus

from . import answers
from .forms import Answer, OjsError, at, invalid
from .registration import require_queue

router = APIRouter(prefix="/v1")
MOST_JOBS = 100


@router.post("/workers/fetch")
def fetch(call: Operate, body: JsonBody) -> Response:
    """Claim waiting jobs of some queues; each is given to one worker."""
    form = _form(body)
    queues = form.get("queues")
    if not isinstance(queues, list) or not queues or len(queues) > MOST_JOBS:
        raise invalid("queues: name at least one queue.", field="queues")
    count = form.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_JOBS:
        raise invalid(f"count: must be a whole number from 1 to {MOST_JOBS}.", field="count")
    runtime = call.scheduler.runtime
    names = [require_queue(queue) for queue in queues]
    claimed = external.claim(runtime, names, _worker_id(form), namespace=call.namespace, count=count)
    return Answer({"jobs": [_job(call, one) for one in claimed]})


@router.post("/workers/ack")
def ack(call: Operate, body: JsonBody) -> Response:
    """Record that a job succeeded, with its result."""
    form = _form(body)
    claimed = _claimed(call, form.get("job_id"))
    result = form.get("result")
    text = None if result is None else json_text("result", result, MEMO_BYTES)
    _finish(call, claimed, Verdict(Ending.SUCCEEDED, result=text))
    return _ended(call, claimed, acknowledged=True)


@router.post("/workers/nack")
def nack(call: Operate, body: JsonBody) -> Response:
    """Record that an attempt failed; it is retried while the retry policy has attempts left."""
    form = _form(body)
    claimed = _claimed(call, form.get("job_id"))
    error = form.get("error")
    is_final = isinstance(error, Mapping) and error.get("retryable") is False
    _finish(call, claimed, Verdict(Ending.FAILED, error=_message(error), is_final=is_final))
    return _ended(call, claimed, acknowledged=False)


@router.post("/workers/heartbeat")
def heartbeat(call: Operate, body: JsonBody) -> Response:
    """Show that a worker lives and what it executes; it learns which of them to stop."""
    form = _form(body)
    jobs = form.get("active_jobs", [])
    if not isinstance(jobs, list) or len(jobs) > 10 * MOST_JOBS:
        raise invalid("active_jobs: must be an array of job ids.", field="active_jobs")
    uids = [_uid(job) for job in jobs]
    runtime = call.scheduler.runtime
    alive, stopped = external.heartbeat(runtime, _worker_id(form), uids, namespace=call.namespace)
    return Answer(
        {
            "state": "running",
            "active_jobs": [uid_to_uuid(uid) for uid in alive],
            "jobs_to_cancel": [uid_to_uuid(uid) for uid in stopped],
            "server_time": at(runtime.now()),
        }
    )


@router.get("/jobs/{job_id}")
def read(call: Read, job_id: str) -> Response:
    """Look a job up, whoever executes it."""
    return Answer({"job": _job(call, _claimed(call, job_id))})


def _form(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise invalid("body: must be an object.")
    return body


def _worker_id(form: Mapping[str, Any]) -> str:
    worker_id = form.get("worker_id")
    if not isinstance(worker_id, str) or not 1 <= len(worker_id) <= 255:
        raise invalid("worker_id: is needed, as text of 1 to 255 characters.", field="worker_id")
    return worker_id


def _uid(job_id: Any) -> str:
    uid = uuid_to_uid(job_id) if isinstance(job_id, str) else None
    if uid is None:
        raise invalid(f"{str(job_id)[:64]!r} is no job id; ids are UUIDs.", field="job_id")
    return uid


def _claimed(call: Call, job_id: Any) -> Claimed:
    uid = _uid(job_id)
    try:
        return external.find(call.scheduler.runtime, uid, call.namespace)
    except RunNotFoundError as error:
        raise OjsError(404, "not_found", f"no job {job_id}.") from error


def _finish(call: Call, claimed: Claimed, verdict: Verdict) -> None:
    run = claimed.run
    is_active = run.executor == "external" and run.status is RunStatus.RUNNING
    if not is_active or external.finish(call.scheduler.runtime, run, verdict) is None:
        state = answers.state_of(external.find(call.scheduler.runtime, run.uid, call.namespace).run)
        raise OjsError(409, "invalid_state", f"the job is {state}, not active.", details={"state": state})


def _ended(call: Call, claimed: Claimed, *, acknowledged: bool) -> Response:
    run = external.find(call.scheduler.runtime, claimed.run.uid, call.namespace).run
    facts = {"job_id": uid_to_uuid(run.uid), "state": answers.state_of(run), "attempt": run.attempt}
    when = {"completed_at": at(run.ended_at), "next_attempt_at": at(run.retry_at)}
    known = {name: value for name, value in when.items() if value is not None}
    return Answer({"acknowledged": acknowledged, **facts, **known})


def _message(error: Any) -> str:
    if isinstance(error, Mapping):
        kind, text = error.get("type") or error.get("code"), error.get("message")
        return ": ".join(str(part) for part in (kind, text) if part) or "failed"
    return str(error) if error else "failed"


def _job(call: Call, claimed: Claimed) -> dict[str, Any]:
    return answers.job(claimed, call.scheduler.settings.default_queue)
