"""Workers of each kind, Redis and PostgreSQL are killed or emptied: never more of a group run than its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import RetryPolicy
from rqsched.kernel.store.tables import limit_starts, runs, targets
from tests.support.env import HOUR
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import Process, rq_worker_command, wait_until
from tests.support.servers import PostgresServer
from tests.system.acceptance.live import LiveEnv, MakeLive
from tests.system.acceptance.sweeping import FOLDER, SIZE, SWEEP, read_swept

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


def trigger_runs(live: LiveEnv, *, retries: int, **bounds: Any) -> None:
    """Trigger RUNS runs of one group, of three schedules in turn."""
    retry = RetryPolicy(retries, base=timedelta(seconds=1))
    schedules = [
        live.note_every(name, HOUR, limit="shop", overlap="allow_all", retry=retry, **bounds) for name in "abc"
    ]
    for at in range(RUNS):
        schedules[at % 3].trigger()


def kill_and_empty(
    live: LiveEnv, kind: str, has_begun: Callable[[], bool], are_over: Callable[[], bool], patience: int
) -> None:
    """Kill the workers and empty Redis after the first runs or targets; new workers end the last run."""
    first = STARTS[kind](live)
    wait_until(has_begun, timeout=120, what="the first runs or targets")
    first.kill_tree()
    live.redis.flushall()
    STARTS[kind](live)
    live.scheduler.recover()
    wait_until(are_over, timeout=patience, what="the last run")


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", STARTS)
def test_workers_are_killed_and_redis_is_emptied_and_never_more_run_than_the_number(
    any_live: LiveEnv, kind: str
) -> None:
    live = any_live
    trigger_runs(live, retries=5, limit_running=NUMBER)
    seen: list[int] = []

    def ended() -> int:
        counts: dict[str, int] = live.scheduler.runtime.database.read(
            lambda connection: {row[0]: row[1] for row in connection.execute(STATUSES)}
        )
        seen.append(counts.get("running", 0))
        return counts.get("succeeded", 0)

    kill_and_empty(live, kind, lambda: ended() >= 2, lambda: ended() >= RUNS, 300)

    assert max(seen) <= NUMBER
    live.check()


@pytest.mark.acceptance
@pytest.mark.postgres
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", STARTS)
def test_postgresql_is_killed_and_never_more_run_than_the_number(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str, kind: str
) -> None:
    live = make_live(own_postgres_url)
    live.environment |= {"RQSCHED_RECONCILE_INTERVAL": "3", "RQSCHED_HEARTBEAT_INTERVAL": "1"}
    live.environment["RQSCHED_REPAIR_GRACE"] = "2"
    trigger_runs(live, retries=20, limit_running=NUMBER)
    database = live.scheduler.runtime.database

    def ended() -> int:
        rows = database.read(lambda connection: connection.execute(STATUSES).all())
        return sum(count for status, count in rows if status == "succeeded")

    STARTS[kind](live)
    for enough in (2, 5, 8):
        wait_until(lambda enough=enough: ended() >= enough, timeout=120, what=f"{enough} runs")  # type: ignore[misc]
        own_postgres.kill()
        own_postgres.start()
    wait_until(lambda: ended() >= RUNS, timeout=300, what="the last run")

    times = sa.select(runs.c.started_at, runs.c.ended_at)
    spans = database.read(lambda connection: connection.execute(times).all())
    at_once = [sum(first <= start < last for first, last in spans) for start, _ in spans]
    assert len(spans) == RUNS
    assert max(at_once) <= NUMBER
    live.check()


TARGETS = 8
HAVE_BEGUN = {
    "runs": sa.select(runs.c.status, sa.func.count()).where(runs.c.dispatched_at.is_(None)).group_by(runs.c.status),
    "targets": sa.select(targets.c.status, sa.func.count()).group_by(targets.c.status),
}


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", STARTS)
def test_workers_are_killed_and_redis_is_emptied_and_never_more_runs_and_targets_run_than_the_number(
    any_live: LiveEnv, kind: str, tmp_path: Path
) -> None:
    live, again = any_live, RetryPolicy(20, base=timedelta(seconds=1))
    live.environment |= {
        "RQSCHED_IMPORTS": "tests.system.acceptance.chores,tests.system.acceptance.sweeping",
        "RQSCHED_RECONCILE_INTERVAL": "3",
        "RQSCHED_HEARTBEAT_INTERVAL": "1",
        "RQSCHED_REPAIR_GRACE": "2",
        "RQSCHED_TARGET_CHUNK": "5",
        "RQSCHED_COMPLETION_OUTAGE": "1",
        FOLDER: str(tmp_path),
        SIZE: str(TARGETS),
    }
    shared: dict[str, Any] = {"limit": "shop", "limit_running": NUMBER, "overlap": "allow_all", "retry": again}
    of_targets: dict[str, Any] = {"target_retry": again, "target_timeout": 2}
    sweeps = [
        present(live.scheduler.create(name, SWEEP, HOUR, **shared, **of_targets, max_parallel=most).trigger().run)
        for name, most in (("free", None), ("narrow", 1))
    ]
    others = [present(live.note_every(name, HOUR, **shared).trigger().run) for name in "abcd"]
    seen: list[int] = []

    def ended() -> int:
        counts: dict[str, Counter[str]] = live.scheduler.runtime.database.read(
            lambda connection: {
                name: Counter({row[0]: row[1] for row in connection.execute(statement)})
                for name, statement in HAVE_BEGUN.items()
            }
        )
        seen.append(counts["runs"]["running"] + counts["targets"]["running"])
        return counts["targets"]["succeeded"]

    def are_over() -> bool:
        ended()
        return all(run.refresh().status == "succeeded" for run in (*sweeps, *others))

    kill_and_empty(live, kind, lambda: ended() >= 3, are_over, 600)

    assert max(seen) <= NUMBER
    assert {(one.run_uid, one.target) for one in read_swept(tmp_path)} >= {
        (run.uid, f"t-{number:07}") for run in sweeps for number in range(TARGETS)
    }
    check_invariants(live.scheduler.runtime)


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", STARTS)
def test_workers_are_killed_and_redis_is_emptied_and_never_more_start_in_a_window_than_the_rate(
    any_live: LiveEnv, kind: str
) -> None:
    live = any_live
    trigger_runs(live, retries=5, limit_rate="3/5s")
    seen: set[datetime] = set()

    def ended() -> int:
        def read(connection: sa.Connection) -> dict[str, int]:
            seen.update(connection.scalars(sa.select(limit_starts.c.started_at)))
            return {row[0]: row[1] for row in connection.execute(STATUSES)}

        return live.scheduler.runtime.database.read(read).get("succeeded", 0)

    kill_and_empty(live, kind, lambda: ended() >= 2, lambda: ended() >= RUNS, 300)

    started = sorted(seen)
    assert len(started) >= RUNS
    assert all(last - first >= timedelta(seconds=5) for first, last in zip(started, started[3:], strict=False))
    live.check()
