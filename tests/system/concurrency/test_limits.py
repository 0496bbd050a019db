"""Processes that claim, end and grant the runs of one group at the same moment: never more than its number run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread, current_thread
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.features.limits import store as limits
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs
from rqsched.testing import ManualClock
from rqsched.workflows import Registry, make_workflow
from tests.support.children import in_children
from tests.support.env import HOUR, Env
from tests.support.invariants import check_invariants
from tests.support.processes import wait_until
from tests.support.sizes import sized
from tests.support.sql import statements
from tests.system.concurrency.crowd import work_off

NUMBER = 3
PROCESSES = 6
RUNS = sized(60, 300)
IS_RUNNING = sa.select(sa.func.count()).where(runs.c.status == "running")


@pytest.fixture
def opened(database_url: str, redis_url: str, tmp_path: Path, clock: ManualClock) -> Callable[[], Scheduler]:
    """Opens a scheduler of this process, whose workflow writes down how many runs are recorded as running beside it."""

    def look() -> None:
        with engines[0].connect() as connection, (tmp_path / "seen").open("a") as seen:
            seen.write(f"{connection.scalar(IS_RUNNING)}\n")

    engines: list[sa.Engine] = []

    def opened() -> Scheduler:
        registry = Registry()
        registry.add(make_workflow("note", look))
        settings = Settings(database_url=database_url, redis_url=redis_url, redis_timeout=0)
        scheduler = Scheduler(settings=settings, clock=clock, workflows=registry)
        engines[:] = [scheduler.runtime.database.engine]
        return scheduler

    return opened


def create(scheduler: Scheduler, count: int) -> None:
    """Three schedules of the group with so many runs."""
    options: dict[str, Any] = {"limit": "shop", "limit_running": NUMBER, "overlap": "allow_all"}
    schedules = [scheduler.create(name, "note", HOUR, **options) for name in "abc"]
    for at in range(count):
        schedules[at % 3].trigger()


@pytest.mark.timeout(240)
def test_workers_at_once_never_run_more_of_a_group_than_its_number(
    opened: Callable[[], Scheduler], tmp_path: Path, clock: ManualClock
) -> None:
    with opened() as scheduler:
        create(scheduler, RUNS)

    def work() -> int:
        with opened() as scheduler:
            return sum(work_off(scheduler) or scheduler.recover().granted for _ in range(5))

    in_children(PROCESSES, work)

    with opened() as scheduler:
        work_off(scheduler)
        check_invariants(scheduler.runtime)
        ended = scheduler.runtime.database.read(lambda connection: set(connection.scalars(sa.select(runs.c.status))))
    seen = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert (len(seen), ended) == (RUNS, {"succeeded"})
    assert max(seen) <= NUMBER


@pytest.mark.postgres
def test_grants_at_once_never_give_more_places_than_there_are(postgres_env: Env) -> None:
    """The second grant begins after the first has counted. It must wait, because the first gives these free places."""
    scheduler, database = postgres_env.scheduler, postgres_env.runtime.database
    create(scheduler, 2 * NUMBER)
    taken_back = sa.update(runs).values(granted_at=None)
    database.transact(lambda connection: connection.execute(taken_back))
    grant = partial(limits.grant, groups=["default/shop"], clock=postgres_env.clock.now)
    other = Thread(target=database.transact, args=[grant])
    looks = 0

    def begin_another(word: str) -> None:
        nonlocal looks
        looks += word == "SELECT" and current_thread() is not other
        if looks == 3:  # the group's row, the taken places: the line is next
            looks += 100
            other.start()
            wait_until(lambda: not other.is_alive() or waits(database), what="another grant to wait or end")

    with statements(postgres_env.runtime, begin_another):
        database.transact(grant)
        other.join()

    assert looks > 100
    is_granted = sa.select(sa.func.count()).where(runs.c.granted_at.is_not(None))
    assert database.read(lambda connection: connection.scalar(is_granted)) == NUMBER


def waits(database: Database) -> bool:
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return bool(database.read(lambda connection: connection.scalar(waiting)))
