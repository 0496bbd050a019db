"""Many processes at once are a matter of PostgreSQL: beside SQLite they wait for one another."""

from __future__ import annotations

import pytest


@pytest.fixture(
    params=[pytest.param("sqlite", marks=pytest.mark.broad), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn, PostgreSQL alone in `make test`."""
    kind: str = request.param
    return kind
