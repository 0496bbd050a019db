"""`/workflows/`: the workflows that schedules may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.api import workflows
from rqsched.api.values import loads
from rqsched.http.dependencies import Read
from rqsched.http.native.responses import WorkflowResponse, WorkflowsResponse
from rqsched.http.openapi import Json
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.get("/workflows/", response_model=WorkflowsResponse, tags=["workflows"])
def list_workflows(call: Read) -> Response:
    """List the workflows that any process registered, by name, with their defaults.

    A principal that sees only some namespaces gets the workflows that schedules of the namespace use.
    """
    runtime = call.scheduler.runtime
    recorded = runtime.database.read(workflows.read_all)
    here = {known.name: {"name": known.name, **known.defaults} for known in runtime.imports.all()}
    merged = here | recorded
    shown = frozenset(merged)
    if call.principal.namespaces is not None:
        shown = call.read(lambda connection: workflows.names_in_use(connection, call.namespace))
    return Json({"items": [_workflow(merged[name]) for name in sorted(merged) if name in shown]})


def _workflow(workflow: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a workflow without the location of its code."""
    known = {**loads(workflow.get("options") or "{}"), **workflow}
    return {name: known.get(name) for name in WorkflowResponse.model_fields}
