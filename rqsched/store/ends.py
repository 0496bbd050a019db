"""The end of a claimed run in one statement, where nothing else depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import Change, RunStatus
from rqsched.store.rows import ROW_VERSION, run_differences, run_values, schedule_differences, schedule_values
from rqsched.store.tables import constant, runs, schedules


def end_alone(connection: Connection, change: Change, *, token: str, version: str) -> bool:
    """Write a Change of one schedule and one running run, if the schedule's row is still that `version` of it.

    And if `token` still holds the run; else nothing is written, and False returned. One statement, which locks the
    schedule before the run as every decision does. PostgreSQL only.
    """
    ((before, after),) = change.changed_runs
    of_schedule = tuple(sorted(schedule_differences(change.before or change.after, change.after) | _OF_SCHEDULE))
    of_run = tuple(sorted(run_differences(before, after) | _OF_RUN))
    given = {f"s_{name}": value for name, value in schedule_values(change.after, of_schedule).items()}
    given |= {f"r_{name}": value for name, value in run_values(after, of_run).items()}
    given |= {"b_schedule": change.after.uid, "b_version": version, "b_run": after.uid, "b_token": token}
    return connection.execute(_end_alone(of_schedule, of_run), given).first() is not None


_OF_SCHEDULE = {"consecutive_failures", "last_outcome", "operation", "success_count", "updated_at"}
_OF_RUN = {"attempts", "ended_at", "result", "status"}
"""Always written, also where they do not change: so nearly every success is the same statement."""


@lru_cache(maxsize=64)
def _end_alone(of_schedule: Sequence[str], of_run: Sequence[str]) -> sa.Update:
    is_as_read = sa.bindparam("b_version") == ROW_VERSION
    locked = (
        sa.select(schedules.c.uid)
        .where(schedules.c.uid == sa.bindparam("b_schedule"), is_as_read)
        .with_for_update(key_share=True)
        .cte("locked")
    )
    ended = (
        sa.update(runs)
        .where(
            runs.c.schedule_uid == locked.c.uid,
            runs.c.uid == sa.bindparam("b_run"),
            runs.c.token == sa.bindparam("b_token"),
            runs.c.status == constant(RunStatus.RUNNING),
        )
        .values({name: sa.bindparam(f"r_{name}", type_=runs.c[name].type) for name in of_run})
        .returning(runs.c.schedule_uid)
        .cte("ended")
    )
    return (
        sa.update(schedules)
        .where(schedules.c.uid == ended.c.schedule_uid)
        .values({name: sa.bindparam(f"s_{name}", type_=schedules.c[name].type) for name in of_schedule})
        .returning(schedules.c.uid)
    )
