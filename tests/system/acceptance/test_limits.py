"""Real workers of each kind, killed, and a Redis that is emptied: never more of a group run than its number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched import RetryPolicy
from rqsched.store.tables import runs
from tests.support.env import HOUR
from tests.support.processes import Process, rq_worker_command, wait_until
from tests.system.acceptance.live import LiveEnv

NUMBER = 2
RUNS = 12
STARTS: dict[str, Callable[[LiveEnv], Process]] = {
    "rqsched worker": lambda live: live.start_worker(),
    "runners": lambda live: live.start_runners(3),
    "plain rq worker": lambda live: live.start(
        rq_worker_command(live.environment["RQSCHED_REDIS_URL"], "rqsched", "default")
    ),
}
STATUSES = sa.select(runs.c.status, sa.func.count()).group_by(runs.c.status)


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", STARTS)
def test_workers_are_killed_and_redis_is_emptied_and_never_more_run_than_the_number(
    any_live: LiveEnv, kind: str
) -> None:
    live = any_live
    retry = RetryPolicy(5, base=timedelta(seconds=1))
    shared = {"limit": "shop", "limit_running": NUMBER, "overlap": "allow_all", "retry": retry}
    schedules = [live.note_every(name, HOUR, **shared) for name in "abc"]
    for at in range(RUNS):
        schedules[at % 3].trigger()
    seen: list[int] = []

    def ended() -> int:
        counts: dict[str, int] = live.scheduler.runtime.database.read(
            lambda connection: {row[0]: row[1] for row in connection.execute(STATUSES)}
        )
        seen.append(counts.get("running", 0))
        return counts.get("succeeded", 0)

    first = STARTS[kind](live)
    wait_until(lambda: ended() >= 2, timeout=120, what="the first runs")
    first.kill_tree()
    live.redis.flushall()
    STARTS[kind](live)
    live.scheduler.recover()
    wait_until(lambda: ended() >= RUNS, timeout=300, what="the last run")

    assert max(seen) <= NUMBER
    live.check()
