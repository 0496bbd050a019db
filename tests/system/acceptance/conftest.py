"""Fixtures of the acceptance tests: a live environment, and one over each database where SQL matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path

import pytest

from rqsched import Scheduler
from tests.support.servers import DATABASES, ValkeyServer
from tests.system.acceptance.live import LiveEnv, MakeLive

_redis_databases = cycle(range(1, DATABASES))


@pytest.fixture
def redis_url(redis_url: str, valkey_server: ValkeyServer) -> str:
    """An empty Redis: a database that no test before has used.

    An orphan that a test leaves, as one that kills a worker alone does, lives for seconds and takes jobs: not here.
    """
    del redis_url  # which has emptied the server
    return valkey_server.url_of(next(_redis_databases))


@pytest.fixture
def make_live(redis_url: str, tmp_path: Path) -> Iterator[MakeLive]:
    """Live environments over a database that is named; every process started there is killed after the test."""
    with ExitStack() as stack:

        def make(database_url: str, *, serializer: str = "pickle", redis_url: str = redis_url) -> LiveEnv:
            environment = {
                "RQSCHED_DATABASE_URL": database_url,
                "RQSCHED_REDIS_URL": redis_url,
                "RQSCHED_IMPORTS": "tests.system.acceptance.chores",
                "RQSCHED_SERIALIZER": serializer,
                "RQSCHED_RUN_DIR": str(tmp_path / "run"),
            }
            scheduler = Scheduler(database_url=database_url, redis_url=redis_url, serializer=serializer)
            return stack.enter_context(closing(LiveEnv(tmp_path, environment, scheduler)))

        yield make


@pytest.fixture
def live(make_live: MakeLive, sqlite_url: str) -> LiveEnv:
    """A live environment over SQLite, where SQL does not matter."""
    return make_live(sqlite_url)


@pytest.fixture
def any_live(make_live: MakeLive, database_url: str) -> LiveEnv:
    """A live environment over each database in turn."""
    return make_live(database_url)
