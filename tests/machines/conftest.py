"""Fixtures of the state machines: the database of the Python surface."""

from tests.api.conftest import postgres_url, surface_postgres

__all__ = ["postgres_url", "surface_postgres"]
