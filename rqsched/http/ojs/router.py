"""The router of this surface: cron jobs, workers, the manifest and health."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

import rqsched
from rqsched.http import openapi
from rqsched.http.dependencies import Read
from rqsched.http.ojs import cron, responses, workers
from rqsched.http.ojs.errors import VERSION, OjsResponse
from rqsched.http.ojs.requests import Versioned

router = APIRouter(
    prefix="/ojs", tags=["open-job-spec"], dependencies=[Versioned],
    default_response_class=OjsResponse, responses=responses.REFUSED.of(*openapi.ANY),
)  # fmt: skip


@router.get("/manifest", response_model=responses.ManifestResponse)
def manifest() -> Response:
    """Return what is implemented: the cron chapter and the workers' side; no conformance level."""
    return OjsResponse(
        {
            "ojs_version": VERSION,
            "specversion": VERSION,
            "implementation": {"name": "rqsched", "version": rqsched.__version__, "language": "python"},
            "protocols": ["http"],
            "backend": "rq",
            "capabilities": {
                "cron_jobs": True,
                "cron_seconds": True,
                "cron_timezones": True,
                "overlap_policies": ["skip", "allow", "cancel_previous", "enqueue"],
                "retries": True,
                "external_workers": True,
            },
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
