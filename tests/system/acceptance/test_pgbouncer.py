"""PostgreSQL behind a real PgBouncer that lends sessions for single transactions (`RQSCHED_DATABASE_POOLER`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from rqsched import Every
from rqsched.kernel.store.database import Connection, Database
from tests.support.pgbouncer import BINARY, pgbouncer, pooled
from tests.support.processes import SOON, rqsched_command, run_to_end
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE
from tests.system.acceptance.live import MakeLive

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.acceptance,
    pytest.mark.timeout(180),
    pytest.mark.skipif(BINARY is None, reason="PgBouncer is not installed (Debian: apt install pgbouncer)"),
]


@pytest.fixture
def url(postgres_url: str, postgres_server: PostgresServer) -> Iterator[str]:
    """A test's database, whose clients share two sessions."""
    with pgbouncer(postgres_server) as port:
        yield pooled(postgres_url, port)


def show(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar())


def test_each_transaction_has_its_limits_and_leaves_none_in_the_session(url: str) -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with closing(Database(url, pooler="transaction")) as database:
        for look in (database.transact, database.read):
            found: list[str] = look(lambda connection: [show(connection, name) for name in names])
            assert found == ["8s", "4s", "8s"]

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
        left = [other.execute(f"SHOW {name}".encode()).fetchone() for name in names]
    assert left == [("0",)] * 3


def test_a_statement_that_takes_too_long_is_ended_by_the_server(url: str) -> None:
    with (
        closing(Database(url, pooler="transaction", patience=NO_PATIENCE)) as database,
        pytest.raises(Exception, match="statement timeout"),
    ):
        database.transact(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(30)"))


def test_many_clients_of_two_sessions_find_no_prepared_statement_missing_or_left(url: str) -> None:
    def ask(number: int) -> int:
        with closing(Database(url, pooler="transaction")) as database:
            found = [database.read(lambda c: c.exec_driver_sql(f"SELECT {number}").scalar()) for _ in range(10)]
        return sum(int(one or 0) for one in found)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(16))) == [10 * number for number in range(16)]
    with closing(Database(url, pooler="transaction")) as database:
        left = database.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar())
    assert left == 0


def test_schema_worker_and_commands_work_through_it(
    make_live: MakeLive, empty_postgres_url: str, postgres_server: PostgresServer, redis_url: str
) -> None:
    with pgbouncer(postgres_server) as port:
        through = {
            "RQSCHED_DATABASE_URL": pooled(empty_postgres_url, port),
            "RQSCHED_DATABASE_POOLER": "transaction",
            "RQSCHED_REDIS_URL": redis_url,
        }
        said = [run_to_end(rqsched_command("db", "upgrade"), through)]
        live = make_live(empty_postgres_url)
        live.environment |= through
        schedule = live.note_every("nightly", Every(timedelta(seconds=1)), overlap="allow_all")
        worker = live.start_worker()
        live.wait_for_successes(schedule, more=3)
        schedule.pause()
        said += [
            run_to_end(rqsched_command(*words), live.environment)
            for words in (["list"], ["history", "nightly"], ["doctor"])
        ]

        live.check()
        assert worker.terminate(timeout=SOON) == 0
        assert "pooler" not in worker.log()
    assert [one.returncode for one in said] == [0] * 4, said
