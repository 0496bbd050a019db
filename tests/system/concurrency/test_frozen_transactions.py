"""A process that freezes inside a transaction (VM pause, lost host) with its locks, beside a healthy one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.clock import SystemClock
from rqsched.config import Settings
from rqsched.kernel.chain import execution
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.decide.ids import RunJobId
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs
from tests.support.children import FORK, freeze, frozen
from tests.support.env import SECOND
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer
from tests.system.concurrency.crowd import Crowd

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]
SOON = 90.0
"""Seconds a busy machine may take for what takes two."""
LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout")
ENDLESS = dict.fromkeys(LIMITS, "0")
"""Settings of a session that the server never ends."""


@dataclass
class Scene:
    """Schedules in every state in which a frozen process can hold locks, and their observer."""

    crowd: Crowd
    scheduler: Scheduler
    free: ScheduleHandle
    busy: ScheduleHandle
    """Skips, because its run is running."""
    queued: ScheduleHandle
    """Skips, because its run is pending; the run's job has vanished from Redis."""
    replacing: ScheduleHandle
    """Would cancel its running run."""
    held: list[ScheduleHandle]
    """The schedules that a frozen dispatcher has locked."""

    @property
    def schedules(self) -> list[ScheduleHandle]:
        return [self.free, self.busy, self.queued, self.replacing, *self.held]

    def run_of(self, schedule: ScheduleHandle) -> RunHandle:
        """The first run of a schedule."""
        return schedule.runs(limit=50).items[-1]

    def outcomes(self, schedule: ScheduleHandle) -> int:
        """How many occurrences of a schedule have got their outcome."""
        state = schedule.refresh().state
        return state.run_count + state.skipped_count


@contextmanager
def scene(postgres_url: str, redis_url: str, tmp_path: Path) -> Iterator[Scene]:
    settings = Settings(
        database_url=postgres_url,
        redis_url=redis_url,
        repair_grace=timedelta(milliseconds=100),
        reconcile_interval=timedelta(minutes=5),  # the one pass of the dispatcher's start; no run may be lost
    )
    crowd = Crowd(settings, SystemClock(), tmp_path / "executed")
    with crowd.scheduler() as scheduler:
        make = partial(scheduler.create, workflow="note", spec=SECOND)
        free, busy, queued = make("free", overlap="allow_all"), make("busy"), make("queued")
        replacing = make("replacing", overlap="cancel_other")
        held = [make(f"held-{number}", overlap="allow_all") for number in range(3)]
        for schedule in (busy, queued, replacing):
            run = present(schedule.trigger().run)
            if schedule is not queued:
                assert execution.claim_run(scheduler.runtime, RunJobId(run.uid, 1, 1)) is not None
        scheduler.runtime.transport.redis.delete("rq:queue:default")
        yield Scene(crowd, scheduler, free, busy, queued, replacing, held)


LockRows = Callable[[Connection, Scene], Any]


def hold_schedules(connection: Connection, here: Scene) -> None:
    """Lock schedules as a fire does."""
    assert len(changes.lock(connection, [schedule.uid for schedule in here.held])) == 3


def hold_claim(connection: Connection, here: Scene) -> None:
    run, start = here.run_of(here.queued), {"token": "x" * 26, "started_at": here.scheduler.runtime.now()}
    assert claims.start_run(connection, run.uid, 1, 1, start | {"worker": "frozen"})


def hold_heartbeats(connection: Connection, here: Scene) -> None:
    for schedule in (here.busy, here.replacing):
        uid = here.run_of(schedule).uid
        token = connection.execute(sa.select(runs.c.token).where(runs.c.uid == uid)).scalar_one()
        assert claims.record_heartbeat(connection, uid, token) is None


def hold_comparison(connection: Connection, here: Scene) -> None:
    now = here.scheduler.runtime.now()
    uids, _ = reconcile_queries.compare_heartbeats(connection, now, now, None, 500)
    assert len(uids) == 2


HOLDS: dict[str, tuple[LockRows, set[str]]] = {
    "a fire": (hold_schedules, {"held-0", "held-1", "held-2"}),
    "a claim": (hold_claim, set()),
    "heartbeats": (hold_heartbeats, {"replacing"}),
    "a comparison of heartbeats": (hold_comparison, {"replacing"}),
}
"""The transaction in which a process freezes, and the schedules that must wait for its locks."""


def freezing(here: Scene, hold: LockRows, **session: str) -> Callable[[], None]:
    """The work of a child that freezes in a transaction, once, and repeats it when it wakes."""
    options = "%20".join(f"-c%20{name}={value}" for name, value in {"application_name": "frozen", **session}.items())
    url = f"{here.crowd.settings.database_url}?options={options}"

    def work() -> None:
        attempts: list[int] = []

        def transaction(connection: Connection) -> None:
            attempts.append(1)
            if len(attempts) == 1:
                hold(connection, here)
                if hold is not with_unread_rows:
                    freeze()
                connection.execute(sa.select(1))

        Database(url).transact(transaction)

    return work


