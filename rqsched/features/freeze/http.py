"""Freeze and thaw a namespace, or everything for principals that see every namespace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.http.dependencies import AdminAlways, AdminHeavy, Call, Read
from rqsched.http.errors import ForbiddenError, TooManyHeavyReadsError
from rqsched.http.native.requests import (
    EVERYTHING,
    SINCE_MISSED,
    THAW_MISSED,
    FreezeRequest,
    Instant,
    ThawMissed,
    ThawRequest,
)
from rqsched.http.native.responses import FreezeResponse, FreezesResponse, ThawPreviewResponse, ThawResponse
from rqsched.http.openapi import PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.freeze import Freeze

router = APIRouter(route_class=StrictRoute, tags=["freeze"])
Everything = Annotated[bool, Query(description=EVERYTHING)]


def require_all(call: Call) -> None:
    """Refuse a principal that sees only some namespaces; raises ForbiddenError."""
    if call.principal.namespaces is not None:
        raise ForbiddenError("this concerns every namespace, and the token sees only some; use one of all namespaces.")


def _scope(call: Call, *, everything: bool) -> dict[str, Any]:
    """Return what is meant, as the scheduler's arguments; raises ForbiddenError."""
    if everything:
        require_all(call)
        return {"everything": True}
    return {"namespace": call.namespace}


@router.get("/frozen/", response_model=FreezesResponse)
def list_frozen(call: Read) -> Response:
    """List the current freezes: that of everything first, then those of namespaces that the caller may see."""
    found = call.scheduler.frozen()
    return Json({"items": [_told(one) for one in found if one.namespace is None or call.principal.sees(one.namespace)]})


@router.post("/freeze/", response_model=FreezeResponse)
def freeze(call: AdminAlways, body: FreezeRequest) -> Response:
    """Let nothing begin in the namespace, or in any, until it is thawed; idempotent."""
    scope = _scope(call, everything=body.everything)
    return Json(_told(call.scheduler.freeze(body.reason, context=call.context, **scope)))


@router.get("/freeze/history/", response_model=FreezesResponse)
def list_freezes(call: Read, everything: Everything = False) -> Response:
    """List the current and past freezes, newest first: when, by whom and why each began and ended."""
    scope = {"everything": True} if everything else {"namespace": call.namespace}
    return Json({"items": [_told(one) for one in call.scheduler.freezes(**scope)]})


@router.get("/thaw/preview/", response_model=ThawPreviewResponse, responses=PROBLEM.of(TooManyHeavyReadsError))
def preview_thaw(
    call: AdminHeavy,
    everything: Everything = False,
    missed: Annotated[ThawMissed | None, Query(description=THAW_MISSED)] = None,
    since: Annotated[Instant | None, Query(description=SINCE_MISSED)] = None,
) -> Response:
    """Show what a thaw would do now: what fires, and which runs wait to begin; at most 500 of each."""
    found = call.scheduler.preview_thaw(missed=missed, since=since, **_scope(call, everything=everything))
    return Json(asdict(found) | {"freeze": None if found.freeze is None else _told(found.freeze)})


@router.post("/thaw/", response_model=ThawResponse)
def thaw(call: AdminAlways, body: ThawRequest) -> Response:
    """Let the namespace, or everything, begin again; `missed` and `cancel_pending` are applied first."""
    done = call.scheduler.thaw(
        missed=body.missed,
        since=body.since,
        cancel_pending=body.cancel_pending,
        reason=body.reason,
        context=call.context,
        **_scope(call, everything=body.everything),
    )
    counts = {name: getattr(done, name) for name in ("schedules", "missed", "cancelled", "fired")}
    return Json({"was_frozen": done.freeze is not None, **counts})


def _told(freeze: Freeze) -> dict[str, Any]:
    return {"frozen": bool(freeze.kept_in), **freeze.to_dict()}
