"""What descriptions of schedules say of their newest runs: a few columns, for a page of schedules at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import RunStatus, Schedule
from rqsched.store.tables import runs


class LatestRun(NamedTuple):
    """What a description of a schedule says of its newest run."""

    schedule_uid: str
    """The schedule."""
    status: RunStatus
    """Where it is in its life."""
    attempt: int
    """The attempt that was begun last."""
    blocked_at: datetime | None
    """When a worker could not find its workflow."""
    blocked_reason: str | None
    """Which worker lacked what code."""

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a worker that can find its workflow."""
        return self.blocked_at is not None and self.status is RunStatus.PENDING


_SELECT_LATEST = sa.select(
    runs.c.schedule_uid, runs.c.status, runs.c.attempt, runs.c.blocked_at, runs.c.blocked_reason
).where(runs.c.uid.in_(sa.bindparam("uids", expanding=True)))


def latest_runs(connection: Connection, found: Sequence[Schedule]) -> dict[str, LatestRun]:
    """Read what is said of the newest run of each schedule, by the schedule's uid."""
    uids = [schedule.latest_run_uid for schedule in found if schedule.latest_run_uid]
    if not uids:
        return {}
    rows = connection.execute(_SELECT_LATEST, {"uids": uids}).all()
    return {uid: LatestRun(uid, RunStatus(status), *rest) for uid, status, *rest in rows}
