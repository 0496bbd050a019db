"""Fixtures of the acceptance tests: a site, and one over each database where SQL matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rqsched import Scheduler
from tests.system.acceptance.site import Site

MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(redis_url: str, tmp_path: Path) -> Iterator[MakeSite]:
    """Sites over a database that is named; every process started there is killed after the test."""
    with ExitStack() as stack:

        def make(database_url: str, *, serializer: str = "pickle") -> Site:
            environment = {
                "RQSCHED_DATABASE_URL": database_url,
                "RQSCHED_REDIS_URL": redis_url,
                "RQSCHED_IMPORTS": "tests.system.acceptance.chores",
                "RQSCHED_SERIALIZER": serializer,
            }
            scheduler = Scheduler(database_url=database_url, redis_url=redis_url, serializer=serializer)
            return stack.enter_context(closing(Site(scheduler, tmp_path, environment)))

        yield make


@pytest.fixture
def site(make_site: MakeSite, sqlite_url: str) -> Site:
    """A site over SQLite, where SQL does not matter."""
    return make_site(sqlite_url)


@pytest.fixture
def any_site(make_site: MakeSite, database_url: str) -> Site:
    """A site over each database in turn."""
    return make_site(database_url)
