"""Fixtures of the simulation: those of its surfaces."""

from __future__ import annotations

from tests.api.conftest import postgres_url, surface_postgres
from tests.cli.conftest import cli
from tests.dashboard.conftest import pages
from tests.http.conftest import make_web, web

__all__ = ["cli", "make_web", "pages", "postgres_url", "surface_postgres", "web"]
