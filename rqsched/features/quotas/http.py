"""The route `/usage/`: the usage and the quota of a namespace."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.http.dependencies import Read
from rqsched.http.openapi import Json, Schema
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.quota_options import RESOURCES

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
    """The bytes of their declarations: timing, arguments, memo, labels and other options."""


@router.get("/usage/", response_model=UsageResponse, tags=["usage"])
def read_usage(call: Read) -> Response:
    """Read the usage and the quota of the namespace: the number of schedules, and the bytes of their declarations."""
    usage = call.scheduler.namespaces.usage(namespace=call.namespace)
    pairs = {name: {"used": getattr(usage, name), "limit": getattr(usage.limits, name)} for name in RESOURCES}
    return Json({"namespace": usage.namespace, **pairs})
