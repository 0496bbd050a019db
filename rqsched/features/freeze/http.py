"""Freeze and thaw a namespace, or everything for principals that see every namespace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from rqsched.http.dependencies import AdminAlways, AdminHeavy, Read
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.operation import Operation, routes, shown
from rqsched.http.native.responses import FreezeResponse, FreezesResponse, ThawPreviewResponse, ThawResponse
from rqsched.http.openapi import Json
from rqsched.http.request_bodies import StrictRoute
from rqsched.kernel.decide.freeze import Freeze, Thawed, ThawPreview

OPERATIONS = (
    Operation(
        "freeze", "POST", "/freeze/", "freeze", AdminAlways, FreezeResponse, is_repeatable=True,
        example={"reason": "its database moves"},
    ),
    Operation("list_freezes", "GET", "/freeze/history/", "freezes", Read, FreezesResponse, is_repeatable=True),
    Operation(
        "preview_thaw", "GET", "/thaw/preview/", "preview_thaw", AdminHeavy, ThawPreviewResponse,
        (TooManyHeavyReadsError,),
        is_repeatable=True,
    ),
    Operation(
        "thaw", "POST", "/thaw/", "thaw", AdminAlways, ThawResponse, is_repeatable=True,
        example={"missed": "one", "cancel_pending": True},
    ),
)  # fmt: skip
router = APIRouter(route_class=StrictRoute)
router.include_router(routes(OPERATIONS, "freeze"))


@router.get("/frozen/", response_model=FreezesResponse, tags=["freeze"])
def list_frozen(call: Read) -> Response:
    """List the current freezes: that of everything first, then those of namespaces that the caller may see."""
    found = call.scheduler.frozen()
    return Json({"items": [shown(one) for one in found if one.namespace is None or call.principal.sees(one.namespace)]})


@shown.register
def _(freeze: Freeze) -> dict[str, Any]:
    return {"frozen": bool(freeze.kept_in), **freeze.to_dict()}


@shown.register
def _(preview: ThawPreview) -> dict[str, Any]:
    return asdict(preview) | {"freeze": preview.freeze and shown(preview.freeze)}


@shown.register
def _(done: Thawed) -> dict[str, Any]:
    counts = {name: getattr(done, name) for name in ("schedules", "missed", "cancelled", "fired")}
    return {"was_frozen": done.freeze is not None, **counts}
