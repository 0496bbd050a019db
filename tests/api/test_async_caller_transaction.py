"""Operations of an AsyncScheduler in the caller's own asynchronous transaction.

Publication is handed to a thread of the event loop; `asyncio.run` waits for its threads.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from rqsched import Every
from rqsched.aio import AsyncScheduler
from rqsched.errors import InvalidTypeError, WrongDatabaseError
from tests.support.application import Application, orders
from tests.support.async_application import Story, create_twice, tell
from tests.support.env import MINUTE, Env
from tests.support.invariants import check_invariants

pytestmark = [pytest.mark.every_database, pytest.mark.postgres]


@pytest.fixture
def app(postgres_app: Application) -> Application:
    return postgres_app


async def in_session(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
    async with AsyncSession(engine) as session:
        await session.execute(sa.insert(orders).values(id=1))
        schedule = await schedules.create("report", "note", Every(MINUTE), session=session)
        await schedule.update(overlap="allow_all", session=session)
        await schedule.trigger(session=session)
        assert (await schedules.get("report", session=session)).uid == schedule.uid
        await session.commit()


async def in_connection(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
    async with engine.begin() as connection:
        await connection.execute(sa.insert(orders).values(id=1))
        schedule = await schedules.create("report", "note", Every(MINUTE), connection=connection)
        await schedule.pause(connection=connection)
        await schedule.resume(connection=connection)
        await schedule.trigger(connection=connection)


@pytest.mark.parametrize("story", [in_session, in_connection])
def test_schedule_is_written_with_the_callers_rows_and_published_after_its_commit(
    app: Application, story: Story
) -> None:
    tell(app.env, story)
    assert (app.ordered(), app.linked(), len(app.env.queued())) == ([1], ["report"], 1)
    check_invariants(app.env.runtime)


def test_schedule_is_undone_with_the_callers_rows(app: Application) -> None:
    async def undone(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
        async with AsyncSession(engine) as session:
            await session.execute(sa.insert(orders).values(id=1))
            await schedules.create("report", "note", Every(MINUTE), session=session)
            await session.rollback()

    tell(app.env, undone)
    assert (app.ordered(), app.names(), app.env.armed()) == ([], [], {})


def test_refused_operation_leaves_the_transaction_as_it_was(app: Application) -> None:
    tell(app.env, create_twice)
    assert (app.ordered(), app.linked()) == ([1], ["report"])


def test_connection_to_another_database_is_refused(app: Application, env: Env) -> None:
    async def elsewhere(engine: AsyncEngine, _: AsyncScheduler) -> None:
        other = AsyncScheduler(env.scheduler)
        async with engine.connect() as connection:
            with pytest.raises(WrongDatabaseError):
                await other.create("report", "note", Every(MINUTE), connection=connection)

    tell(app.env, elsewhere)
    assert app.names() == []


def test_scheduler_that_is_not_awaited_refuses_an_asynchronous_session(app: Application) -> None:
    async def refused(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidTypeError, match="AsyncSession needs an AsyncScheduler"):
                schedules.scheduler.create("report", "note", Every(MINUTE), session=session)

    tell(app.env, refused)