@contextmanager
def dispatching(here: Scene) -> Iterator[None]:
    """Another process fires, and makes a pass of reconcile first."""

    def work() -> None:
        with here.crowd.scheduler() as scheduler:
            Dispatcher(scheduler.runtime, recover=True).run()

    child = FORK.Process(target=work, daemon=True)
    child.start()
    try:
        yield
    finally:
        child.kill()
        child.join()


def frozen_sessions(server: PostgresServer) -> int:
    with server.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'frozen'"
        return int(str(present(connection.execute(query).fetchone())[0]))


@pytest.mark.parametrize("hold", HOLDS)
def test_nothing_waits_for_what_a_frozen_process_holds_but_the_schedules_it_holds(
    postgres_url: str, postgres_server: PostgresServer, redis_url: str, tmp_path: Path, hold: str
) -> None:
    work, waiting = HOLDS[hold]
    with scene(postgres_url, redis_url, tmp_path) as here, frozen(freezing(here, work, **ENDLESS)) as wake:
        before = {schedule.uid: here.outcomes(schedule) for schedule in here.schedules}
        with dispatching(here):
            for schedule in here.schedules:
                if schedule.schedule_id not in waiting:
                    expected = before[schedule.uid] + 2
                    wait_until(lambda s=schedule, e=expected: here.outcomes(s) >= e, timeout=SOON, what=str(schedule))  # type: ignore[misc]
            delivered = 1 if hold == "a claim" else 2
            queued = here.run_of(here.queued)
            wait_until(
                lambda: len(here.scheduler.runtime.transport.redis.keys(f"rq:job:run-{queued.uid}-*")) == delivered,
                timeout=SOON,
                what="the run's next delivery",
            )
            for schedule in here.schedules:
                if schedule.schedule_id in waiting:
                    assert here.outcomes(schedule) == before[schedule.uid], schedule
            assert frozen_sessions(postgres_server) == 1
            wake()
            for schedule in here.schedules:
                wait_until(
                    lambda s=schedule: here.outcomes(s) > before[s.uid],  # type: ignore[misc]
                    timeout=SOON,
                    what=f"{schedule} after the other process woke",
                )
        check_invariants(here.scheduler.runtime, with_redis=False)


def with_unread_rows(connection: Connection, here: Scene) -> None:
    """The server is about to send more than any buffer holds: then it looks at none of its own timeouts."""
    hold_schedules(connection, here)
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    raw.pgconn.send_query(b"SELECT repeat('x', 100000) FROM generate_series(1, 1000)")
    raw.pgconn.flush()
    freeze()
    while raw.pgconn.get_result():  # until the connection is found lost
        continue


def waiting_for_a_lock(connection: Connection, here: Scene) -> None:
    """The lock is held by the test for as long as it takes; the process freezes when it waits."""
    hold_schedules(connection, here)

    def freeze_when_waiting() -> None:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        with psycopg.connect(_plain(here.crowd.settings.database_url), autocommit=True) as watching:
            wait_until(lambda: watching.execute(query).fetchone() == (1,), timeout=SOON, what="the wait")
        freeze()

    threading.Thread(target=freeze_when_waiting).start()
    connection.exec_driver_sql("SELECT pg_advisory_lock(42)")


def _plain(url: str | None) -> str:
    return present(url).replace("+psycopg", "")


MOMENTS = [
    pytest.param(hold_schedules, id="between two statements"),
    pytest.param(with_unread_rows, id="with rows unread", marks=pytest.mark.broad),
    pytest.param(waiting_for_a_lock, id="waiting for a lock", marks=pytest.mark.broad),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_frozen_process_has_locked_is_free_again_while_it_is_frozen(
    postgres_url: str, postgres_server: PostgresServer, redis_url: str, tmp_path: Path, moment: LockRows
) -> None:
    with (
        scene(postgres_url, redis_url, tmp_path) as here,
        psycopg.connect(_plain(postgres_url), autocommit=True) as other,
    ):
        other.execute("SELECT pg_advisory_lock(42)")
        with frozen(freezing(here, moment)) as wake:
            assert frozen_sessions(postgres_server) == 1
            with dispatching(here):
                wait_until(lambda: frozen_sessions(postgres_server) == 0, timeout=SOON, what="the end of its session")
                before = {schedule.uid: here.outcomes(schedule) for schedule in here.schedules}
                for schedule in here.schedules:
                    wait_until(lambda s=schedule: here.outcomes(s) > before[s.uid], timeout=SOON, what=str(schedule))  # type: ignore[misc]
            wake()
        check_invariants(here.scheduler.runtime, with_redis=False)
