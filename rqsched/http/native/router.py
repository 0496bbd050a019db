"""The router of the native surface: schedules, runs and backfills, and the workflows that schedules may name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.dependencies.models import Dependant
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rqsched.core.did_you_mean import did_you_mean
from rqsched.core.ids import iso_utc
from rqsched.core.payload import loads
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import Call, Read, SignedIn
from rqsched.http.native import bulk, events, runs, schedules, sync, usage
from rqsched.http.native.responses import WorkflowsResponse
from rqsched.http.openapi import ANY, PROBLEM
from rqsched.http.strict_json import StrictRoute
from rqsched.store import registered_workflows


def _refuse_unknown_parameters(request: Request, principal: SignedIn) -> None:
    """Refuse what the route of a request does not declare: ignored, `?offset=100` would return the first page for ever.

    It is told to those who may ask at all: the principal is found first.
    """
    del principal
    if not request.query_params:
        return
    known = sorted(set(_query_names(request.scope["route"].dependant)))
    for name in request.query_params:
        if name not in known:
            nearest = did_you_mean(name, known) or f"; known are {', '.join(known)}"
            raise InvalidInputError(name[:100], f"is not a parameter of this request{nearest}")


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


router = APIRouter(
    prefix="/api/v1",
    route_class=StrictRoute,
    responses=PROBLEM.of(*ANY),
    dependencies=[Depends(_refuse_unknown_parameters)],
)
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
