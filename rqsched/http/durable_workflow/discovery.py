"""What the control plane's clients ask of a server before they send it anything: who it is and what it can do."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

import rqsched
from rqsched.http.dependencies import Read
from rqsched.http.durable_workflow import schemas as shapes
from rqsched.http.durable_workflow.errors import VERSION, VERSION_HEADER

router = APIRouter(prefix="/api", tags=["durable-workflow"])
"""Asked with the headers of either plane, so that no version is required here."""


@router.get("/cluster/info", response_model=shapes.ClusterAnswer)
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


@router.get("/health", response_model=shapes.ReachableAnswer)
def health(call: Read) -> Response:
    """Say whether SQL and Redis answer; 503 when one does not."""
    runtime = call.scheduler.runtime
    runtime.database_id()
    runtime.transport.redis.ping()
    return JSONResponse({"status": "ok", "version": rqsched.__version__})
