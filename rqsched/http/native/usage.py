"""What a namespace holds, and what its quota allows."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rqsched.core.quota import RESOURCES
from rqsched.http.dependencies import Read
from rqsched.http.openapi import Schema
from rqsched.http.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["usage"])


class ResourceResponse(Schema):
    """How much of something a namespace holds."""

    used: int
    """What it holds now."""
    limit: int | None
    """What it may hold; null is no limit."""


class UsageResponse(Schema):
    """What a namespace holds."""

    namespace: str
    """The namespace."""
    schedules: ResourceResponse
    """Schedules that are not deleted."""
    bytes: ResourceResponse
    """The bytes they declare: timing, arguments, memo, labels and the rest of their options."""


@router.get("/usage/", response_model=UsageResponse)
def read_usage(call: Read) -> Response:
    """Read what the namespace holds and what it may hold: schedules, and the bytes they declare."""
    usage = call.scheduler.usage(namespace=call.namespace)
    pairs = {name: {"used": getattr(usage, name), "limit": getattr(usage.limits, name)} for name in RESOURCES}
    return JSONResponse({"namespace": usage.namespace, **pairs})
