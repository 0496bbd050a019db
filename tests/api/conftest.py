"""Fixtures of the Python surface: one PostgreSQL database for all of its tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from rqsched.kernel.store.database import Database
from rqsched.kernel.store.metadata import DATABASE_ID
from rqsched.kernel.store.tables import metadata
from tests.support.application import Application, application
from tests.support.env import Env
from tests.support.servers import PostgresServer


@pytest.fixture(scope="session")
def surface_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[Database]:
    """One PostgreSQL database for all of these tests: a copy for each would cost more than the tests do."""
    with closing(Database(postgres_server.create_database(template=postgres_template))) as database:
        yield database


@pytest.fixture
def postgres_url(surface_postgres: Database) -> str:
    """That database with no rows."""
    return emptied(surface_postgres)


def emptied(database: Database) -> str:
    """Delete the rows of a database; returns its URL."""
    database.transact(_empty)
    return database.url


def _empty(connection: sa.Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        if table.name != "rqsched_facts":
            connection.execute(sa.delete(table))
        else:  # all but the id of the database, which its processes know: a hold would last into the next test
            connection.execute(sa.delete(table).where(table.c.name != DATABASE_ID))


@pytest.fixture
def app(any_env: Env) -> Iterator[Application]:
    """An application with tables of its own, in each database in turn."""
    with application(any_env) as opened:
        yield opened


@pytest.fixture
def postgres_app(postgres_env: Env) -> Iterator[Application]:
    """The same in PostgreSQL, for its own behaviour."""
    with application(postgres_env) as opened:
        yield opened
