"""Ways to put SQL and Redis out of joint, for the tests of reconcile."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.chain.execution import claim_run
from rqsched.store.tables import schedules
from tests.support.narrow import text
from tests.support.rig import ONCE, Rig, job_id

HOUR = timedelta(hours=1)


def repaired(rig: Rig, **options: Any) -> dict[str, int]:
    """What a pass has done, nothing else."""
    counts = asdict(rig.recover(**options))
    return {name: count for name, count in counts.items() if count and name != "checked"}


def settled(rig: Rig) -> None:
    """The first pass is behind it: Redis knows its database."""
    rig.recover()


def set_columns(rig: Rig, schedule: ScheduleHandle, **values: Any) -> None:
    update = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(**values)
    rig.runtime.database.transact(lambda connection: connection.execute(update))


def forget(rig: Rig, link: object) -> None:
    """A failover has dropped the write of this job."""
    rig.redis.zrem(rig.transport.scheduled_key, str(link))
    rig.redis.delete(f"rq:job:{link}")


def pop(rig: Rig, queue: str = "default") -> str:
    """A worker took the job and died before it started it."""
    return text(rig.redis.lpop(f"rq:queue:{queue}"))


def started(rig: Rig, **options: Any) -> tuple[ScheduleHandle, RunHandle]:
    """A run that a process executes which will never be heard of again."""
    given: dict[str, Any] = {"spec": HOUR, "retry": ONCE, **options}
    schedule = rig.create(**given)
    run = rig.occur(schedule, HOUR)
    settled(rig)
    assert claim_run(rig.runtime, job_id(run.state)) is not None
    pop(rig)
    return schedule, run
