"""Our assumptions about SQLAlchemy's events: which are sent once other connections can see the transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

table = sa.Table("seen", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))


class Watched:
    """An engine whose every event looks, through another one, how many rows are committed."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url)
        self._other = sa.create_engine(url)
        self.seen: list[tuple[str, int]] = []
        table.create(self.engine)
        for name in ("begin", "commit", "rollback"):
            sa.event.listen(self.engine, name, lambda _, name=name: self.look(name))
        sa.event.listen(self.engine, "checkin", lambda *_: self.look("checkin"))

    def look(self, name: str) -> None:
        with self._other.connect() as connection:
            counted = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        self.seen.append((name, counted))

    def close(self) -> None:
        self.engine.dispose()
        table.drop(self._other)
        self._other.dispose()


@pytest.fixture
def watched(database_url: str) -> Iterator[Watched]:
    watched = Watched(database_url)
    watched.seen.clear()
    yield watched
    watched.close()


def test_the_commit_event_of_a_connection_comes_before_commit_and_the_next_begin_after_it(watched: Watched) -> None:
    with watched.engine.connect() as connection:
        connection.execute(sa.insert(table).values(id=1))
        connection.commit()
        connection.execute(sa.select(1))
    assert watched.seen == [("begin", 0), ("commit", 0), ("begin", 1), ("rollback", 1), ("checkin", 1)]


def test_a_connection_of_an_engine_with_options_is_listened_to_like_any_other(watched: Watched) -> None:
    begun: list[sa.Connection] = []
    with watched.engine.execution_options(isolation_level="SERIALIZABLE").connect() as connection:
        sa.event.listen(connection, "begin", begun.append)
        connection.begin()
    assert begun == [connection]


def test_a_connection_is_returned_to_its_pool_after_commit(watched: Watched) -> None:
    with watched.engine.begin() as connection:
        connection.execute(sa.insert(table).values(id=1))
    assert watched.seen == [("begin", 0), ("commit", 0), ("checkin", 1)]


def test_a_connection_that_was_not_committed_is_rolled_back_before_it_is_returned(watched: Watched) -> None:
    with watched.engine.connect() as connection:
        connection.execute(sa.insert(table).values(id=1))
    assert watched.seen == [("begin", 0), ("rollback", 0), ("checkin", 0)]


def test_after_commit_of_a_session_comes_after_commit(watched: Watched) -> None:
    with orm.Session(watched.engine) as session:
        sa.event.listen(session, "after_commit", lambda _: watched.look("after_commit"))
        session.execute(sa.insert(table).values(id=1))
        session.commit()
    assert watched.seen == [("begin", 0), ("commit", 0), ("after_commit", 1), ("checkin", 1)]


def test_after_commit_of_a_session_comes_also_when_a_savepoint_is_released(watched: Watched) -> None:
    open_then: list[bool] = []
    with orm.Session(watched.engine) as session:
        connection = session.connection()
        sa.event.listen(session, "after_commit", lambda _: open_then.append(connection.in_transaction()))
        with session.begin_nested():
            session.execute(sa.insert(table).values(id=1))
        session.commit()
    assert open_then == [True, False]
