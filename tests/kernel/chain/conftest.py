"""Fixtures of the chain's tests."""

from __future__ import annotations

import pytest

from tests.support.env import Env
from tests.support.sql import SilentDatabase, silent_database


@pytest.fixture
def silent(env: Env) -> SilentDatabase:
    """The database of `env`, which commits and loses its answers when it is told to."""
    return silent_database(env.runtime)
