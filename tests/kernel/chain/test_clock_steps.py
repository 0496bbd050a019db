"""A wall clock that is set while the chain runs: on PostgreSQL nothing fires early, and no time is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from rqsched.clock import SystemClock
from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.store.database import Database
from tests.support.env import SECOND


class SteppingHost(SystemClock):
    """This host, with a wall clock that the test sets."""

    step = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.step


@pytest.fixture
def host() -> SteppingHost:
    return SteppingHost()


@pytest.fixture
def runtime(postgres_url: str, redis_url: str, host: SteppingHost) -> Iterator[Runtime]:
    with closing(make_runtime(Settings(database_url=postgres_url, redis_url=redis_url), host=host)) as runtime:
        yield runtime


def theirs(database: Database) -> datetime:
    return database.now(SystemClock().now())


@pytest.mark.postgres
@pytest.mark.parametrize("step", [10 * SECOND, -10 * SECOND, 30 * SECOND, 3600 * SECOND], ids=str)
def test_time_is_the_databases_before_and_after_the_wall_clock_is_set(
    runtime: Runtime, host: SteppingHost, step: timedelta
) -> None:
    runtime.now()

    host.step = step

    for _ in range(3):
        before, now, after = theirs(runtime.database), runtime.now(), theirs(runtime.database)
        assert before - SECOND < now < after + SECOND


@pytest.mark.postgres
def test_inside_a_transaction_the_clock_is_not_measured(runtime: Runtime, host: SteppingHost) -> None:
    first = runtime.now()
    statements: list[str] = []
    sa.event.listen(runtime.database.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    host.step = 10 * SECOND

    inside = runtime.database.transact(lambda connection: runtime.now())

    assert [text for text in statements if "clock_timestamp" in text] == []
    assert first <= inside < first + 5 * SECOND
    runtime.now()
    assert [text for text in statements if "clock_timestamp" in text], "the next reading outside measures"


@pytest.mark.postgres
def test_a_link_is_not_taken_before_it_is_due_when_the_wall_clock_jumps_ahead(
    runtime: Runtime, host: SteppingHost
) -> None:
    dispatcher = Dispatcher(runtime)
    due_at = runtime.now() + 20 * SECOND
    runtime.transport.redis.zadd(runtime.transport.scheduled_key, {"sched-x": due_at.timestamp()})

    host.step = 30 * SECOND

    assert dispatcher.run_once() == 0
