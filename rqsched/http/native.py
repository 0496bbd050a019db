"""The native surface: `/api/v1/schedules/`."""

from __future__ import annotations

from fastapi import APIRouter

from .body import StrictRoute
from .surface import Surface

SURFACE = Surface("/api/v1", has_slash=True)
router = APIRouter(prefix="/api/v1", tags=["schedules"], route_class=StrictRoute)
