"""Backfills: a small one is done at once, a large one goes on behind the answer and can be polled.

The row in SQL owns its progress: when this process ends, reconcile goes on with it.
"""

from __future__ import annotations

import logging
import threading
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain import backfill as backfills
from rqsched.chain.backfill import Backfill, Range
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import iso_utc
from rqsched.core.policy import OverlapPolicy
from rqsched.errors import BackendUnavailableError, BackfillNotFoundError
from rqsched.http.dependencies import Call, Operate, Read
from rqsched.http.native.requests import BackfillBody
from rqsched.http.native.responses import BackfillAnswer, backfill_answer
from rqsched.http.native.schedules import ScheduleId
from rqsched.http.openapi import PROBLEM
from rqsched.http.strict_json import StrictRoute
from rqsched.store import changes as store

_log = logging.getLogger(__name__)
_AT_ONCE = threading.BoundedSemaphore(2)
"""So many backfills this process carries on behind answers; further ones wait for their turn."""

router = APIRouter(tags=["backfills"], route_class=StrictRoute)


@router.post(
    "/schedules/{schedule_id}/backfill/",
    response_model=BackfillAnswer,
    responses={202: {"model": BackfillAnswer, "description": "It goes on; poll Location."}, **PROBLEM.of(409)},
)
def backfill(call: Operate, schedule_id: ScheduleId, body: BackfillBody, request: Request) -> Response:
    """Fire the occurrences of [start, end) that have passed and have no run yet.

    Up to 500 are done at once (200, with a row each); more go on behind the answer (202, see Location).
    """
    overlap = None if body.overlap is None else OverlapPolicy.of(body.overlap)
    handle = call.schedule(schedule_id)
    if body.dry_run:
        return JSONResponse(_preview(handle, body, overlap))
    wanted = Range(body.start, body.end, overlap, body.bound, call.context)
    done, rows = next(iter(handle.iter_backfill(wanted)))
    if done.is_done:
        return JSONResponse(backfill_answer(done, rows))
    _carry_on(call.scheduler.runtime, done.uid)
    location = str(request.url_for("read_backfill", uid=done.uid))
    return JSONResponse(backfill_answer(done), 202, {"Location": location})


def _preview(handle: ScheduleHandle, body: BackfillBody, overlap: OverlapPolicy | None) -> dict[str, Any]:
    rows = handle.backfill(body.start, body.end, overlap=overlap, dry_run=True, bound=body.bound).rows
    outcomes = [row.outcome for row in rows]
    return {
        "uid": None,
        "status": "dry_run",
        "start_at": iso_utc(body.start),
        "end_at": iso_utc(body.end),
        "attempted": len(rows),
        "started": outcomes.count("would_start"),
        "buffered": 0,
        "skipped": outcomes.count("skipped"),
        "already_run": outcomes.count("already_run"),
        "rows": [row.to_dict() for row in rows],
    }


def _carry_on(runtime: Runtime, uid: str) -> None:
    threading.Thread(target=_finish, args=(runtime, uid), name=f"backfill-{uid}", daemon=True).start()


def _finish(runtime: Runtime, uid: str) -> None:
    """Fire the rest; whatever stops it here, reconcile goes on with the row."""
    try:
        with _AT_ONCE:
            for _ in backfills.resume(runtime, uid):
                pass
    except BackendUnavailableError as error:
        _log.warning("backfill %s goes on later: %s", uid, error, extra={"action": "backfill_interrupted"})
    except Exception:  # noqa: BLE001 - a thread's boundary
        _log.exception("backfill %s goes on later", uid, extra={"action": "backfill_interrupted"})


@router.get("/backfills/{uid}/", response_model=BackfillAnswer)
def read_backfill(call: Read, uid: Annotated[str, Path(max_length=26)]) -> Response:
    """Read how far a backfill is."""
    return JSONResponse(backfill_answer(_find(call, uid)))


def _find(call: Call, uid: str) -> Backfill:
    runtime = call.scheduler.runtime
    found = backfills.get_backfill(runtime, uid.upper())
    schedule = runtime.database.read(lambda connection: store.find(connection, found.schedule_uid))
    if schedule is None or schedule.namespace != call.namespace:
        raise BackfillNotFoundError(uid)
    return found
