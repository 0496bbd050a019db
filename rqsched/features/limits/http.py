"""`/limits/`: the groups of runs of a namespace that have a limit, and a change of what one allows."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.errors import InvalidLimitError, InvalidPolicyError, LimitNotFoundError
from rqsched.http.dependencies import OperateAlways, Read
from rqsched.http.native.requests import Cursor, Limit, LimitRequest
from rqsched.http.native.responses import LimitResponse, LimitsResponse
from rqsched.http.openapi import PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.get("/limits/", response_model=LimitsResponse, responses=PROBLEM.of(InvalidLimitError), tags=["limits"])
def list_limits(call: Read, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List the groups of runs that have a limit of concurrency or rate, with how many of their runs run and wait."""
    page = call.scheduler.limits.list(namespace=call.namespace, limit=limit, cursor=cursor)
    return Json({"items": page.items, "next_cursor": page.next_cursor})


@router.put(
    "/limits/",
    response_model=LimitResponse,
    responses=PROBLEM.of(LimitNotFoundError, InvalidPolicyError),
    tags=["limits"],
)
def set_limit(call: OperateAlways, body: LimitRequest) -> Response:
    """Change how many runs of a group may run at once, or start in a time; running runs continue. Idempotent."""
    where, asked = call.namespace, replace(call.context, reason=body.reason)
    found = call.scheduler.limits.set(
        body.name, body.number, rate=body.rate, unset=body.unset, namespace=where, context=asked
    )
    return Json(found)
