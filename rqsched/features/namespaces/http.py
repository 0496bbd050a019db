"""A namespace: its usage and quota, its coming load, its groups of runs, and the workflows its schedules may name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.errors import InvalidInputError
from rqsched.features.namespaces.api import delete_some
from rqsched.http.dependencies import AdminAlways, AdminHeavy, OperateAlways, Read, ReadHeavy
from rqsched.http.native.requests import MAX_NAME, Cursor, Limit, LimitRequest, Note
from rqsched.http.native.responses import LimitResponse, LimitsResponse, WorkflowResponse, WorkflowsResponse
from rqsched.http.openapi import PROBLEM, Json, Schema, schema_of
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.quota_options import RESOURCES
from rqsched.kernel.decide.results import Load, NamespaceData, Peak, QueueLoad
from rqsched.kernel.store import registered_workflows
from rqsched.simulate.load import MOST_HOURS

router = APIRouter(route_class=StrictRoute)


class ResourceResponse(Schema):
    """A namespace's usage of one resource."""

    used: int
    """The amount in use."""
    limit: int | None
    """The quota; null is no limit."""


class UsageResponse(Schema):
    """The usage of a namespace."""

    namespace: str
    """The namespace."""
    schedules: ResourceResponse
    """Schedules that are not deleted."""
    bytes: ResourceResponse
    """The bytes they declare: timing, arguments, memo, labels and the rest of their options."""


@router.get("/usage/", response_model=UsageResponse, tags=["usage"])
def read_usage(call: Read) -> Response:
    """Read the usage and the quota of the namespace: schedules, and the bytes they declare."""
    usage = call.scheduler.usage(namespace=call.namespace)
    pairs = {name: {"used": getattr(usage, name), "limit": getattr(usage.limits, name)} for name in RESOURCES}
    return Json({"namespace": usage.namespace, **pairs})


@router.get("/limits/", response_model=LimitsResponse, tags=["limits"])
def list_limits(call: Read, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List the groups of runs that have a limit of concurrency or rate, with how many of their runs run and wait."""
    page = call.scheduler.limits(namespace=call.namespace, limit=limit, cursor=cursor)
    return Json({"items": page.items, "next_cursor": page.next_cursor})


@router.put("/limits/", response_model=LimitResponse, tags=["limits"])
def set_limit(call: OperateAlways, body: LimitRequest) -> Response:
    """Change how many runs of a group may run at once, or start in a time; running runs continue. Idempotent."""
    where, asked = call.namespace, replace(call.context, reason=body.reason)
    found = call.scheduler.set_limit(
        body.name, body.number, rate=body.rate, unset=body.unset, namespace=where, context=asked
    )
    return Json(found)


NamespaceDataResponse: Any = schema_of("NamespaceDataResponse", NamespaceData)


@router.get("/namespace/", response_model=NamespaceDataResponse, tags=["namespace"])
def read_namespace(call: AdminHeavy) -> Response:
    """Count the stored and the executing objects of the namespace, which its deletion would delete."""
    return Json(call.scheduler.preview_delete_namespace(call.namespace))


@router.delete("/namespace/", response_model=NamespaceDataResponse, responses=PROBLEM.of(409), tags=["namespace"])
def delete_namespace(
    call: AdminAlways,
    confirm: Annotated[str, Query(max_length=MAX_NAME, description="The name of the namespace, once more.")],
    terminate: Annotated[bool, Query(description="Terminate what executes; without it that is 409.")] = False,
    reason: Annotated[Note | None, Query(description="Why; it is kept for the audit.")] = None,
) -> Response:
    """Delete everything in the frozen namespace for good, some thousand rows a request: repeat until `is_over`."""
    if confirm != call.namespace:
        raise InvalidInputError("confirm", f"must be the name of the namespace that is deleted, {call.namespace!r}")
    context = call.context if reason is None else replace(call.context, reason=reason)
    return Json(delete_some(call.scheduler.runtime, call.namespace, context, terminates=terminate))


PeakResponse: Any = schema_of("PeakResponse", Peak)
QueueLoadResponse: Any = schema_of("QueueLoadResponse", QueueLoad)


class _Parts(Schema):
    peaks: list[PeakResponse]
    queues: list[QueueLoadResponse]


LoadResponse: Any = schema_of("LoadResponse", Load, without=("peaks", "queues"), base=_Parts)


@router.get("/load/", response_model=LoadResponse, tags=["load"])
def read_load(
    call: ReadHeavy, hours: Annotated[int, Query(ge=1, le=MOST_HOURS, description="How many hours ahead.")] = 24
) -> Response:
    """Count the fires of the next hours, minute by minute: the peaks, the schedules that make them, and each queue."""
    return Json(call.scheduler.load(hours, namespace=call.namespace))


@router.get("/workflows/", response_model=WorkflowsResponse, tags=["workflows"])
def list_workflows(call: Read) -> Response:
    """List the workflows that any process registered, by name, with their defaults.

    A principal that sees only some namespaces gets the workflows that schedules of the namespace use.
    """
    runtime = call.scheduler.runtime
    recorded = runtime.database.read(registered_workflows.read_all)
    here = {known.name: {"name": known.name, **known.defaults} for known in runtime.imports.all()}
    merged = here | recorded
    shown = frozenset(merged)
    if call.principal.namespaces is not None:
        shown = call.read(lambda connection: registered_workflows.names_in_use(connection, call.namespace))
    return Json({"items": [_workflow(merged[name]) for name in sorted(merged) if name in shown]})


def _workflow(workflow: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shown fields of a workflow, which leave out the place of its code."""
    known = {**loads(workflow.get("options") or "{}"), **workflow}
    return {name: known.get(name) for name in WorkflowResponse.model_fields}
