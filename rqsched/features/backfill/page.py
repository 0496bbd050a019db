"""The form that stops a backfill, on the page of its schedule."""

from __future__ import annotations

import time

from starlette.responses import Response

from rqsched.api.run_handle import RunHandle
from rqsched.dashboard.frame import form
from rqsched.dashboard.schedule import WAITING
from rqsched.dashboard.visit import Visit
from rqsched.errors import BackfillNotFoundError
from rqsched.features.backfill import chain
from rqsched.features.backfill.store import Backfill
from rqsched.kernel.decide.model import Run, RunStatus
from rqsched.kernel.decide.results import Page
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection

_MOST_CANCELLED, _CANCEL_SECONDS = 500, 3.0
"""The maximum number of runs of a backfill that are read at once. After the given seconds, a request cancels no further
run."""


def cancel_backfill(visit: Visit) -> Response:
    """Stop a backfill, or cancel its waiting runs, as the form says. Runs that have started continue."""
    uid = str(visit.request.path_params["uid"]).upper()
    found = chain.get_backfill(visit.scheduler.runtime, uid)
    schedule = visit.read(lambda connection: changes.find(connection, found.schedule_uid))
    if schedule is None or schedule.namespace != visit.namespace:
        raise BackfillNotFoundError(uid)
    path = f"/schedules/{schedule.schedule_id}"
    if "waiting" in visit.form:
        return visit.done(_cancel_waiting(visit, found), path)
    ended = chain.cancel(visit.scheduler.runtime, uid, reason=visit.context.reason, context=visit.context)
    return visit.done(f"The backfill is {ended.status}; what it has started continues.", path)


def _cancel_waiting(visit: Visit, found: Backfill) -> str:
    """Cancel waiting runs of a backfill for a few seconds. Begin with the newest, because the oldest may start soon."""

    def read(connection: Connection) -> Page[Run]:
        schedule, uid = found.schedule_uid, found.uid
        return run_queries.list_runs(connection, schedule, limit=_MOST_CANCELLED, statuses=WAITING, backfill_uid=uid)

    waiting = visit.read(read)
    cancelled, until = 0, time.monotonic() + _CANCEL_SECONDS
    for run in waiting.items:
        if time.monotonic() > until:
            break
        ended = RunHandle(visit.scheduler.runtime, run).cancel(visit.context.reason, context=visit.context)
        cancelled += ended.status == RunStatus.CANCELLED
    is_all = cancelled == len(waiting.items) and waiting.next_cursor is None
    return f"{cancelled} runs are cancelled." + ("" if is_all else " More wait: repeat it for the next ones.")


ROUTES = (form("/backfills/{uid}/cancel", cancel_backfill),)
"""The addresses of these forms in the dashboard."""
