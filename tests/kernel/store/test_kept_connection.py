"""A process that forks for each run, and a runner, keeps one connection for its single statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from rqsched.errors import DatabaseUnavailableError
from rqsched.kernel.store.database import Database
from tests.support.children import in_children
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE, backend

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture
def keeping(postgres_url: str) -> Iterator[Database]:
    with closing(Database(postgres_url)) as database:
        database.keep_connection()
        yield database


def test_single_statements_and_what_is_asked_between_them_share_one_connection(keeping: Database) -> None:
    asked = [keeping.transact_alone(backend), keeping.transact_alone(backend), keeping.read(backend)]
    asked += [keeping.transact(backend), keeping.transact_alone(backend)]

    assert len(set(asked)) == 1


def test_connection_that_the_server_has_closed_is_replaced_and_the_statement_repeated(
    keeping: Database, postgres_server: PostgresServer
) -> None:
    first = keeping.transact_alone(backend)
    postgres_server.execute(f"SELECT pg_terminate_backend({first}, 10000)")

    second = keeping.transact_alone(backend)
    assert second != first
    assert keeping.transact_alone(backend) == keeping.transact_alone(backend)


def test_connection_found_lost_gets_one_more_attempt_and_what_fails_then_is_an_error(
    keeping: Database, postgres_server: PostgresServer
) -> None:
    attempts: list[int] = []

    def cut(connection: sa.Connection) -> None:
        attempts.append(backend(connection))
        postgres_server.execute(f"SELECT pg_terminate_backend({attempts[-1]}, 10000)")
        backend(connection)

    with pytest.raises(DatabaseUnavailableError):
        keeping.transact_alone(cut, patience=NO_PATIENCE)
    assert len(attempts) == len(set(attempts)) <= 2


def test_statement_that_is_refused_is_not_repeated(keeping: Database) -> None:
    attempts: list[int] = []

    def nonsense(connection: sa.Connection) -> None:
        attempts.append(1)
        connection.exec_driver_sql("SELECT nonsense FROM")

    with pytest.raises(DBAPIError, match="nonsense"):
        keeping.transact_alone(nonsense)
    assert attempts == [1]
    assert keeping.transact_alone(backend) > 0


def test_fork_has_a_connection_of_its_own_and_leaves_its_parents_alone(keeping: Database) -> None:
    mine = keeping.transact_alone(backend)
    (other,) = in_children(1, lambda: keeping.transact_alone(backend))

    assert other != mine
    assert keeping.transact_alone(backend) == mine


def test_closing_leaves_no_connection_open(keeping: Database) -> None:
    keeping.transact_alone(backend)
    keeping.close()

    assert keeping.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
