"""Freeze and thaw a namespace. Principals that see every namespace can also freeze and thaw everything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from rqsched.api.scheduler import Scheduler
from rqsched.http.dependencies import AdminAlways, AdminHeavy, Call, Read
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.operation import Operation, Owner, routes, shown
from rqsched.http.native.responses import FreezeResponse, FreezesResponse, ThawPreviewResponse, ThawResponse
from rqsched.http.openapi import Json
from rqsched.kernel.decide.freeze import Freeze, Thawed, ThawPreview


def _that_it_sees(call: Call, found: list[Freeze]) -> Response:
    return Json(shown([one for one in found if one.namespace is None or call.principal.sees(one.namespace)]))


OPERATIONS = (
    Operation(
        "freeze", "POST", "/freeze/", "freeze", AdminAlways, FreezeResponse, is_repeatable=True,
        example={"reason": "its database moves"},
    ),
    Operation(
        "list_frozen", "GET", "/frozen/", "frozen", Read, FreezesResponse, is_repeatable=True,
        owner=Owner(Scheduler, answer=_that_it_sees),
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
router = routes(OPERATIONS, "freeze")


@shown.register
def _(freeze: Freeze) -> dict[str, Any]:
    return {"frozen": bool(freeze.kept_in), **freeze.to_dict()}


@shown.register
def _(preview: ThawPreview) -> dict[str, Any]:
    return asdict(preview) | {"freeze": preview.freeze and shown(preview.freeze)}


@shown.register
def _(done: Thawed) -> dict[str, Any]:
    ended = None if done.freeze is None else shown(done.freeze) | {"frozen": False}
    return {name: getattr(done, name) for name in ("schedules", "missed", "cancelled", "fired")} | {"freeze": ended}
