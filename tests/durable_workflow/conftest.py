"""Fixtures of the Durable Workflow surface: those of the HTTP application."""

from __future__ import annotations

from tests.http.conftest import any_control_plane, any_web, control_plane, make_web, unlimited, url, web

__all__ = ["any_control_plane", "any_web", "control_plane", "make_web", "unlimited", "url", "web"]
