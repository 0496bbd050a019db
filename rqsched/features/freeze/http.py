"""Hold and release a whole installation, for principals that see every namespace; freeze and thaw one namespace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from rqsched.http.dependencies import AdminAlways, AdminHeavy, Call, Read
from rqsched.http.errors import ForbiddenError
from rqsched.http.native.requests import (
    THAW_MISSED,
    FreezeRequest,
    HoldRequest,
    Instant,
    ReleaseRequest,
    ThawMissed,
    ThawRequest,
)
from rqsched.http.native.responses import HoldResponse, HoldsResponse, ReleasePreviewResponse, ReleaseResponse
from rqsched.http.openapi import Json
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.hold import Hold, Released, ReleasePreview

router = APIRouter(route_class=StrictRoute, tags=["hold"])


def require_all(call: Call) -> None:
    """Refuse a principal that sees only some namespaces; raises ForbiddenError."""
    if call.principal.namespaces is not None:
        raise ForbiddenError("this concerns every namespace, and the token sees only some; use one of all namespaces.")


@router.get("/hold/", response_model=HoldResponse)
def read_hold(call: Read) -> Response:
    """Read whether everything is held, since when, by whom and why."""
    return Json(_hold(call))


@router.post("/hold/", response_model=HoldResponse)
def hold(call: AdminAlways, body: HoldRequest) -> Response:
    """Let nothing begin in any namespace until the hold is released; idempotent."""
    require_all(call)
    call.scheduler.hold(body.reason, context=call.context)
    return Json(_hold(call))


@router.get("/hold/history/", response_model=HoldsResponse)
def history(call: Read) -> Response:
    """List the current and past holds, newest first: when, by whom and why each was set and released."""
    return Json({"items": [_told(one) for one in call.scheduler.holds()]})


@router.get("/hold/preview/", response_model=ReleasePreviewResponse)
def preview(
    call: AdminHeavy,
    since: Annotated[Instant | None, Query(description="With `missed`: only what is due since then.")] = None,
    missed: Annotated[bool, Query(description="What is due is recorded as missed instead of firing.")] = False,
) -> Response:
    """Show what a release would do now: what fires by policy, and which runs wait to begin; at most 500 of each."""
    require_all(call)
    return Json(_previewed(call.scheduler.preview_release(since=since, missed=missed)))


@router.post("/release/", response_model=ReleaseResponse)
def release(call: AdminAlways, body: ReleaseRequest) -> Response:
    """Let everything begin again.

    First, `missed` records due occurrences as missed, and `cancel_pending` cancels waiting runs.
    """
    require_all(call)
    done = call.scheduler.release(
        since=body.since,
        missed=body.missed,
        cancel_pending=body.cancel_pending,
        reason=body.reason,
        context=call.context,
    )
    return Json(_done(done))


@router.get("/frozen/", response_model=HoldsResponse)
def read_frozen(call: Read) -> Response:
    """List the freezes of frozen namespaces that the caller may see, the newest first."""
    return Json({"items": [_told(one) for one in call.scheduler.frozen() if call.principal.sees(str(one.namespace))]})


@router.post("/freeze/", response_model=HoldResponse)
def freeze(call: AdminAlways, body: FreezeRequest) -> Response:
    """Let nothing begin in the namespace until it is thawed; idempotent."""
    return Json(_told(call.scheduler.freeze(body.reason, namespace=call.namespace, context=call.context)))


@router.get("/freeze/history/", response_model=HoldsResponse)
def freezes(call: Read) -> Response:
    """List the current and past freezes of the namespace, newest first: when, by whom and why each began and ended."""
    return Json({"items": [_told(one) for one in call.scheduler.freezes(namespace=call.namespace)]})


@router.get("/freeze/preview/", response_model=ReleasePreviewResponse)
def preview_thaw(
    call: AdminHeavy, missed: Annotated[ThawMissed | None, Query(description=THAW_MISSED)] = None
) -> Response:
    """Show what a thaw would do now: what fires, and which runs wait to begin; at most 500 of each."""
    return Json(_previewed(call.scheduler.preview_thaw(missed=missed, namespace=call.namespace)))


@router.post("/thaw/", response_model=ReleaseResponse)
def thaw(call: AdminAlways, body: ThawRequest) -> Response:
    """Let everything in the namespace begin again; `missed` and `cancel_pending` are applied first."""
    done = call.scheduler.thaw(
        missed=body.missed,
        cancel_pending=body.cancel_pending,
        namespace=call.namespace,
        reason=body.reason,
        context=call.context,
    )
    return Json(_done(done))


def _previewed(found: ReleasePreview) -> dict[str, Any]:
    return asdict(found) | {"hold": {"held": False} if found.hold is None else _told(found.hold)}


def _done(done: Released) -> dict[str, Any]:
    counts = {name: getattr(done, name) for name in ("schedules", "missed", "cancelled", "fired")}
    return {"was_held": done.hold is not None, **counts}


def _hold(call: Call) -> dict[str, Any]:
    found = call.scheduler.held()
    return {"held": False} if found is None else _told(found)


def _told(hold: Hold) -> dict[str, Any]:
    return {"held": bool(hold.kept_in), **hold.to_dict()}
