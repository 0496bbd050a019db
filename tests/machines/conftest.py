"""Fixtures of the state machines: the database of the Python surface, and the commands."""

from __future__ import annotations

from tests.api.conftest import postgres_url, surface_postgres
from tests.cli.conftest import cli

__all__ = ["cli", "postgres_url", "surface_postgres"]
