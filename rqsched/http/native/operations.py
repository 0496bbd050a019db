"""What one does to a schedule that is there: pause, resume, restart, trigger."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rqsched.api.schedule_handle import TriggerResult
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import Operate
from rqsched.http.native.requests import NoteBody, PauseBody, ResumeBody, TriggerBody
from rqsched.http.native.responses import ScheduleAnswer, TriggerAnswer, run_answer
from rqsched.http.native.schedules import Key, ScheduleId, answered
from rqsched.http.openapi import PROBLEM
from rqsched.http.strict_json import StrictRoute

router = APIRouter(
    prefix="/schedules/{schedule_id}", tags=["operations"], route_class=StrictRoute, responses=PROBLEM.of(409)
)


@router.post("/pause/", response_model=ScheduleAnswer)
def pause(call: Operate, schedule_id: ScheduleId, body: PauseBody | None = None) -> Response:
    """Stop firing; 400 unless it is active. Runs and retries go on."""
    said = body or PauseBody()
    handle = call.schedule(schedule_id).pause(said.note, reason=said.reason, context=call.context)
    return answered(call, handle)


@router.post("/resume/", response_model=ScheduleAnswer)
def resume(call: Operate, schedule_id: ScheduleId, body: ResumeBody | None = None) -> Response:
    """Fire again; 400 unless it is paused."""
    said = body or ResumeBody()
    handle = call.schedule(schedule_id).resume(said.catch_up, note=said.note, context=call.context)
    return answered(call, handle)


@router.post("/restart/", response_model=ScheduleAnswer)
def restart(call: Operate, schedule_id: ScheduleId, body: NoteBody | None = None) -> Response:
    """Revive a done or dead schedule with its counters at zero; 409 in any other status."""
    handle = call.schedule(schedule_id).restart(note=body.note if body else None, context=call.context)
    return answered(call, handle)


@router.post("/trigger/", response_model=TriggerAnswer)
def trigger(
    call: Operate, schedule_id: ScheduleId, body: TriggerBody | None = None, idempotency_key: Key = None
) -> Response:
    """Start a run now as the overlap policy allows; `outcome` says what came of it. A key makes it safe to repeat."""
    said = body or TriggerBody()
    if idempotency_key and said.idempotency_key and idempotency_key != said.idempotency_key:
        raise InvalidInputError("idempotency_key", "contradicts the Idempotency-Key header; give one of them")
    result = call.schedule(schedule_id).trigger(
        said.overlap,
        force=said.force,
        idempotency_key=idempotency_key or said.idempotency_key,
        context=call.context,
    )
    return JSONResponse(_facts(result))


def _facts(result: TriggerResult) -> dict[str, object]:
    return {
        "outcome": result.outcome,
        "reason": result.reason,
        "instance_id": result.instance_id,
        "run": run_answer(result.run.state) if result.run else None,
        "buffer_depth": result.buffer_depth,
    }
