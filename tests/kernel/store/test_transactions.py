"""Transactions: lock waits, retries, and the state that a retry finds after a lost answer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from rqsched.api.scheduler import Scheduler
from rqsched.errors import ConfigError, DatabaseLimitError, DatabaseUnavailableError
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.postgres import BoundedConnection
from rqsched.kernel.store.rows import run_values
from rqsched.kernel.store.tables import runs
from tests.kernel.store.samples import LATER, add_schedule, count, created, run_of, write
from tests.support.narrow import present
from tests.support.servers import PostgresServer
from tests.support.sql import FAILURES_OF_THE_STATEMENT, NO_PATIENCE, OUTAGES, backend, wait_for_a_lock


@pytest.fixture
def other(database_url: str) -> Iterator[Database]:
    """The same database as another process reaches it."""
    with closing(Database(database_url, patience=NO_PATIENCE)) as database:
        yield database


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    with closing(Database(sqlite_url)) as database:
        yield database


@contextmanager
def locked(database: Database, *uids: str) -> Iterator[None]:
    """Inside the block another connection holds the locks of these schedules."""
    with database.engine.begin() as connection:
        changes.lock(connection, uids)
        yield


def uids_locked(connection: sa.Connection, uids: list[str], *, skip_locked: bool = False) -> list[str]:
    return [schedule.uid for schedule in changes.lock(connection, uids, skip_locked=skip_locked)]


def test_work_that_raises_is_rolled_back_and_not_repeated(database: Database) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        changes.write(connection, [created()])
        raise LookupError

    with pytest.raises(LookupError):
        database.transact(work)
    assert (len(attempts), database.read(lambda c: count(c, "rqsched_schedules"))) == (1, 0)


def test_a_violated_constraint_is_not_retried(database: Database) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        changes.write(connection, [created()])
        changes.write(connection, [created(incarnation=2)])

    with pytest.raises(IntegrityError):
        database.transact(work)
    assert len(attempts) == 1


def test_locked_schedules_come_in_the_order_of_their_uids_whatever_was_asked(database: Database) -> None:
    uids = [add_schedule(database, name).uid for name in ("c", "a", "b")]
    found = database.transact(lambda connection: uids_locked(connection, [*uids, *reversed(uids), "unknown"]))
    assert found == sorted(uids)


def test_a_reader_sees_one_snapshot_while_another_process_writes(database: Database, other: Database) -> None:
    def work(connection: sa.Connection) -> tuple[int, int]:
        before = count(connection, "rqsched_schedules")
        write(other, created())
        return before, count(connection, "rqsched_schedules")

    assert database.read(work) == (0, 0)
    assert database.read(lambda c: count(c, "rqsched_schedules")) == 1


def test_a_reader_does_not_wait_for_an_open_writer(database: Database, other: Database) -> None:
    schedule = add_schedule(database)
    with locked(database, schedule.uid):
        assert other.read(lambda connection: changes.find(connection, schedule.uid)) == schedule


def test_two_processes_that_add_one_under_the_lock_lose_no_update(database: Database, other: Database) -> None:
    uid = add_schedule(database).uid
    patient = Database(other.url)

    def add(connection: sa.Connection) -> None:
        found = present(changes.lock_one(connection, uid))
        statement = sa.text("UPDATE rqsched_schedules SET run_count = :value WHERE uid = :uid")
        connection.execute(statement, {"value": found.run_count + 1, "uid": uid})

    with closing(patient), ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(each.transact, add) for _ in range(20) for each in (database, patient)]:
            each.result()
    found = present(database.read(lambda connection: changes.find(connection, uid)))
    assert found.run_count == 40


def test_sqlite_transactions_hold_the_write_lock_from_their_first_moment(sqlite: Database) -> None:
    rival = sqlite3.connect(sqlite.url.removeprefix("sqlite:///"), timeout=0)
    locked_out = pytest.raises(sqlite3.OperationalError, match="database is locked")
    with closing(rival), sqlite.engine.begin(), locked_out:
        rival.execute("BEGIN IMMEDIATE")


def test_sqlite_waits_fifteen_seconds_for_a_lock_and_syncs_every_commit(sqlite: Database) -> None:
    pragmas = ("busy_timeout", "journal_mode", "synchronous", "foreign_keys")
    with sqlite.engine.connect() as connection:
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in pragmas]
    assert values == [15_000, "wal", 2, 1]


def test_sqlite_busy_is_retried_until_the_other_writer_is_done(sqlite: Database) -> None:
    _give_up_at_once(sqlite)
    failures: list[object] = []
    with closing(sqlite3.connect(sqlite.url.removeprefix("sqlite:///"), isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")

        def release(context: object) -> None:
            failures.append(context)
            if len(failures) == 2:
                rival.execute("COMMIT")

        sa.event.listen(sqlite.engine, "handle_error", release)
        write(sqlite, created())
    assert len(failures) == 2
    assert sqlite.read(lambda connection: count(connection, "rqsched_schedules")) == 1


def test_sqlite_busy_for_longer_than_the_patience_is_a_typed_error(sqlite: Database) -> None:
    _give_up_at_once(sqlite)
    with closing(sqlite3.connect(sqlite.url.removeprefix("sqlite:///"), isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailableError, match="try again later"):
            sqlite.transact(lambda connection: changes.lock_one(connection, "any"), patience=NO_PATIENCE)


def _give_up_at_once(sqlite: Database) -> None:
    def set_timeout(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA busy_timeout=0").close()

    sa.event.listen(sqlite.engine, "checkout", set_timeout)


@pytest.mark.postgres
def test_skip_locked_leaves_out_rows_that_another_transaction_holds(postgres_database: Database) -> None:
    first, second = sorted(add_schedule(postgres_database, name).uid for name in ("a", "b"))
    with locked(postgres_database, first):
        found = postgres_database.transact(
            lambda connection: uids_locked(connection, [first, second], skip_locked=True)
        )
    assert found == [second]


@pytest.mark.postgres
def test_locks_are_taken_in_uid_order_so_that_a_waiter_holds_the_lower_ones(postgres_database: Database) -> None:
    low, high = sorted(add_schedule(postgres_database, name).uid for name in ("a", "b"))
    with ThreadPoolExecutor(1) as thread:
        with locked(postgres_database, high):
            waiter = thread.submit(postgres_database.transact, lambda connection: uids_locked(connection, [high, low]))
            wait_for_a_lock(postgres_database)
            free = postgres_database.transact(lambda connection: uids_locked(connection, [low, high], skip_locked=True))
        assert waiter.result() == [low, high]
    assert free == []


@pytest.mark.postgres
@pytest.mark.parametrize("declared", [["a", "b", "c"], [f"{number}" for number in range(300)] + ["a", "b", "c"]])
def test_named_schedules_are_those_that_are_left_when_their_locks_come_as_they_are_then(
    postgres_database: Database, declared: list[str]
) -> None:
    a, b, c = (add_schedule(postgres_database, name) for name in "abc")
    paused, deleted = lifecycle.decide_pause(a, now=LATER, note="held"), lifecycle.decide_delete(b, now=LATER)
    with ThreadPoolExecutor(1) as thread:
        with postgres_database.engine.begin() as connection:
            changes.write(connection, [paused, deleted])
            waiter = thread.submit(postgres_database.transact, lambda one: changes.lock_named(one, "default", declared))
            wait_for_a_lock(postgres_database)
        assert waiter.result() == {"a": paused.after, "c": c}


@pytest.mark.postgres
def test_named_schedules_are_locked_in_uid_order_whatever_their_ids_are(postgres_database: Database) -> None:
    low, high = sorted((add_schedule(postgres_database, name) for name in "ab"), key=lambda schedule: schedule.uid)
    declared = [high.schedule_id, low.schedule_id]
    with ThreadPoolExecutor(1) as thread:
        with locked(postgres_database, high.uid):
            waiter = thread.submit(postgres_database.transact, lambda one: changes.lock_named(one, "default", declared))
            wait_for_a_lock(postgres_database)
            free = postgres_database.transact(lambda one: uids_locked(one, [low.uid, high.uid], skip_locked=True))
        assert set(waiter.result()) == {*declared}
    assert free == []


@pytest.mark.postgres
def test_the_lock_of_a_schedule_lets_others_insert_rows_that_reference_it(postgres_database: Database) -> None:
    schedule = add_schedule(postgres_database)

    def insert(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '1ms'")
        connection.execute(sa.insert(runs), run_values(run_of(schedule, 1)))

    with locked(postgres_database, schedule.uid):
        postgres_database.transact(insert, patience=NO_PATIENCE)
    assert postgres_database.read(lambda connection: count(connection, "rqsched_runs")) == 1


@pytest.mark.postgres
def test_a_transaction_whose_backend_is_killed_between_statements_is_repeated_whole(
    postgres_database: Database, postgres_server: PostgresServer
) -> None:
    backends: list[int] = []

    def work(connection: sa.Connection) -> None:
        backends.append(backend(connection))
        changes.write(connection, [created()])
        if len(backends) == 1:
            postgres_server.execute(f"SELECT pg_terminate_backend({backends[0]}, 10000)")
        count(connection, "rqsched_schedules")

    postgres_database.transact(work)
    assert len(set(backends)) == 2
    assert postgres_database.read(lambda connection: count(connection, "rqsched_schedules")) == 1


@pytest.mark.postgres
def test_idle_connections_cut_by_the_server_cost_a_retry_and_no_error(
    postgres_database: Database, postgres_server: PostgresServer
) -> None:
    served_by = postgres_database.read(backend)
    postgres_server.execute(f"SELECT pg_terminate_backend({served_by}, 10000)")
    assert postgres_database.read(backend) != served_by


@pytest.mark.postgres
@pytest.mark.parametrize("how", ["read", "transact", "transact_alone"])
def test_quiet_connection_that_the_server_has_ended_is_an_outage_and_its_call_is_repeated(
    postgres_database: Database, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """SQLAlchemy checks the connection, because an error that only psycopg sees is not retried."""
    monkeypatch.setattr(BoundedConnection, "quiet_seconds", 0.0)
    call = getattr(postgres_database, how)
    for patience in (None, NO_PATIENCE):
        served_by = call(backend)
        postgres_server.execute(f"SELECT pg_terminate_backend({served_by}, 10000)")
        if patience is NO_PATIENCE:
            with pytest.raises(DatabaseUnavailableError):
                call(backend, patience=NO_PATIENCE)
        assert call(backend) != served_by


@pytest.mark.postgres
def test_the_victim_of_a_deadlock_is_retried(postgres_database: Database) -> None:
    first, second = (add_schedule(postgres_database, name).uid for name in ("a", "b"))
    both_hold_one = threading.Barrier(2)
    attempts: list[str] = []
    refusals: list[object] = []

    def swap(mine: str, theirs: str) -> None:
        def work(connection: sa.Connection) -> None:
            attempts.append(mine)
            connection.exec_driver_sql("SET LOCAL deadlock_timeout = '10ms'")
            _add_one(connection, mine)
            if attempts.count(mine) == 1:
                both_hold_one.wait(timeout=20)
            try:
                _add_one(connection, theirs)
            except sa.exc.OperationalError as error:
                refusals.append(getattr(error.orig, "sqlstate", None))
                raise

        postgres_database.transact(work)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(swap, first, second), threads.submit(swap, second, first)]:
            each.result()
    found = postgres_database.read(lambda connection: changes.find(connection, first))
    assert {*refusals} == {"40P01"}, "no deadlock was found"
    assert len(attempts) == 2 + len(refusals)
    assert found is not None
    assert found.run_count == 2


def _add_one(connection: sa.Connection, uid: str) -> None:
    connection.execute(sa.text("UPDATE rqsched_schedules SET run_count = run_count + 1 WHERE uid = :uid"), {"uid": uid})


@pytest.mark.postgres
def test_a_retry_after_a_commit_whose_answer_was_lost_finds_its_own_row(
    postgres_database: Database, postgres_server: PostgresServer
) -> None:
    change = created()
    found: list[str | None] = []
    _lose_the_answer_of_the_next_commit(postgres_database, postgres_server)

    def create(connection: sa.Connection) -> None:
        mine = changes.find(connection, change.after.uid)
        found.append(None if mine is None else mine.operation)
        if mine is None:
            changes.write(connection, [change])

    postgres_database.transact(create)
    assert found == [None, change.after.operation]
    assert postgres_database.read(lambda connection: count(connection, "rqsched_audit_events")) == 1


def _lose_the_answer_of_the_next_commit(database: Database, server: PostgresServer) -> None:
    """The next commit is applied by the server, and then its connection is cut."""

    def commit_and_cut(connection: sa.Connection) -> None:
        sa.event.remove(database.engine, "commit", commit_and_cut)
        served_by = backend(connection)
        connection.exec_driver_sql("COMMIT")
        server.execute(f"SELECT pg_terminate_backend({served_by}, 10000)")
        connection.exec_driver_sql("SELECT 'the connection is gone'")

    sa.event.listen(database.engine, "commit", commit_and_cut)


@pytest.mark.postgres
def test_a_server_that_is_gone_is_a_typed_error_and_one_that_is_back_serves_again(
    own_postgres: PostgresServer,
) -> None:
    with closing(Database(own_postgres.url("postgres"), patience=NO_PATIENCE)) as database:
        assert database.now(LATER) != LATER
        own_postgres.stop()
        with pytest.raises(DatabaseUnavailableError, match="try again later"):
            database.now(LATER)
        own_postgres.start()
        assert database.read(lambda connection: connection.execute(sa.select(1)).scalar_one()) == 1


@pytest.mark.postgres
def test_an_invalid_statement_is_not_retried(postgres_database: Database) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        connection.exec_driver_sql("SELEC nonsense")

    with pytest.raises(DBAPIError, match="syntax error"):
        postgres_database.transact(work)
    assert len(attempts) == 1


STUMBLE = """
CREATE SEQUENCE attempts;
CREATE FUNCTION stumble(state text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('attempts') < 3 THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = 'as the test wants it';
    END IF;
    RETURN currval('attempts');
END $$
"""


@pytest.fixture
def stumbling(postgres_database: Database) -> Database:
    """A database whose function `stumble` fails twice with the SQLSTATE it is given."""
    postgres_database.transact(lambda connection: connection.exec_driver_sql(STUMBLE))
    return postgres_database


@pytest.mark.postgres
@pytest.mark.parametrize("state", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_of_postgresql_is_waited_out(stumbling: Database, state: str) -> None:
    query = sa.select(sa.func.stumble(state))
    assert stumbling.transact(lambda connection: connection.execute(query).scalar_one()) == 3


@pytest.mark.postgres
@pytest.mark.parametrize("state", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_of_postgresql_that_lasts_is_a_typed_error(stumbling: Database, state: str) -> None:
    query = sa.select(sa.func.stumble(state))
    with pytest.raises(DatabaseUnavailableError):
        stumbling.transact(lambda connection: connection.execute(query), patience=NO_PATIENCE)


@pytest.mark.postgres
@pytest.mark.parametrize("state", FAILURES_OF_THE_STATEMENT.values(), ids=FAILURES_OF_THE_STATEMENT)
def test_what_the_same_statement_would_meet_again_is_not_retried_and_says_what_to_do(
    stumbling: Database, state: str
) -> None:
    query = sa.select(sa.func.stumble(state))
    with pytest.raises(DatabaseLimitError, match=r"\(as the test wants it\). Ask for less at once"):
        stumbling.transact(lambda connection: connection.execute(query))
    assert (
        stumbling.transact(lambda connection: connection.execute(sa.text("SELECT nextval('attempts')"))).scalar() == 2
    )


@pytest.mark.postgres
def test_a_connection_to_a_server_that_takes_no_writes_is_not_used_again(stumbling: Database) -> None:
    """After a failover the pool must not keep its connections to the server that is now a standby."""
    used: list[int] = []

    def work(connection: sa.Connection) -> None:
        used.append(backend(connection))
        connection.execute(sa.select(sa.func.stumble(OUTAGES["read-only server"])))

    stumbling.transact(work)

    assert len(set(used)) == 3, used


def test_a_full_disk_under_sqlite_is_waited_out(sqlite: Database) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        limit = pages if len(attempts) == 1 else 1_000_000
        connection.exec_driver_sql(f"PRAGMA max_page_count={limit}")
        connection.exec_driver_sql("CREATE TABLE big AS SELECT zeroblob(100000) AS filler")

    sqlite.transact(work)

    assert len(attempts) == 2
    assert sqlite.read(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM big").scalar_one()) == 1


def test_an_outage_says_why_and_keeps_the_password() -> None:
    url = "postgresql+psycopg://rqsched:hunter2@127.0.0.1:1/rqsched"
    with closing(Database(url, patience=NO_PATIENCE)) as database, pytest.raises(DatabaseUnavailableError) as told:
        database.ping()
    assert "Connection refused" in str(told.value)
    assert "hunter2" not in str(told.value)


REFUSED = {
    "an unknown database": ("postgres@{address}/nonesuch", 'database "nonesuch" does not exist'),
    "an unknown user": ("nobody:hunter2@{address}/postgres", 'role "nobody" does not exist'),
    "no such host": ("postgres:hunter2@no.such.host.invalid/postgres", "no.such.host.invalid"),
}


@pytest.mark.postgres
@pytest.mark.parametrize(("target", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_database_that_refuses_this_process_is_a_configuration_error_at_the_start(
    postgres_server: PostgresServer, target: str, reason: str
) -> None:
    url = f"postgresql+psycopg://{target.format(address=f'127.0.0.1:{postgres_server.port}')}"

    with pytest.raises(ConfigError, match="RQSCHED_DATABASE_URL cannot be used") as told:
        Scheduler(database_url=url, redis_url="redis://127.0.0.1:1/0")

    assert reason in str(told.value)
    assert "hunter2" not in str(told.value)


def test_a_database_that_is_away_is_no_configuration_error() -> None:
    url = "postgresql+psycopg://rqsched@127.0.0.1:1/rqsched"
    with closing(Database(url)) as database:
        database.require_accepted()


@pytest.mark.postgres
def test_a_pooled_connection_that_is_known_to_be_lost_is_replaced(own_postgres: PostgresServer) -> None:
    with closing(Database(own_postgres.create_database())) as database:
        database.patience = NO_PATIENCE
        with database.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
        driver.pgconn.finish()

        assert database.read(lambda connection: connection.scalar(sa.text("SELECT 1"))) == 1
