"""Fixtures of the Python surface: a scheduler over each database in turn, a real Valkey, a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.api.scheduler import Scheduler
from rqsched.store.database import Database
from rqsched.store.tables import metadata
from rqsched.testing import ManualClock
from rqsched.workflows import Registry
from tests.support.desk import Desk
from tests.support.servers import PostgresServer

MakeDesk = Callable[..., Desk]


@pytest.fixture(scope="session")
def surface_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[Database]:
    """One PostgreSQL database for all of these tests: a copy for each would cost more than the tests do."""
    with closing(Database(postgres_server.create_database(template=postgres_template))) as database:
        yield database


@pytest.fixture
def postgres_url(surface_postgres: Database) -> str:
    """That database with no rows."""
    surface_postgres.transact(_empty)
    return surface_postgres.url


def _empty(connection: sa.Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        if table.name != "rqsched_facts":
            connection.execute(sa.delete(table))


@pytest.fixture
def make_desk(clock: ManualClock, redis_url: str) -> Iterator[MakeDesk]:
    """Desks with settings of their own, over one clock and one Valkey."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Desk:
            given = {"redis_url": redis_url, **settings}
            scheduler = Scheduler(clock=clock, workflows=Registry(), **given)
            stack.callback(scheduler.close)
            return Desk(scheduler, clock)

        yield make


@pytest.fixture
def any_desk(make_desk: MakeDesk, database_url: str) -> Desk:
    """A desk over each database in turn."""
    return make_desk(database_url=database_url)


@pytest.fixture
def desk(make_desk: MakeDesk, sqlite_url: str) -> Desk:
    """A desk over SQLite, for what SQL does not matter to."""
    return make_desk(database_url=sqlite_url)
