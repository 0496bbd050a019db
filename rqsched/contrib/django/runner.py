"""Run the tests of a Django project with its test database and a separate Valkey.

>>> TEST_RUNNER = "rqsched.contrib.django.runner.Runner"  # in the settings

For a runner of your own: `class Mine(Isolated, YourRunner)`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.test.runner import DiscoverRunner, ParallelTestSuite

from rqsched import embedded
from rqsched.config import provide
from rqsched.contrib.django import project
from rqsched.contrib.django.lazy import scheduler
from rqsched.kernel.store import database

_SERVERS = ("RQSCHED_DATABASE_URL", "RQSCHED_REDIS_URL", "RQSCHED_CONNECTIONS")
_DIFFERENT = (*_SERVERS, *(f"{one}_FILE" for one in _SERVERS), "RQSCHED_DATABASE_POOLER", "CREDENTIALS_DIRECTORY")
"""Variables that name development servers, or files that set such variables. Tests must not use these servers."""
_FOLDER = "RQSCHED_DATA_DIR"


@contextmanager
def isolated() -> Iterator[None]:
    """Let tests inside the block use the project's test database and a separate Valkey. Close all connections after it.

    The Valkey comes from the extra `embedded`. It starts at its first use and ends with the block. In a parallel run,
    each process has its own Valkey. If the test database is in memory, or neither PostgreSQL nor SQLite, a SQLite file
    is used instead.
    """
    data = project.own_settings().get("DATA_DIR") or os.environ.get(_FOLDER) or project.data_dir() or ".rqsched"
    tests = Path(data) / "test"
    _remove_left(tests)
    before = {name: os.environ.pop(name) for name in (*_DIFFERENT, _FOLDER) if name in os.environ}
    os.environ[_FOLDER] = str(tests.absolute() / str(os.getpid()))  # for the processes of a parallel test run
    _enter()
    try:
        yield
    finally:
        scheduler.forget()
        database.close_all()
        _remove(Path(os.environ.pop(_FOLDER)))
        os.environ.update(before)
        provide(project.provided)


def _enter() -> None:
    """Use the settings for tests, and close the connections that were opened with other settings."""
    provide(lambda: project.provided_to_tests(Path(os.environ[_FOLDER])))
    scheduler.forget()


def _remove_left(tests: Path) -> None:
    """Remove the folders of killed test runs."""
    for left in tests.glob("[0-9]*"):
        try:
            os.kill(int(left.name), 0)
        except ProcessLookupError:
            _remove(left)
        except PermissionError:
            continue


def _remove(folder: Path) -> None:
    for one in folder.glob("*"):
        embedded.stop(one)
    shutil.rmtree(folder, ignore_errors=True)


def _init_worker(*arguments: Any, **named: Any) -> None:
    """Set up a process of a parallel test run, which has its own copy of the test database."""
    ParallelTestSuite.init_worker(*arguments, **named)
    _enter()


class _ParallelSuite(ParallelTestSuite):
    """A parallel test run in which each process has its own Valkey."""

    init_worker = _init_worker


class Isolated:
    """A mixin for test runners, with which tests use a separate Valkey. Put it before the runner in the bases."""

    parallel_test_suite = _ParallelSuite

    def setup_databases(self, **options: Any) -> Any:
        """Isolate the test run from development servers, and create the test databases."""
        self._isolation = isolated()
        self._isolation.__enter__()
        return super().setup_databases(**options)  # type: ignore[misc]

    def teardown_databases(self, old_config: Any, **options: Any) -> None:
        """Close every connection, because PostgreSQL drops no database with open ones. Drop the test databases."""
        self._isolation.__exit__(None, None, None)
        super().teardown_databases(old_config, **options)  # type: ignore[misc]


class Runner(Isolated, DiscoverRunner):
    """Django's own test runner, with a separate Valkey."""
