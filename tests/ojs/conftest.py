"""Fixtures of the Open Job Spec surface: those of the HTTP application."""

from __future__ import annotations

from tests.http.conftest import any_ojs, any_web, make_web, ojs, unlimited, url, web

__all__ = ["any_ojs", "any_web", "make_web", "ojs", "unlimited", "url", "web"]
