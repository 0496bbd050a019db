"""A declared set of schedules, made what the namespace holds."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rqsched.api.declarations import Declaration
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import Call
from rqsched.http.native.conditions import AdminAlways
from rqsched.http.native.convert import declaration_of
from rqsched.http.native.requests import SyncedScheduleRequest, SyncRequest
from rqsched.http.native.schedules import require_registered
from rqsched.http.openapi import Schema
from rqsched.http.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["schedules"])


class SyncResponse(Schema):
    """What a sync did, as schedule ids."""

    created: list[str]
    """New ones."""
    updated: list[str]
    """Known ones that were declared differently."""
    unchanged: list[str]
    """Known ones as declared."""
    removed: list[str]
    """Deleted by prune."""


@router.post("/sync/", response_model=SyncResponse)
def sync(call: AdminAlways, body: SyncRequest) -> Response:
    """Create or replace the definitions of a declared set; with `prune`, delete what earlier syncs made and it lacks.

    All of it is checked before anything is written. Sent again it does the rest.
    """
    declared = [_declared(call, one) for one in body.schedules]
    bring_about = call.scheduler.preview_sync if body.dry_run else partial(call.scheduler.sync, context=call.context)
    done = bring_about(declared, prune=body.prune, keep=body.keep, namespace=call.namespace)
    return JSONResponse(asdict(done))


def _declared(call: Call, body: SyncedScheduleRequest) -> Declaration:
    try:
        declaration = declaration_of(body)
        require_registered(call, declaration)
    except InvalidInputError as error:
        error.add_note(f"in the declaration of {body.schedule_id!r}")
        raise
    return Declaration(
        body.schedule_id,
        declaration.workflow or "",
        declaration.spec or {},
        declaration.options,
        body.note,
        body.paused,
    )
