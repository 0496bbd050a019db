"""Fixtures of the features: those of the surfaces they have."""

from __future__ import annotations

from tests.api.conftest import app, postgres_app, postgres_url, surface_postgres
from tests.cli.conftest import cli
from tests.dashboard.conftest import any_pages, pages
from tests.http.conftest import any_web, make_web, unlimited, url, web
from tests.kernel.chain.conftest import silent

__all__ = [
    "any_pages",
    "any_web",
    "app",
    "cli",
    "make_web",
    "pages",
    "postgres_app",
    "postgres_url",
    "silent",
    "surface_postgres",
    "unlimited",
    "url",
    "web",
]
