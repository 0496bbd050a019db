"""Fixtures of the chain's tests: the parts of an environment over each database."""

from __future__ import annotations

import pytest

from rqsched.api.scheduler import Scheduler
from rqsched.chain.runtime import Runtime
from tests.support.env import Env
from tests.support.sql import SilentDatabase, silent_database


@pytest.fixture
def scheduler(any_env: Env) -> Scheduler:
    """The scheduler of `any_env`."""
    return any_env.scheduler


@pytest.fixture
def runtime(any_env: Env) -> Runtime:
    """The runtime of `any_env`."""
    return any_env.runtime


@pytest.fixture
def silent(env: Env) -> SilentDatabase:
    """The database of `env`, which commits and loses its answers when it is told to."""
    return silent_database(env.runtime)
