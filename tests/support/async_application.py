"""An application with an event loop and an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rqsched import Every
from rqsched.aio import AsyncScheduler
from rqsched.errors import ScheduleExistsError
from tests.support.application import orders
from tests.support.env import MINUTE, Env

Story = Callable[[AsyncEngine, AsyncScheduler], Awaitable[object]]
"""The actions of the application."""


@asynccontextmanager
async def opened(url: str | sa.URL) -> AsyncIterator[AsyncEngine]:
    """An engine that is disposed of after the block."""
    engine = create_async_engine(url)
    yield engine
    await engine.dispose()


def tell(env: Env, story: Story, url: str | sa.URL | None = None) -> None:
    """A process with an event loop does it, through a URL of its own or the one of the environment, and ends."""

    async def live() -> None:
        async with opened(url or env.runtime.database.url) as engine:
            await story(engine, AsyncScheduler(env.scheduler))

    asyncio.run(live())


async def create_twice(engine: AsyncEngine, schedules: AsyncScheduler) -> None:
    """Fail to create a second time in the application's transaction, and still commit a row of the application."""
    await schedules.create("report", "note", Every(MINUTE))
    async with engine.begin() as connection:
        with pytest.raises(ScheduleExistsError):
            await schedules.create("report", "note", Every(MINUTE), connection=connection)
        await connection.execute(sa.insert(orders).values(id=1))
