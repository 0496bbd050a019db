"""One run: its attempts, its log, its arguments and result, and what can be done about it."""

from __future__ import annotations

from starlette.responses import Response

from rqsched.api.run_handle import RunHandle
from rqsched.core.ids import is_uid
from rqsched.core.model import Run, Schedule
from rqsched.dashboard.visit import Visit
from rqsched.errors import RunNotFoundError
from rqsched.store import event_queries, run_queries

_EVENTS = 100
_TARGETS = 50


def show(visit: Visit) -> Response:
    """Show one run."""
    schedule, run = find(visit)
    events = visit.read(lambda connection: event_queries.events_of_run(connection, schedule.uid, run.uid, _EVENTS))
    earlier, later = visit.read(lambda connection: run_queries.neighbours(connection, schedule.uid, run.number))
    handle = RunHandle(visit.scheduler.runtime, run)
    progress = handle.progress()
    statuses = [status for status in ("failed", "lost") if progress is not None and status in progress.counts]
    failed = [one for status in statuses for one in handle.targets(_TARGETS, status=status).items]
    return visit.page(
        "run.html", schedule=schedule, run=run, events=events, progress=progress, failed=failed, earlier=earlier,
        later=later,
    )  # fmt: skip


def find(visit: Visit) -> tuple[Schedule, Run]:
    """Find the run that the path names, in the viewer's namespace; raises RunNotFoundError."""
    uid = str(visit.request.path_params["uid"]).upper()
    found = (
        visit.read(lambda connection: run_queries.find_run_with_schedule(connection, visit.namespace, uid))
        if is_uid(uid)
        else None
    )
    if found is None:
        raise RunNotFoundError(uid[:64])
    return found
