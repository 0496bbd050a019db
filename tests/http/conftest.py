"""Fixtures of the HTTP tests: the application over an environment, spoken to in process through its ASGI interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rqsched.http import Limits, create_app
from tests.support.durable_workflow import asked_by_clients
from tests.support.env import MakeEnv
from tests.support.openjobspec import Ojs
from tests.support.serving import served
from tests.support.web import MakeWeb, Web


@pytest.fixture
def make_web(make_env: MakeEnv) -> MakeWeb:
    """Applications over environments; `app` goes to create_app, the rest are settings."""

    def make(*, app: dict[str, Any] | None = None, **settings: Any) -> Web:
        env = make_env(**settings)
        return Web(create_app(env.scheduler, **(app or {})), env)

    return make


@pytest.fixture
def web(make_web: MakeWeb) -> Web:
    """An application over SQLite without tokens, as its own machine sees it."""
    return make_web()


@pytest.fixture
def any_web(make_web: MakeWeb, database_url: str) -> Web:
    """An application over each database in turn."""
    return make_web(database_url=database_url)


@pytest.fixture
def unlimited(make_web: MakeWeb) -> Web:
    """An application that bounds no rate, and whose streams end soon."""
    return make_web(app={"limits": Limits(rate=0, stream_seconds=0.05)})


@pytest.fixture
def url(web: Web) -> Iterator[str]:
    """The URL at which the application is served."""
    with served(web.app, lifespan="on") as url:
        yield url


@pytest.fixture
def ojs(web: Web) -> Ojs:
    """The Open Job Spec surface of `web`."""
    return Ojs(web)


@pytest.fixture
def any_ojs(any_web: Web) -> Ojs:
    """The same over each database in turn."""
    return Ojs(any_web)


@pytest.fixture
def control_plane(web: Web) -> Web:
    """`web`, asked as Durable Workflow's clients ask."""
    return asked_by_clients(web)


@pytest.fixture
def any_control_plane(any_web: Web) -> Web:
    """The same over each database in turn."""
    return asked_by_clients(any_web)
