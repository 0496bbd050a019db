"""The router of the native surface: schedules, runs and backfills, and the workflows that schedules may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rqsched.core.ids import iso_utc
from rqsched.core.payload import loads
from rqsched.http.dependencies import Call, Read
from rqsched.http.native import bulk, events, runs, schedules, sync, usage
from rqsched.http.native.responses import WorkflowsResponse
from rqsched.http.openapi import ANY, PROBLEM
from rqsched.http.strict_json import StrictRoute
from rqsched.store import registered_workflows

router = APIRouter(prefix="/api/v1", route_class=StrictRoute, responses=PROBLEM.of(*ANY))
router.include_router(schedules.router)
router.include_router(bulk.router)
router.include_router(sync.router)
router.include_router(usage.router)
router.include_router(runs.router)
router.include_router(events.router)

_SHOWN = ("name", "queue", "connection", "timeout", "on_failure", "on_recovery", "targets")
"""What is shown of a workflow; where its code lives stays with the workers."""


@router.get("/workflows/", response_model=WorkflowsResponse, tags=["workflows"])
def list_workflows(call: Read) -> Response:
    """List the workflows that some process registered, by name, with their defaults.

    Who may see all namespaces sees all of them, others those that schedules of the namespace use.
    """
    runtime = call.scheduler.runtime
    recorded = runtime.database.read(registered_workflows.read_all)
    here = {known.name: {"name": known.name, **known.defaults} for known in runtime.registered()}
    merged = here | recorded
    shown = frozenset(merged) if call.principal.namespaces is None else _in_use(call)
    return JSONResponse({"items": [_workflow(merged[name]) for name in sorted(merged) if name in shown]})


def _in_use(call: Call) -> frozenset[str]:
    database = call.scheduler.runtime.database
    return database.read(lambda connection: registered_workflows.names_in_use(connection, call.namespace))


def _workflow(workflow: Mapping[str, Any]) -> dict[str, Any]:
    registered_at = workflow.get("registered_at")
    known = {**loads(workflow.get("options") or "{}"), **workflow}
    shown = {name: known.get(name) for name in _SHOWN}
    return shown | {"registered_at": registered_at and iso_utc(registered_at)}
