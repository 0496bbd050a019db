"""The routes of this surface: cron jobs, jobs, manifest and health. Other paths of the spec answer `unsupported`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

import rqsched
from rqsched.http.dependencies import Read
from rqsched.ojs import cron, jobs, responses
from rqsched.ojs.errors import VERSION, OjsError, OjsResponse
from rqsched.ojs.requests import Versioned

router = APIRouter(
    prefix="/ojs", tags=["open-job-spec"], dependencies=[Versioned],
    default_response_class=OjsResponse, responses=responses.REFUSED.of_every_route(),
    generate_unique_id_function=lambda route: f"ojs_{route.name}",
)  # fmt: skip

CHAPTERS = {
    "8 System": "served",
    "9 Jobs": "partly",
    "10 Workers": "served",
    "11 Queues": "not served",
    "12 Dead letter": "served",
    "13 Cron": "served",
    "14 Workflows": "not served",
    "15 Schemas": "not served",
}
"""For each chapter of the HTTP binding, whether it is served. docs/open-job-spec.md has the details."""
_ENQUEUE = "jobs are not enqueued one by one: register a cron job (POST /ojs/v1/cron), or trigger a schedule natively."
_ACTIVATE = "a pending job waits for the one before it and starts by itself; jobs are not activated."
_PROGRESS = "the progress of a job is not kept; execute it without reporting any."
_QUEUES = "queues are not listed and not paused: a cron job is (PATCH /ojs/v1/cron/{name} with enabled)."
_WORKFLOWS = "workflows of Open Job Spec are not served."
_SCHEMAS = "schemas of jobs are not served."
UNSERVED = {
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
"""The paths of the HTTP binding that are not served, each with its methods and the alternative."""


@router.get("/manifest", response_model=responses.ManifestResponse)
def manifest() -> Response:
    """Return what this server implements: cron jobs, the routes for workers, and dead letters; no conformance level."""
    return OjsResponse(
        {
            "ojs_version": VERSION,
            "specversion": VERSION,
            "implementation": {"name": "rqsched", "version": rqsched.__version__, "language": "python"},
            "protocols": ["http"],
            "backend": "rq",
            "conformance_level": None,
            "capabilities": {
                "batch_enqueue": False,
                "cron_jobs": True,
                "dead_letter": True,
                "delayed_jobs": False,
                "job_ttl": False,
                "pause_resume": False,
                "priority_queues": True,
                "rate_limiting": False,
                "schema_validation": False,
                "unique_jobs": False,
                "workflows": False,
                "cron_seconds": True,
                "cron_timezones": True,
                "overlap_policies": ["skip", "allow", "cancel_previous", "enqueue"],
                "retries": True,
                "external_workers": True,
            },
            "extensions": [],
            "endpoints": {"manifest": "/ojs/manifest", "health": "/ojs/v1/health"},
            "x_chapters": CHAPTERS,
        }
    )


@router.get("/v1/health", response_model=responses.HealthResponse)
def health(call: Read) -> Response:
    """Return `ok` if SQL responds and Redis takes writes; else 503."""
    runtime = call.scheduler.runtime
    runtime.ownership.database_id()
    runtime.transport.try_write()
    return OjsResponse({"status": "ok", "version": rqsched.__version__})


router.include_router(cron.router)
router.include_router(jobs.router)


def _unsupported(message: str) -> Callable[[Read], Response]:
    def refuse(call: Read) -> Response:
        del call
        raise OjsError(422, "unsupported", message, details={"supported": "/ojs/manifest"})

    return refuse


for _path, (_methods, _message) in UNSERVED.items():
    router.add_api_route(f"/v1{_path}", _unsupported(_message), methods=_methods, include_in_schema=False)
