"""What answers need beside the schedules themselves, in one query a page."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.engine import Connection

from rqsched.core.model import Run, Schedule
from rqsched.store.rows import SELECT_RUNS, to_run
from rqsched.store.tables import runs


def latest_runs(connection: Connection, schedules: Iterable[Schedule]) -> dict[str, Run]:
    """Read the newest run of each schedule, by the schedule's uid."""
    uids = [schedule.latest_run_uid for schedule in schedules if schedule.latest_run_uid]
    if not uids:
        return {}
    found = [to_run(row) for row in connection.execute(SELECT_RUNS.where(runs.c.uid.in_(uids)))]
    return {run.schedule_uid: run for run in found}
