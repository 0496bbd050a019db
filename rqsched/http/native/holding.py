"""Hold and release of a whole installation: for principals that see every namespace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.core.hold import Hold
from rqsched.http.dependencies import Admin, AdminAlways, Call, Read
from rqsched.http.errors import ForbiddenError
from rqsched.http.native.requests import HoldRequest, Instant, ReleaseRequest
from rqsched.http.native.responses import HoldResponse, HoldsResponse, ReleasePreviewResponse, ReleaseResponse
from rqsched.http.openapi import Json
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["hold"])


def _require_all(call: Call) -> None:
    if call.principal.namespaces is not None:
        raise ForbiddenError("this concerns every namespace, and the token sees only some; use one of all namespaces.")


@router.get("/hold/", response_model=HoldResponse)
def read_hold(call: Read) -> Response:
    """Read whether everything is held, since when, by whom and why."""
    return Json(_hold(call))


@router.post("/hold/", response_model=HoldResponse)
def hold(call: AdminAlways, body: HoldRequest) -> Response:
    """Let nothing begin until it is released, in any namespace; idempotent."""
    _require_all(call)
    call.scheduler.hold(body.reason, context=call.context)
    return Json(_hold(call))


@router.get("/hold/history/", response_model=HoldsResponse)
def history(call: Read) -> Response:
    """List the hold and those that were released, the newest first: set and released when, by whom and why."""
    return Json({"items": [_told(one) for one in call.scheduler.holds()]})


@router.get("/hold/preview/", response_model=ReleasePreviewResponse)
def preview(
    call: Admin,
    since: Annotated[Instant | None, Query(description="With `missed`: only what is due since then.")] = None,
    missed: Annotated[bool, Query(description="What is due is recorded as missed instead of firing.")] = False,
) -> Response:
    """Show what a release would do now: what fires by policy, and which runs wait to begin; at most 500 of each."""
    _require_all(call)
    found = asdict(call.scheduler.preview_release(since=since, missed=missed))
    return Json(found | {"hold": _hold(call)})


@router.post("/release/", response_model=ReleaseResponse)
def release(call: AdminAlways, body: ReleaseRequest) -> Response:
    """Let everything begin again; with `missed` or `cancel_pending`, what is due and what waits is dealt with first."""
    _require_all(call)
    done = call.scheduler.release(
        since=body.since,
        missed=body.missed,
        cancel_pending=body.cancel_pending,
        reason=body.reason,
        context=call.context,
    )
    counts = {name: getattr(done, name) for name in ("schedules", "missed", "cancelled")}
    return Json({"was_held": done.hold is not None, **counts})


def _hold(call: Call) -> dict[str, Any]:
    found = call.scheduler.held()
    return {"held": False} if found is None else _told(found)


def _told(hold: Hold) -> dict[str, Any]:
    return {"held": bool(hold.kept_in), **hold.to_dict()}
