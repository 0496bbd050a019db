"""`/sync/`: create, update and delete schedules so that they match a declared set."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from rqsched import Declaration
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import AdminOrHeavy, Call
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.convert import declaration_of
from rqsched.http.native.requests import SyncedScheduleRequest, SyncRequest
from rqsched.http.native.responses import SyncResponse
from rqsched.http.native.schedules import require_registered
from rqsched.http.openapi import DEFINITION, PROBLEM, Json
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["schedules"])


@router.post("/sync/", response_model=SyncResponse, responses=PROBLEM.of(*DEFINITION, TooManyHeavyReadsError))
def sync_schedules(call: AdminOrHeavy, body: SyncRequest) -> Response:
    """Create or replace the definitions of a declared set; `delete_removed` deletes other schedules of earlier syncs.

    The whole set is checked before anything is written. If a sync is interrupted, the same request completes it.
    """
    declared = [_declared(call, one) for one in body.schedules]
    done = call.scheduler.sync(
        declared,
        delete_removed=body.delete_removed,
        keep=body.keep,
        dry_run=body.dry_run,
        namespace=call.namespace,
        context=call.context,
    )
    return Json(done)


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
