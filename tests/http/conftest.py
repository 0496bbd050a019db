"""Fixtures of the HTTP tests: the application over an environment, spoken to in process through its ASGI interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rqsched.http import create_app
from rqsched.testing import ManualClock
from tests.support.env import Env, open_env
from tests.support.web import MakeWeb, Web


@pytest.fixture
def make_web(clock: ManualClock, redis_url: str, sqlite_url: str) -> Iterator[MakeWeb]:
    """Applications over SQLite and the test process's Valkey; `app` goes to create_app, the rest are settings."""
    with ExitStack() as stack:

        def make(*, app: dict[str, Any] | None = None, **settings: Any) -> Web:
            urls = {"database_url": sqlite_url, "redis_url": redis_url}
            env: Env = stack.enter_context(open_env(clock, **{**urls, **settings}))
            return Web(create_app(env.scheduler, **(app or {})), env)

        yield make


@pytest.fixture
def web(make_web: MakeWeb) -> Web:
    """An application over SQLite without tokens, as its own machine sees it."""
    return make_web()


@pytest.fixture
def any_web(make_web: MakeWeb, database_url: str) -> Web:
    """An application over each database in turn."""
    return make_web(database_url=database_url)
