"""What a schedule has done and will do: history, runs, upcoming fires. Also after it was deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import JSONResponse, Response

from rqsched.core.ids import iso_utc
from rqsched.core.model import RunStatus
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.http.dependencies import Operate, Read
from rqsched.http.native.responses import EventAnswers, RunAnswer, RunAnswers, UpcomingAnswer, event_answer, run_answer
from rqsched.http.native.schedules import Cursor, Limit, ScheduleId
from rqsched.http.strict_json import StrictRoute

router = APIRouter(prefix="/schedules/{schedule_id}", tags=["runs"], route_class=StrictRoute)

RunId = Annotated[str, Path(max_length=512, description="A run's uid, number or instance id.")]
_LAST_SEQUENCE = 2**63 - 1


@router.get("/history/", response_model=EventAnswers)
def history(
    call: Read,
    schedule_id: ScheduleId,
    limit: Limit = 100,
    after_sequence: Annotated[int, Query(ge=0, le=_LAST_SEQUENCE, description="Only later events.")] = 0,
    cursor: Cursor = None,
) -> Response:
    """Read audit events, oldest first."""
    start = after_sequence if cursor is None else _sequence(cursor)
    events = call.newest(schedule_id).history(min(limit + 1, 500), start)
    items = [event_answer(event) for event in events[:limit]]
    has_more = len(events) > limit or len(events) == 500
    return JSONResponse({"items": items, "next_cursor": str(items[-1]["sequence"]) if has_more else None})


def _sequence(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:
        raise InvalidLimitError("cursor", "is malformed; pass the next_cursor of the page before")
    return int(cursor)


@router.get("/runs/", response_model=RunAnswers)
def list_runs(
    call: Read,
    schedule_id: ScheduleId,
    status: Annotated[list[str] | None, Query(description="Only these.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Read runs, newest first."""
    statuses = tuple(name for text in status or () for name in text.split(",") if name)
    if unknown := [name for name in statuses if name not in list(RunStatus)]:
        raise InvalidInputError("status", f"{unknown[0]!r} is not one of {', '.join(RunStatus)}")
    page = call.newest(schedule_id).runs(limit, cursor, statuses)
    return JSONResponse({"items": [run_answer(run.state) for run in page.items], "next_cursor": page.next_cursor})


@router.get("/runs/{run}/", response_model=RunAnswer)
def read_run(call: Read, schedule_id: ScheduleId, run: RunId) -> Response:
    """Read one run by uid, number or instance id."""
    return JSONResponse(run_answer(call.newest(schedule_id).run(run).state))


@router.post("/runs/{run}/cancel/", response_model=RunAnswer)
def cancel(call: Operate, schedule_id: ScheduleId, run: RunId) -> Response:
    """End a run: a waiting one never starts, a running one sees it at its next checkpoint. Answers as it is then."""
    return JSONResponse(run_answer(call.newest(schedule_id).run(run).cancel().state))


@router.post("/runs/{run}/terminate/", response_model=RunAnswer)
def terminate(call: Operate, schedule_id: ScheduleId, run: RunId) -> Response:
    """End a run and kill its process. Answers as it is then."""
    return JSONResponse(run_answer(call.newest(schedule_id).run(run).terminate().state))


@router.get("/upcoming/", response_model=UpcomingAnswer)
def upcoming(
    call: Read, schedule_id: ScheduleId, count: Annotated[int, Query(ge=1, le=1_000, description="How many.")] = 5
) -> Response:
    """Name the next instants at which it fires."""
    instants = call.schedule(schedule_id).upcoming(count)
    return JSONResponse({"items": [iso_utc(instant) for instant in instants]})
