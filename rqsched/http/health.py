"""Whether the application lives and can serve: for orchestrators. Neither answer needs a token or tells secrets."""

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
from rqsched.store import schema
from rqsched.store.database import DatabaseError, Patience

_log = logging.getLogger(__name__)
_AT_ONCE = Patience(total=timedelta(0))


class ReadyResponse(Schema):
    """Which backends answer."""

    status: Literal["ready", "unavailable"]
    database: bool
    schema_: bool = Field(alias="schema", description="It fits this version.")
    redis: bool


router = APIRouter(tags=["health"], responses=PROBLEM.of(400, 413))


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    response_model=ReadyResponse,
    responses={503: {"model": ReadyResponse, "description": "A backend does not answer; try again after Retry-After."}},
)
def readyz(scheduler: Annotated[Scheduler, Depends(get_scheduler)]) -> Response:
    """Say whether SQL and Redis answer and the schema fits."""
    checks = backends(scheduler.runtime)
    if all(checks.values()):
        return JSONResponse({"status": "ready", **checks})
    return JSONResponse({"status": "unavailable", **checks}, 503, {"Retry-After": str(RETRY_AFTER)})


def backends(runtime: Runtime) -> dict[str, bool]:
    """Tell which backends answer now, without waiting for those that do not."""
    return {
        "database": _answers(lambda: runtime.database.ping(patience=_AT_ONCE)),
        "schema": _answers(lambda: schema.require_current(runtime.database, patience=_AT_ONCE)),
        "redis": _answers(runtime.transport.redis.ping),
    }


def _answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (RqschedError, RedisError, DatabaseError) as error:
        _log.warning("not ready: %s", error, extra={"action": "not_ready"})
        return False
    return True
