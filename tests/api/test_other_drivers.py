"""Transactions of applications that reach the database through another driver than rqsched does."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from rqsched import Every
from rqsched.aio import AsyncScheduler
from rqsched.errors import TransactionConflictError
from tests.support.application import Application, application, orders
from tests.support.async_application import create_twice, tell
from tests.support.env import MINUTE, MakeEnv
from tests.support.invariants import check_invariants

pytestmark = [pytest.mark.every_database, pytest.mark.postgres]
DRIVERS = {"asyncpg": "postgres_url", "aiosqlite": "sqlite_url"}


def through(url: str, driver: str) -> sa.URL:
    if importlib.util.find_spec(driver) is None:
        pytest.skip(f"{driver} is not installed")
    parsed = sa.make_url(url)
    return parsed.set(drivername=f"{parsed.get_backend_name()}+{driver}")


@pytest.fixture(params=DRIVERS)
def awaited(request: pytest.FixtureRequest, make_env: MakeEnv) -> Iterator[tuple[Application, sa.URL]]:
    """An application, and the URL of its database with an asynchronous driver."""
    url: str = request.getfixturevalue(DRIVERS[request.param])
    with application(make_env(database_url=url)) as app:
        yield app, through(url, request.param)


@pytest.fixture
def psycopg2_app(postgres_app: Application, postgres_url: str) -> Iterator[tuple[Application, sa.Engine]]:
    engine = sa.create_engine(through(postgres_url, "psycopg2"))
    yield postgres_app, engine
    engine.dispose()


def test_awaited_session_of_another_driver_publishes_after_its_commit(awaited: tuple[Application, sa.URL]) -> None:
    app, url = awaited

    async def story(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
        async with AsyncSession(engine) as session:
            await session.execute(sa.insert(orders).values(id=1))
            schedule = await schedules.create("report", "note", Every(MINUTE), session=session)
            await schedule.update(overlap="allow_all", session=session)
            await schedule.trigger(session=session)
            assert app.env.armed() == {}
            await session.commit()

    tell(app.env, story, url)
    assert (app.ordered(), app.linked(), len(app.env.queued())) == ([1], ["report"], 1)
    check_invariants(app.env.runtime)


def test_awaited_connection_of_another_driver_publishes_nothing_after_a_rollback(
    awaited: tuple[Application, sa.URL],
) -> None:
    app, url = awaited

    async def story(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
        async with engine.connect() as connection:
            await connection.execute(sa.insert(orders).values(id=1))
            await schedules.create("report", "note", Every(MINUTE), connection=connection)
            await connection.rollback()

    tell(app.env, story, url)
    assert (app.ordered(), app.names(), app.env.armed()) == ([], [], {})


def test_refusal_over_another_awaited_driver_leaves_the_transaction_as_it_was(
    awaited: tuple[Application, sa.URL],
) -> None:
    app, url = awaited

    tell(app.env, create_twice, url)
    assert (app.ordered(), app.linked()) == ([1], ["report"])


def test_conflict_over_another_awaited_driver_says_to_repeat_the_transaction(
    awaited: tuple[Application, sa.URL],
) -> None:
    app, url = awaited
    report = app.env.create()
    begin = {"isolation_level": "REPEATABLE READ"} if url.get_backend_name() == "postgresql" else {}

    async def story(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
        async with engine.connect() as connection:
            await connection.execution_options(**begin)
            if not begin:
                await connection.exec_driver_sql("BEGIN")  # Python's sqlite3 begins with a write only
            await connection.execute(sa.select(orders))
            await asyncio.to_thread(report.pause, "meanwhile")
            handle = await schedules.get("report")
            with pytest.raises(TransactionConflictError, match="repeat"):
                await handle.resume(connection=connection)

    tell(app.env, story, url)
    assert report.refresh().status == "paused"


def test_session_of_psycopg2_publishes_after_its_commit(psycopg2_app: tuple[Application, sa.Engine]) -> None:
    app, engine = psycopg2_app
    with orm.Session(engine) as session:
        app.order(session)
        schedule = app.env.create(session=session)
        schedule.trigger(session=session)
        assert app.env.armed() == {}
        session.commit()
    assert (app.ordered(), app.linked(), len(app.env.queued())) == ([1], ["report"], 1)
    check_invariants(app.env.runtime)


def test_connection_of_psycopg2_that_is_rolled_back_leaves_nothing(
    psycopg2_app: tuple[Application, sa.Engine],
) -> None:
    app, engine = psycopg2_app
    with engine.connect() as connection:
        app.order(connection)
        app.env.create(connection=connection)
        connection.rollback()
    assert (app.ordered(), app.names(), app.env.armed()) == ([], [], {})


def test_conflict_over_psycopg2_says_to_repeat_the_transaction(psycopg2_app: tuple[Application, sa.Engine]) -> None:
    app, engine = psycopg2_app
    report = app.env.create()
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(sa.select(orders))
        report.pause("meanwhile")
        with pytest.raises(TransactionConflictError, match="repeat"):
            report.resume(connection=connection)
