"""The router of this surface: cron jobs, workers, the manifest and health."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

import rqsched
from rqsched.http import openapi
from rqsched.http.dependencies import Read
from rqsched.http.ojs import cron, dead_letters, responses, unserved, workers
from rqsched.http.ojs.errors import VERSION, OjsResponse
from rqsched.http.ojs.requests import Versioned

router = APIRouter(
    prefix="/ojs", tags=["open-job-spec"], dependencies=[Versioned],
    default_response_class=OjsResponse, responses=responses.REFUSED.of(*openapi.ANY),
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
"""What is served of the HTTP binding; docs/ojs.md says how and why."""


@router.get("/manifest", response_model=responses.ManifestResponse)
def manifest() -> Response:
    """Return what is implemented: the cron chapter, the workers' side and dead letters; no conformance level."""
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
    """Return whether SQL and Redis respond; 503 when one does not."""
    runtime = call.scheduler.runtime
    runtime.database_id()
    runtime.transport.redis.ping()
    return OjsResponse({"status": "ok", "version": rqsched.__version__})


router.include_router(cron.router)
router.include_router(workers.router)
router.include_router(dead_letters.router)
router.include_router(unserved.router)
