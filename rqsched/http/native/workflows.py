"""What schedules may name: the registered workflows. Where their code is stays with the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rqsched.core.ids import iso_utc
from rqsched.http.dependencies import Read
from rqsched.http.native.responses import WorkflowAnswers
from rqsched.http.strict_json import StrictRoute
from rqsched.store import metadata as facts

router = APIRouter(prefix="/workflows", tags=["workflows"], route_class=StrictRoute)
_SHOWN = ("name", "queue", "connection", "timeout")


@router.get("/", response_model=WorkflowAnswers)
def list_workflows(call: Read) -> Response:
    """List the workflows that some process registered, by name, with their defaults."""
    runtime = call.scheduler.runtime
    recorded = runtime.database.read(facts.all_workflows)
    here = {known.name: {"name": known.name, **known.defaults} for known in runtime.workflows.all()}
    merged = here | recorded
    return JSONResponse({"items": [_shown(merged[name]) for name in sorted(merged)]})


def _shown(workflow: Mapping[str, Any]) -> dict[str, Any]:
    registered_at = workflow.get("registered_at")
    shown = {name: workflow.get(name) for name in _SHOWN}
    return shown | {"registered_at": registered_at and iso_utc(registered_at)}
