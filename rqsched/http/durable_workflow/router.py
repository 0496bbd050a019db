"""The router of this surface: schedules, and the discovery and health routes that its clients call first."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

import rqsched
from rqsched.http import openapi
from rqsched.http.dependencies import Read
from rqsched.http.durable_workflow import responses, schedules
from rqsched.http.durable_workflow.errors import VERSION, VERSION_HEADER
from rqsched.http.durable_workflow.responses import REFUSED

router = APIRouter(tags=["durable-workflow"], responses=REFUSED.of(*openapi.ANY))
router.include_router(schedules.router)


@router.get("/api/cluster/info", response_model=responses.ClusterResponse)
def cluster_info(call: Read) -> Response:
    """Return the capabilities: schedules; no workers and no external payload storage."""
    return JSONResponse(
        {
            "server": "rqsched",
            "version": rqsched.__version__,
            "namespace": {"name": call.namespace},
            "capabilities": {"schedules": True},
            "control_plane": {"version": VERSION, "header": VERSION_HEADER},
            "worker_protocol": {"server_capabilities": {}},
        }
    )


@router.get("/api/health", response_model=responses.ReachableResponse)
def health(call: Read) -> Response:
    """Return whether SQL and Redis respond; 503 when one does not."""
    runtime = call.scheduler.runtime
    runtime.database_id()
    runtime.transport.redis.ping()
    return JSONResponse({"status": "ok", "version": rqsched.__version__})
