"""Backfills: counted first, started, watched while they run, and stopped."""

from __future__ import annotations

from starlette.responses import Response

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain import backfill
from rqsched.chain.backfill import DEFAULT_BOUND, Range
from rqsched.core.model import Schedule
from rqsched.core.policy import OverlapPolicy
from rqsched.dashboard.visit import Visit
from rqsched.errors import BackfillNotFoundError
from rqsched.http.backfills import continue_later
from rqsched.store import backfills, changes
from rqsched.store.backfills import Backfill
from rqsched.store.database import Connection

_SHOWN = 3


def start(visit: Visit, handle: ScheduleHandle) -> str:
    """Count or start a backfill: its first chunk is done at once, the rest after the response."""
    overlap = visit.form.get("overlap")
    policy = OverlapPolicy.of(overlap) if overlap else None
    start_at, end_at = (visit.instant(name, visit.form.get(name, "")) for name in ("start", "end"))
    wanted = Range(start_at, end_at, policy, DEFAULT_BOUND, visit.context)
    if "dry_run" in visit.form:
        count = sum(len(rows) for rows in handle.preview_backfill(wanted))
        return f"{count} occurrence(s) lie in that range. Nothing was started."
    done, _ = next(iter(handle.iter_backfill(wanted)))
    if not done.is_done:
        continue_later(visit.scheduler.runtime, done.uid)
        return f"{done.attempted} done so far; it continues, and its progress is shown below."
    return f"{done.started} started, {done.buffered} wait, {done.already_run} had run before, {done.skipped} skipped."


def newest(connection: Connection, schedule: Schedule) -> list[Backfill]:
    """Read the newest backfills of a schedule's id."""
    id_ = schedule.schedule_id
    page = backfills.page(connection, schedule.namespace, schedule_id=id_, status=None, limit=_SHOWN, cursor=None)
    return page.items


def cancel(visit: Visit) -> Response:
    """Stop a backfill: what it has started goes on."""
    uid = str(visit.request.path_params["uid"]).upper()
    found = backfill.get_backfill(visit.scheduler.runtime, uid)
    schedule = visit.read(lambda connection: changes.find(connection, found.schedule_uid))
    if schedule is None or schedule.namespace != visit.namespace:
        raise BackfillNotFoundError(uid)
    ended = backfill.cancel(visit.scheduler.runtime, uid, reason=visit.context.reason, context=visit.context)
    return visit.done(
        f"The backfill is {ended.status}; what it has started goes on.", f"/schedules/{schedule.schedule_id}"
    )
