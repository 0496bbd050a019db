"""Fixtures of the dashboard's tests."""

from __future__ import annotations

import pytest

from tests.cli.conftest import cli
from tests.http.conftest import any_web, make_web, web
from tests.support.pages import Pages
from tests.support.web import Web

__all__ = ["any_web", "cli", "make_web", "web"]


@pytest.fixture
def pages(web: Web) -> Pages:
    """The pages over SQLite, as this machine sees them without tokens."""
    return Pages(web)


@pytest.fixture
def any_pages(any_web: Web) -> Pages:
    """The pages over each database in turn."""
    return Pages(any_web)
