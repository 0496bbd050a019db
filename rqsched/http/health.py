"""Liveness and readiness for orchestrators, without a token and without secrets, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rqsched.http.dependencies import SignedIn, wiring_of
from rqsched.http.errors import RETRY_AFTER
from rqsched.http.openapi import PROBLEM, Schema


class ReadyResponse(Schema):
    """Which backends respond."""

    status: Literal["ready", "unavailable"]
    """`ready` if both backends respond."""
    database: bool
    """Whether SQL responds."""
    schema_: bool = Field(alias="schema", description="Whether it fits this version.")
    redis: bool
    """Whether Redis responds and takes writes."""


router = APIRouter(
    tags=["health"],
    responses=PROBLEM.of_every_route(400, 413),
    generate_unique_id_function=lambda route: route.name,
)


@router.get("/healthz", responses={200: {"content": {"application/json": {"example": {"status": "ok"}}}}})
async def healthz() -> dict[str, str]:
    """Return `ok` while the process responds."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    response_model=ReadyResponse,
    responses={503: {"model": ReadyResponse, "description": "A backend does not respond, or Redis takes no writes."}},
)
async def readyz(request: Request) -> Response:
    """Return whether SQL responds, its schema fits this version and Redis takes writes; within 2 s in any case."""
    checks = await wiring_of(request).readiness.backends()
    if all(checks.values()):
        return JSONResponse({"status": "ready", **checks})
    return JSONResponse({"status": "unavailable", **checks}, 503, {"Retry-After": str(RETRY_AFTER)})


class _Collected(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": "rqsched_up 1.0"}}},
        **PROBLEM.of_every_route(400, 401, 403, 413, 429, 500),
    },
)
def metrics(request: Request, principal: SignedIn) -> Response:
    """Return counters since the first read of this process, and current gauges, in Prometheus format."""
    meter = wiring_of(request).meter
    meter.refresh()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(meter.families(principal)))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
