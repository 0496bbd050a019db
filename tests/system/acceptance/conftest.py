"""Fixtures of the acceptance tests: a live environment, and one over each database where SQL matters."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from rqsched import Scheduler
from tests.support.servers import DATABASES, ValkeyServer
from tests.system.acceptance.live import LiveEnv, MakeLive

_redis_databases = cycle(range(1, DATABASES))
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PATIENCE = 60_000
"""Milliseconds that a page may take on a machine that does other work."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; in CI it must be there."""
    path = shutil.which("chromium")
    if path is None and not os.environ.get("CI"):
        pytest.skip("no chromium here; `make browser` installs Debian's (as root)")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


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
