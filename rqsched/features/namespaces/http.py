"""`/namespace/`: count what a namespace holds, and delete it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.errors import ConflictError, InvalidInputError
from rqsched.features.namespaces.api import delete_some
from rqsched.http.dependencies import AdminAlways, AdminHeavy
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.requests import MAX_NAME, Note
from rqsched.http.openapi import PROBLEM, Json, schema_of
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.results import NamespaceData

router = APIRouter(route_class=StrictRoute)


NamespaceDataResponse: Any = schema_of("NamespaceDataResponse", NamespaceData)


@router.get(
    "/namespace/",
    response_model=NamespaceDataResponse,
    responses=PROBLEM.of(TooManyHeavyReadsError),
    tags=["namespace"],
)
def read_namespace(call: AdminHeavy) -> Response:
    """Count the stored and the executing objects that a deletion of the namespace would delete."""
    return Json(call.scheduler.namespaces.preview_delete(call.namespace))


@router.delete(
    "/namespace/", response_model=NamespaceDataResponse, responses=PROBLEM.of(ConflictError), tags=["namespace"]
)
def delete_namespace(
    call: AdminAlways,
    confirm: Annotated[str, Query(max_length=MAX_NAME, description="The name of the namespace, once more.")],
    terminate: Annotated[bool, Query(description="Terminate what executes; without it that is 409.")] = False,
    reason: Annotated[Note | None, Query(description="Why; it is kept for the audit.")] = None,
) -> Response:
    """Delete everything in the frozen namespace for good, some thousand rows in each request.

    Repeat until `is_over`.
    """
    if confirm != call.namespace:
        raise InvalidInputError("confirm", f"must be the name of the namespace that is deleted, {call.namespace!r}")
    context = call.context if reason is None else replace(call.context, reason=reason)
    return Json(delete_some(call.scheduler.runtime, call.namespace, context, terminates=terminate))
