"""Liveness and readiness, for orchestrators. Neither needs a token or contains a secret."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rqsched.http.dependencies import wiring_of
from rqsched.http.errors import RETRY_AFTER
from rqsched.http.openapi import PROBLEM, Schema


class ReadyResponse(Schema):
    """Which backends respond."""

    status: Literal["ready", "unavailable"]
    database: bool
    schema_: bool = Field(alias="schema", description="Whether it fits this version.")
    redis: bool


router = APIRouter(tags=["health"], responses=PROBLEM.of(400, 413))


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Return `ok` while the process responds."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    response_model=ReadyResponse,
    responses={
        503: {"model": ReadyResponse, "description": "A backend does not respond; try again after Retry-After."}
    },
)
async def readyz(request: Request) -> Response:
    """Return whether SQL and Redis respond and the schema fits this version; within 2 s, whatever they do."""
    checks = await wiring_of(request).readiness.backends()
    if all(checks.values()):
        return JSONResponse({"status": "ready", **checks})
    return JSONResponse({"status": "unavailable", **checks}, 503, {"Retry-After": str(RETRY_AFTER)})
