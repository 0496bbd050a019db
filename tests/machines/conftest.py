"""Fixtures of the state machines: those of the Python surface."""

from tests.api.conftest import any_desk, desk, make_desk, postgres_url, surface_postgres

__all__ = ["any_desk", "desk", "make_desk", "postgres_url", "surface_postgres"]
