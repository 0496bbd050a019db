"""Fixtures of the simulation: those of the Python surface and of the commands."""

from __future__ import annotations

from tests.api.conftest import postgres_url, surface_postgres
from tests.cli.conftest import cli

__all__ = ["cli", "postgres_url", "surface_postgres"]
