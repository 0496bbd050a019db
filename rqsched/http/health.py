"""Liveness and readiness, for orchestrators. Neither needs a token or contains a secret."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import Field
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response

from rqsched.api.scheduler import Scheduler
from rqsched.chain.runtime import Runtime
from rqsched.errors import RqschedError
from rqsched.http.dependencies import get_scheduler
from rqsched.http.errors import RETRY_AFTER
from rqsched.http.openapi import PROBLEM, Schema
from rqsched.store import schema_version
from rqsched.store.database import DatabaseError, Patience

_log = logging.getLogger(__name__)
_AT_ONCE = Patience(total=timedelta(0))


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
def readyz(scheduler: Annotated[Scheduler, Depends(get_scheduler)]) -> Response:
    """Return whether SQL and Redis respond and the schema fits this version."""
    checks = backends(scheduler.runtime)
    if all(checks.values()):
        return JSONResponse({"status": "ready", **checks})
    return JSONResponse({"status": "unavailable", **checks}, 503, {"Retry-After": str(RETRY_AFTER)})


def backends(runtime: Runtime) -> dict[str, bool]:
    """Return which backends respond now, without waiting for the others."""
    return {
        "database": _responds(lambda: runtime.database.ping(patience=_AT_ONCE)),
        "schema": _responds(lambda: schema_version.require_current(runtime.database, patience=_AT_ONCE)),
        "redis": _responds(runtime.transport.redis.ping),
    }


def _responds(check: Callable[[], object]) -> bool:
    try:
        check()
    except (RqschedError, RedisError, DatabaseError) as error:
        _log.warning("not ready: %s", error, extra={"action": "not_ready"})
        return False
    return True
