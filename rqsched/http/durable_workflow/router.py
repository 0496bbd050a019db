"""The surface's router: schedules, and what its clients ask of a server first: who it is and what it can do."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

import rqsched
from rqsched.http import openapi as document
from rqsched.http.dependencies import Read
from rqsched.http.durable_workflow import responses, schedules
from rqsched.http.durable_workflow.errors import VERSION, VERSION_HEADER
from rqsched.http.durable_workflow.responses import REFUSED

router = APIRouter(tags=["durable-workflow"], responses=REFUSED.of(*document.ANY))
router.include_router(schedules.router)


@router.get("/api/cluster/info", response_model=responses.ClusterResponse)
def cluster_info(call: Read) -> Response:
    """Say that schedules are served, and nothing of workers or of payloads kept elsewhere."""
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
    """Say whether SQL and Redis answer; 503 when one does not."""
    runtime = call.scheduler.runtime
    runtime.database_id()
    runtime.transport.redis.ping()
    return JSONResponse({"status": "ok", "version": rqsched.__version__})
