"""The page that runs a run again. It says what will happen before it happens."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import Any

from starlette.responses import Response

from rqsched.api.run_handle import RunHandle
from rqsched.api.upstreams import downstream_of
from rqsched.dashboard.equivalent import Equivalent, call, command, in_namespace
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.rendering import pretty
from rqsched.dashboard.visit import Visit
from rqsched.errors import IdempotencyConflictError, InvalidInputError, RqschedError, RunStateError
from rqsched.http.auth import Role
from rqsched.kernel.decide.model import Run, Schedule
from rqsched.kernel.decide.payload import dumps
from rqsched.kernel.decide.runs_on_request import require_copyable
from rqsched.kernel.store import changes

_MOST_DOWNSTREAM = 20
"""The maximum number of schedules that the page names."""


def confirm_run_again(visit: Visit) -> Response:
    """Ask whether to run a run again."""
    schedule, run = visit.run()
    return _question(visit, schedule, run)


def _question(
    visit: Visit, schedule: Schedule, run: Run, said: str = "", *, status: int = 200, made: Run | None = None
) -> Response:
    """Ask, with a message and the form as it was filled in. A run that cannot be run again has no button.

    `made` is the run that the form has started before. Then the form gets a new key.
    """
    refused, same = "", Equivalent()
    try:
        same = _equivalent(visit, run)
        require_copyable(schedule, run)
    except RunStateError as error:
        refused = error.hint
    except InvalidInputError as error:  # the arguments that were typed
        same = Equivalent(remark=str(error))
    if not visit.may_start:
        refused = f"That is refused while {visit.stop}."
    return visit.page(
        "run_again/run_again.html", status, schedule=schedule, run=run, same=same, said=said, refused=refused,
        downstream=visit.read(lambda connection: downstream_of(connection, schedule, _MOST_DOWNSTREAM)),
        arguments=visit.form.get("arguments", pretty(json.loads(run.action))),
        key=(made is None and visit.form.get("key")) or uuid.uuid4().hex, made=made,
    )  # fmt: skip


def equivalent(visit: Visit) -> Equivalent:
    """Return the new run as a command and in Python."""
    return _equivalent(visit, visit.run()[1])


def _equivalent(visit: Visit, run: Run) -> Equivalent:
    typed, wants_more = _arguments(visit, run), "downstream" in visit.form
    found = call("scheduler.runs.get", run.uid, **in_namespace(visit))
    code = call(f"{found}.run_again", reason=visit.context.reason, **typed, downstream=wants_more)
    flags = {name: json.dumps(value) for name, value in typed.items()}
    return Equivalent(command(visit, "run", "again", run.uid, **flags, downstream=wants_more), code)


def run_again(visit: Visit) -> Response:
    """Run a run again, and show the new run. If that is refused, show the form again, as it was filled in."""
    schedule, run = visit.run()
    try:
        copy = RunHandle(visit.scheduler.runtime, run).run_again(
            visit.context.reason,
            **_arguments(visit, run),
            downstream="downstream" in visit.form,
            idempotency_key=visit.form.get("key") or None,  # a form that is sent twice starts one run
            context=visit.context,
        )
    except RqschedError as error:
        made = None
        if isinstance(error, IdempotencyConflictError):  # the viewer went back to a form that was sent, and changed it
            made = visit.read(partial(changes.find_run_by_key, schedule_uid=schedule.uid, idempotency_key=error.key))
        return _question(visit, schedule, run, f"Not done: {error}", status=error.http_status, made=made)
    told = "waits for the run ahead of it" if copy.status == "buffered" else f"is {copy.status}"
    return visit.done(f"Run #{copy.number} of {schedule.schedule_id} {told}.", f"/runs/{copy.uid}")


def _arguments(visit: Visit, run: Run) -> dict[str, Any]:
    """Read the arguments from the form; empty if they are not changed. To change them, a viewer needs the role admin.

    Raises InvalidInputError and ForbiddenError.
    """
    text = visit.form.get("arguments")
    if text is None:
        return {}
    try:
        typed = json.loads(text)
        is_same = dumps(typed) == dumps(json.loads(run.action))  # as JSON, because Python's 1 equals True and 1.0
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("arguments", f"is not JSON ({error}); correct it") from None
    if is_same:
        return {}
    visit.require(Role.ADMIN)
    if not isinstance(typed, dict) or typed.keys() != {"args", "kwargs"}:
        raise InvalidInputError("arguments", 'must be an object with a list "args" and an object "kwargs"')
    return typed


_PATH = "/runs/{uid}/again"
ROUTES = (page(_PATH, confirm_run_again, Role.OPERATE), form(_PATH, run_again, equivalent=equivalent))
"""The addresses of this page in the dashboard."""
