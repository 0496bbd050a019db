"""What the HTTP binding has and this server leaves out: refused as `unsupported`, so that nobody looks for a typo."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.http.dependencies import Read
from rqsched.http.ojs.errors import OjsError

_ENQUEUE = "jobs are not enqueued one by one: register a cron job (POST /ojs/v1/cron), or trigger a schedule natively."
_ACTIVATE = "a pending job waits for the one before it and starts by itself; jobs are not activated."
_PROGRESS = "the progress of a job is not kept; execute it without reporting any."
_QUEUES = "queues are not listed and not paused: a cron job is (PATCH /ojs/v1/cron/{name} with enabled)."
_WORKFLOWS = "workflows of Open Job Spec are not served."
_SCHEMAS = "schemas of jobs are not served."
ROUTES = {
    "/jobs": (["POST"], _ENQUEUE),
    "/jobs/batch": (["POST"], _ENQUEUE),
    "/jobs/{job_id}/activate": (["POST"], _ACTIVATE),
    "/jobs/{job_id}/progress": (["GET"], _PROGRESS),
    "/workers/progress": (["POST"], _PROGRESS),
    "/queues": (["GET"], _QUEUES),
    "/queues/{rest:path}": (["GET", "POST"], _QUEUES),
    "/workflows": (["GET", "POST"], _WORKFLOWS),
    "/workflows/{rest:path}": (["GET", "DELETE"], _WORKFLOWS),
    "/schemas": (["GET", "POST"], _SCHEMAS),
    "/schemas/{rest:path}": (["GET", "DELETE"], _SCHEMAS),
}
"""Methods and what to do instead, by path."""


def _refusal(message: str) -> Callable[[Read], Response]:
    def refuse(call: Read) -> Response:
        del call
        raise OjsError(422, "unsupported", message, details={"supported": "/ojs/manifest"})

    return refuse


router = APIRouter(prefix="/v1")
for _path, (_methods, _message) in ROUTES.items():
    router.add_api_route(_path, _refusal(_message), methods=_methods, include_in_schema=False)
