"""Rows locked by another transaction: processes that wait, processes that continue, and the release by the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched.errors import DatabaseLimitError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.store import Batch, EndStep
from rqsched.kernel.decide.model import Run, RunStatus, Schedule, TargetStatus
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store import changes, claims, schema_version
from rqsched.kernel.store.database import Database, Patience, without_limits
from rqsched.kernel.store.tables import runs, targets
from tests.kernel.store.samples import LATER, NOW, add_runs, add_schedule, count, created, find_run, run_of
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE, backend

pytestmark = pytest.mark.postgres
LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
def impatient(postgres_url: str) -> Iterator[Database]:
    """The same database, for which a wait for a lock ends at once, and is an error."""
    url = f"{postgres_url}?options=-c%20lock_timeout=1ms"
    with closing(Database(url, patience=NO_PATIENCE)) as database:
        yield database


@contextmanager
def held(database: Database, run: Run) -> Iterator[None]:
    """Inside the block another transaction holds a run, as one that claims it does."""
    with database.engine.begin() as connection:
        connection.execute(sa.update(runs).where(runs.c.uid == run.uid).values(beat=7))
        yield


def schedule_with_runs(database: Database, *statuses: RunStatus) -> tuple[Schedule, list[Run]]:
    schedule = add_schedule(database)
    return schedule, add_runs(database, schedule, [run_of(schedule, n, status) for n, status in enumerate(statuses, 1)])


def test_open_runs_that_another_transaction_holds_are_read_without_waiting(
    postgres_database: Database, impatient: Database
) -> None:
    schedule, (first, second) = schedule_with_runs(postgres_database, RunStatus.RUNNING, RunStatus.RUNNING)
    with held(postgres_database, first):
        found = impatient.transact(lambda connection: changes.open_runs(connection, [schedule]))
    assert {run.uid for run in found[schedule.uid]} == {first.uid, second.uid}


def test_schedule_is_left_out_where_one_of_the_runs_to_lock_is_held(
    postgres_database: Database, impatient: Database
) -> None:
    schedule, [first, second] = schedule_with_runs(postgres_database, RunStatus.RUNNING, RunStatus.RUNNING)
    other = add_schedule(postgres_database, "other")
    [free] = add_runs(postgres_database, other, [run_of(other, 1, RunStatus.RUNNING)])
    idle = add_schedule(postgres_database, "idle")
    found = {schedule.uid: [first, second], other.uid: [free], idle.uid: []}

    with held(postgres_database, first):
        locked = impatient.transact(lambda c: changes.lock_open_runs(c, found, skip_locked=True))

    assert locked == {other.uid: [free], idle.uid: []}


def test_runs_to_lock_are_read_as_they_are_when_they_are_locked(postgres_database: Database) -> None:
    schedule, [run] = schedule_with_runs(postgres_database, RunStatus.PENDING)
    start = {"token": "t", "started_at": NOW}
    postgres_database.transact(lambda c: claims.start_run(c, run.uid, run.attempt, run.delivery, start))
    locked = postgres_database.transact(lambda c: changes.lock_open_runs(c, {schedule.uid: [run]}))
    assert [(one.status, one.token) for one in locked[schedule.uid]] == [(RunStatus.RUNNING, "t")]


def test_run_that_another_transaction_holds_is_not_settled_and_its_schedule_not_locked(
    postgres_database: Database, impatient: Database
) -> None:
    schedule, [run] = schedule_with_runs(postgres_database, RunStatus.RUNNING)

    def settle(connection: sa.Connection) -> object:
        return changes.lock_with_schedule(connection, run.uid, skip_locked=True)

    with held(postgres_database, run):
        assert impatient.transact(settle) is None
    with postgres_database.engine.begin() as connection:
        changes.lock(connection, [schedule.uid])
        assert impatient.transact(settle) is None
    assert impatient.transact(settle) is not None


def test_heartbeats_are_compared_of_every_run_but_those_held(postgres_database: Database, impatient: Database) -> None:
    _, (first, second) = schedule_with_runs(postgres_database, RunStatus.RUNNING, RunStatus.RUNNING)
    with held(postgres_database, first):
        compared, cursor = impatient.transact(
            lambda connection: reconcile_queries.compare_heartbeats(connection, LATER, NOW, None, 10)
        )
    assert (compared, cursor) == ([second.uid], None)


def test_heartbeats_are_compared_page_by_page(postgres_database: Database) -> None:
    _, found = schedule_with_runs(postgres_database, *[RunStatus.RUNNING] * 3)
    uids, cursor, pages = sorted(run.uid for run in found), None, []
    while True:
        page, cursor = postgres_database.transact(
            lambda c, after=cursor: reconcile_queries.compare_heartbeats(c, LATER, NOW, after, 2)  # type: ignore[misc]
        )
        pages.append(page)
        if cursor is None:
            break
    assert pages == [uids[:2], uids[2:]]


def test_pending_run_that_is_being_claimed_gets_no_new_delivery(
    postgres_database: Database, impatient: Database
) -> None:
    _, (first, second) = schedule_with_runs(postgres_database, RunStatus.PENDING, RunStatus.PENDING)
    with held(postgres_database, first):
        again = impatient.transact(lambda connection: changes.next_deliveries(connection, [first, second]))
    assert [(run.uid, run.delivery) for run in again] == [(second.uid, second.delivery + 1)]
    assert present(find_run(postgres_database, first.uid)).delivery == first.delivery


def test_silent_targets_are_lost_but_those_held(postgres_database: Database, impatient: Database) -> None:
    batch = Batch(run_uid="r" * 26, workflow="handle", at=NOW, timeout=1)
    postgres_database.transact(lambda c: fan_out_targets.record(c, batch, ["a", "b"], 1, NOW))
    running = {"status": TargetStatus.RUNNING.value, "deadline_at": NOW}
    postgres_database.transact(lambda c: c.execute(sa.update(targets).values(**running)))
    with postgres_database.engine.begin() as connection:
        connection.execute(sa.update(targets).where(targets.c.target_id == "a").values(token="t"))
        step = EndStep(lambda connection, target: TargetEnd(TargetStatus.LOST, "gone"), LATER, 10)
        assert impatient.transact(lambda c: fan_out_targets.end_silent(c, LATER, step)) == [batch.run_uid]
    assert postgres_database.read(lambda c: fan_out_targets.count(c, batch.run_uid)) == {"running": 1, "lost": 1}


def settings(database: Database, names: tuple[str, ...] = (*LIMITS, "tcp_user_timeout")) -> list[str]:
    return database.read(lambda c: [c.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names])


def test_every_session_has_limits_and_those_of_the_url_win(postgres_database: Database, impatient: Database) -> None:
    assert settings(postgres_database) == ["8s", "4s", "8s", "8000"]
    assert settings(impatient) == ["8s", "1ms", "8s", "8000"]


def test_migrations_run_without_limits(empty_postgres_url: str) -> None:
    url = f"{empty_postgres_url}?options=-c%20lock_timeout=1ms"
    seen: list[list[str]] = []
    with closing(Database(url)) as database:

        def note(connection: sa.Connection, statement: str) -> None:
            if statement.strip().startswith("CREATE TABLE"):
                cursor = connection.connection.cursor()
                seen.append([str(cursor.execute(f"SHOW {name}").fetchone()[0]) for name in LIMITS])

        sa.event.listen(database.engine, "before_cursor_execute", lambda c, cursor, statement, *_: note(c, statement))
        schema_version.upgrade(database)
        assert settings(database, LIMITS) == ["8s", "1ms", "8s"]
    assert {tuple(found) for found in seen} == {("0", "0", "0")}


def test_long_statement_is_allowed_for_its_transaction_alone(postgres_url: str) -> None:
    url = f"{postgres_url}?options=-c%20statement_timeout=500ms"  # it limits the session's own statements, too
    slow = sa.select(sa.func.pg_sleep(0.7))
    with closing(Database(url)) as database:

        def work(connection: sa.Connection) -> None:
            with without_limits(connection, for_at_most=timedelta(minutes=1)):
                connection.execute(slow)

        database.transact(work)
        with pytest.raises(DatabaseLimitError, match="statement timeout"):
            database.transact(lambda connection: connection.execute(slow))


def test_statement_that_takes_too_long_is_repeated_for_who_asks_for_it(postgres_database: Database) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            connection.exec_driver_sql("SET LOCAL statement_timeout = '50ms'")
            connection.execute(sa.select(sa.func.pg_sleep(0.2)))

    postgres_database.transact(work, patience=Patience(repeats_refusals=True))
    assert len(attempts) == 2


def test_transaction_that_idled_too_long_is_repeated_whole(
    postgres_database: Database, postgres_server: PostgresServer
) -> None:
    backends: list[int] = []

    def work(connection: sa.Connection) -> None:
        backends.append(backend(connection))
        write_one = created()
        if len(backends) == 1:
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
            changes.write(connection, [write_one])
            wait_until(lambda: not is_connected(postgres_server, backends[0]), what="the session's end")
        changes.write(connection, [write_one])

    postgres_database.transact(work)
    assert postgres_database.read(lambda connection: count(connection, "rqsched_schedules")) == 1
    assert len(set(backends)) == 2


def test_process_whose_patience_ended_while_it_was_frozen_tries_once_more(
    postgres_database: Database, postgres_server: PostgresServer
) -> None:
    backends: list[int] = []

    def work(connection: sa.Connection) -> None:
        backends.append(backend(connection))
        if len(backends) == 1:
            postgres_server.execute(f"SELECT pg_terminate_backend({backends[0]}, 10000)")
        backend(connection)

    postgres_database.transact(work, patience=Patience(total=timedelta(microseconds=1)))
    assert len(backends) == 2


def is_connected(server: PostgresServer, backend: int) -> bool:
    with server.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        return connection.execute(query, [backend]).fetchone() == (1,)
