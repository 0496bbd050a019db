"""The question and the form that stop a backfill, from the page of its schedule."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, call, in_namespace
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.schedule import MOST_OF_BACKFILL, WAITING
from rqsched.dashboard.visit import Visit
from rqsched.errors import BackfillNotFoundError
from rqsched.features.backfill import chain
from rqsched.features.backfill.store import Backfill
from rqsched.features.bulk.page import progress_loop, runs_so_far, show_chunk_of_runs
from rqsched.features.bulk.runs import BulkRuns, count_matching, do_chunk
from rqsched.http.auth import Role
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.results import number_of
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries.run_pages import RunFilters
from rqsched.kernel.store import changes

_RUNNING = "running"


def confirm_stop(visit: Visit) -> Response:
    """Ask whether to stop a backfill. Say how many of its runs wait and execute now."""
    found, schedule = _find(visit)
    counts = _counts(visit, found)
    return visit.page(
        "backfill/stop.html", backfill=found, schedule_id=schedule.schedule_id, creates=not found.is_done,
        waiting=sum(counts.get(status, 0) for status in WAITING), running=counts.get(_RUNNING, 0),
        is_cut=sum(counts.values()) >= MOST_OF_BACKFILL,
        same=equivalent(visit),
    )  # fmt: skip


def stop(visit: Visit) -> Response:
    """Stop a backfill. Then cancel its waiting runs in chunks, and its running runs too if the form asks for it.

    The set of runs is fixed when the backfill has stopped, so that it contains all runs that the backfill has created.
    """
    found, schedule = _find(visit)
    runtime, path = visit.scheduler.runtime, f"/schedules/{schedule.schedule_id}"
    running = [_RUNNING] if "running" in visit.form else []
    filters = RunFilters(visit.namespace, (*WAITING, *running), backfill_uid=found.uid)
    asked = BulkRuns.among("cancel", filters, reason=visit.context.reason, context=visit.context)
    before, cursor, stopped = runs_so_far(visit), visit.form.get("cursor"), ""
    if cursor is None:
        stopped = "" if found.is_done else "The backfill is stopped. "
        chain.cancel(runtime, found.uid, reason=visit.context.reason, context=visit.context)
        cursor = count_matching(runtime, asked, bound=found.bound).next_cursor
        if cursor is None:
            return visit.done(f"{stopped}No run was left to cancel.", path)
    progress = do_chunk(runtime, asked, cursor)
    cancelled = sum(row.outcome == "cancelled" for row in progress.items)
    if cancelled == progress.matched:
        return visit.done(f"{stopped}{number_of(cancelled, 'run')} cancelled.", path)
    return show_chunk_of_runs(
        visit, progress, before, "cancel", about=f"of a backfill of {schedule.schedule_id}",
        fields={"running": "yes"} if running else {}, path=f"/backfills/{found.uid}/cancel", part="Schedules",
        back=visit.url(path), leads_to=schedule.schedule_id,
    )  # fmt: skip


def equivalent(visit: Visit) -> Equivalent:
    """Return the stop in Python: the backfill, then its runs. No command does the same."""
    found, _ = _find(visit)
    named = {"reason": visit.context.reason, **in_namespace(visit)}
    status = [*WAITING, *([_RUNNING] if "running" in visit.form else [])]
    chunks = call("scheduler.bulk.cancel_runs", status=status, backfill_uid=found.uid, bound=found.bound, **named)
    stops = call("scheduler.backfills.cancel", found.uid, **named)
    return Equivalent("", f"{stops}\n{progress_loop(chunks)}")


def _find(visit: Visit) -> tuple[Backfill, Schedule]:
    """Find the backfill in the path, with its schedule; raises BackfillNotFoundError."""
    uid = str(visit.request.path_params["uid"]).upper()
    found = chain.get_backfill(visit.scheduler.runtime, uid)
    schedule = visit.read(lambda connection: changes.find(connection, found.schedule_uid))
    if schedule is None or schedule.namespace != visit.namespace:
        raise BackfillNotFoundError(uid)
    return found, schedule


def _counts(visit: Visit, found: Backfill) -> Mapping[str, int]:
    counted = visit.read(lambda connection: run_queries.count_backfilled(connection, [found.uid], MOST_OF_BACKFILL))
    return counted.get(found.uid, {})


ROUTES = (
    page("/backfills/{uid}/cancel", confirm_stop, Role.OPERATE),
    form("/backfills/{uid}/cancel", stop, equivalent=equivalent),
)
"""The addresses of these pages in the dashboard."""
