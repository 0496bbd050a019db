"""The endpoint `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from rqsched.http.dependencies import SignedIn, wiring_of
from rqsched.http.openapi import PROBLEM

router = APIRouter(tags=["health"])


class _Collected(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **PROBLEM.of(400, 401, 403, 413, 429, 500)},
)
def metrics(request: Request, principal: SignedIn) -> Response:
    """Return counters since the first read of this process, and current gauges, in Prometheus format."""
    meter = wiring_of(request).meter
    meter.refresh()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(meter.families(principal)))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
