"""Ways to put SQL and Redis out of joint, for the tests of reconcile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.kernel.store.tables import schedules
from tests.support.env import HOUR, ONCE, Env
from tests.support.narrow import text


def repaired(env: Env, **options: Any) -> dict[str, int]:
    """Make a pass, and return its counts of repairs that are not zero."""
    counts = asdict(env.recover(**options))
    return {name: count for name, count in counts.items() if count and name != "checked"}


def settled(env: Env) -> None:
    """The first pass is behind it: Redis knows its database."""
    env.recover()


def set_columns(env: Env, schedule: ScheduleHandle, **values: Any) -> None:
    update = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(**values)
    env.runtime.database.transact(lambda connection: connection.execute(update))


@contextmanager
def failing(error: Exception, *handles: RunHandle) -> Iterator[None]:
    """Raise an error in place of each statement that changes one of these runs."""

    def fail(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "UPDATE" in statement and any(run.uid in str(parameters) for run in handles):
            raise error

    sa.event.listen(sa.Engine, "before_cursor_execute", fail)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", fail)


def forget(env: Env, link: object) -> None:
    """A failover has dropped the write of this job."""
    env.redis.zrem(env.transport.scheduled_key, str(link))
    env.redis.delete(f"rq:job:{link}")


def pop(env: Env, queue: str = "default") -> str:
    """A worker took the job and died before it started it."""
    return text(env.redis.lpop(f"rq:queue:{queue}"))


def started(env: Env, **options: Any) -> tuple[ScheduleHandle, RunHandle]:
    """A run that a process executes which will never be heard of again."""
    given: dict[str, Any] = {"spec": HOUR, "retry": ONCE, **options}
    schedule = env.create(**given)
    run = env.fire_next(schedule, HOUR)
    settled(env)
    env.claim(run)
    return schedule, run
