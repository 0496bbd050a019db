"""Fixtures of the features: those of the surfaces they have."""

from __future__ import annotations

import pytest

from tests.api.conftest import app, emptied, postgres_app, surface_postgres
from tests.cli.conftest import cli
from tests.dashboard.conftest import any_pages, pages
from tests.http.conftest import any_web, control_plane, make_web, ojs, unlimited, url, web
from tests.kernel.chain.conftest import silent

__all__ = [
    "any_pages",
    "any_web",
    "app",
    "cli",
    "control_plane",
    "make_web",
    "ojs",
    "pages",
    "postgres_app",
    "silent",
    "surface_postgres",
    "unlimited",
    "url",
    "web",
]
_SURFACES = ("test_api", "test_http", "test_page")


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> str:
    """The shared PostgreSQL database of the surfaces, with no rows; a fresh one for the tests of the layers below."""
    if request.path.name.startswith(_SURFACES):
        return emptied(request.getfixturevalue("surface_postgres"))
    fresh: str = request.getfixturevalue("fresh_postgres_url")
    return fresh
