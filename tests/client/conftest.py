"""Fixtures of the client: those of the HTTP surface."""

from tests.http.conftest import any_web, make_web, url, web

__all__ = ["any_web", "make_web", "url", "web"]
