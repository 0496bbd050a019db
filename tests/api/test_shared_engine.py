"""A scheduler over the application's engine: connections of its own, opened as the engine opens its."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from rqsched import Every, Scheduler
from rqsched.errors import ConfigError
from rqsched.workflows import Registry, make_workflow
from tests.support.children import in_children
from tests.support.env import MINUTE
from tests.support.invariants import check_invariants

pytestmark = pytest.mark.every_database


def opened(engine: Any, redis_url: str, **options: Any) -> Scheduler:
    registry = Registry()
    registry.add(make_workflow("note", note))
    return Scheduler(engine=engine, redis_url=redis_url, workflows=registry, **options)


def note() -> None: ...


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


def test_scheduler_over_an_engine_does_what_it_does_over_a_url(engine: sa.Engine, redis_url: str) -> None:
    with opened(engine, redis_url) as scheduler:
        schedule = scheduler.create("report", "note", Every(MINUTE))
        assert schedule.trigger().outcome == "triggered"
        schedule.pause()
        schedule.resume()
        assert [one.schedule_id for one in scheduler.list().items] == ["report"]
        check_invariants(scheduler.runtime)


def test_scheduler_over_an_engine_continues_in_a_forked_child(engine: sa.Engine, redis_url: str) -> None:
    with opened(engine, redis_url) as scheduler:
        schedule = scheduler.create("report", "note", Every(MINUTE))
        if engine.dialect.name == "sqlite":
            engine.dispose()  # an application's own connections to SQLite must not cross a fork
        assert in_children(1, lambda: schedule.trigger().outcome) == ["triggered"]
        assert schedule.trigger().outcome == "skipped"
        check_invariants(scheduler.runtime)


def test_no_connection_is_taken_out_of_the_applications_pool(database_url: str, redis_url: str) -> None:
    engine = sa.create_engine(database_url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=5)
    with opened(engine, redis_url) as scheduler, engine.begin() as connection:
        scheduler.create("report", "note", Every(MINUTE), connection=connection)
        scheduler.create("other", "note", Every(MINUTE), connection=connection)
    assert len(scheduler.list().items) == 2
    engine.dispose()


def test_connections_are_opened_by_the_engines_creator(database_url: str, redis_url: str) -> None:
    url = sa.make_url(database_url)
    dialect = sa.create_engine(url).dialect
    positional, named = dialect.create_connect_args(url)
    made: list[object] = []

    def create() -> Any:
        if dialect.name == "sqlite":
            named["check_same_thread"] = False
        made.append(dialect.connect(*positional, **named))
        return made[-1]

    engine = sa.create_engine(url.set(database=None) if dialect.name != "sqlite" else url, creator=create)
    with opened(engine, redis_url) as scheduler:
        scheduler.create("report", "note", Every(MINUTE))
    assert made


@pytest.mark.parametrize(
    "options",
    [{"isolation_level": "AUTOCOMMIT"}, {"isolation_level": "SERIALIZABLE"}, {"poolclass": NullPool}],
    ids=["autocommit", "serializable", "no pool"],
)
def test_what_the_engine_sets_for_its_own_transactions_changes_none_of_ours(
    database_url: str, redis_url: str, options: dict[str, Any]
) -> None:
    engine = sa.create_engine(database_url, **options)
    with opened(engine, redis_url) as scheduler:

        def fail(connection: sa.Connection) -> None:
            connection.exec_driver_sql("DELETE FROM rqsched_schedules")
            if connection.dialect.name != "sqlite":
                level = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
                assert level == "read committed"
            raise ZeroDivisionError

        scheduler.create("report", "note", Every(MINUTE))
        with pytest.raises(ZeroDivisionError):
            scheduler.runtime.database.transact(fail)
        assert len(scheduler.list().items) == 1
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM rqsched_schedules").scalar_one() == 1
    engine.dispose()


def test_limits_of_our_transactions_are_not_those_of_the_applications(postgres_url: str, redis_url: str) -> None:
    engine = sa.create_engine(postgres_url)
    with opened(engine, redis_url) as scheduler:

        def limit(connection: sa.Connection) -> Any:
            return connection.exec_driver_sql("SHOW lock_timeout").scalar_one()

        assert scheduler.runtime.database.transact(limit) == "4s"
        raw = scheduler.runtime.database.engine.raw_connection()
        assert raw.cursor().execute("SHOW lock_timeout").fetchone() == ("0",)
        raw.close()
        with engine.connect() as connection:
            assert limit(connection) == "0"
    engine.dispose()


def test_engine_that_cannot_work_is_refused_with_the_reason(redis_url: str, sqlite_url: str) -> None:
    file = sa.create_engine(sqlite_url)
    refused: list[tuple[Any, str]] = [
        (sa.create_engine("sqlite://"), "in memory"),
        (sa.create_engine(sqlite_url, poolclass=StaticPool), "StaticPool lends the same connection"),
        (
            create_async_engine("postgresql+psycopg://nobody@127.0.0.1:9/none"),
            "AsyncEngine is not a synchronous .*; give database_url: an AsyncScheduler takes your asynchronous",
        ),
        (sa.create_mock_engine("mysql://", print), "MockConnection is not"),
        ("sqlite://", "str is not"),
    ]
    for engine, words in refused:
        with pytest.raises(ConfigError, match=words):
            opened(engine, redis_url)
    with pytest.raises(ConfigError, match="each names a database"):
        opened(file, redis_url, database_url=sqlite_url)


def test_engine_of_another_driver_is_refused(redis_url: str, sqlite_url: str) -> None:
    engine = sa.create_engine(sqlite_url)
    engine.dialect.driver = "pysqlcipher"
    with pytest.raises(ConfigError, match=r"sqlite\+pysqlcipher cannot be used"):
        opened(engine, redis_url)
