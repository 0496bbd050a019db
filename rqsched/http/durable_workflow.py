"""The Durable Workflow surface."""

from __future__ import annotations

from fastapi import APIRouter

from .surface import Surface

SURFACE = Surface("/api")
router = APIRouter(prefix="/api", tags=["durable-workflow"])
