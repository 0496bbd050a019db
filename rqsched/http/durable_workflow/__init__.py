"""The Durable Workflow surface under `/api/schedules`, so that its own clients work unmodified."""

from fastapi import APIRouter

from rqsched.http import document

from . import discovery, routes
from .forms import SURFACE
from .shapes import REFUSED

router = APIRouter(responses=REFUSED.of(*document.ANY))
router.include_router(discovery.router)
router.include_router(routes.router)

__all__ = ["REFUSED", "SURFACE", "router"]
