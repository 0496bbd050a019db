"""The Durable Workflow surface under `/api/schedules`, so that its own clients work unmodified."""

from fastapi import APIRouter

from . import discovery, routes
from .forms import SURFACE

router = APIRouter()
router.include_router(discovery.router)
router.include_router(routes.router)

__all__ = ["SURFACE", "router"]
