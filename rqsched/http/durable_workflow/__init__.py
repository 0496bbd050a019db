"""The Durable Workflow surface under `/api/schedules`, so that its own clients work unmodified."""

from fastapi import APIRouter

from rqsched.http import openapi as document
from rqsched.http.durable_workflow import discovery
from rqsched.http.durable_workflow import schedules as routes
from rqsched.http.durable_workflow.errors import SURFACE
from rqsched.http.durable_workflow.schemas import REFUSED

router = APIRouter(responses=REFUSED.of(*document.ANY))
router.include_router(discovery.router)
router.include_router(routes.router)

__all__ = ["REFUSED", "SURFACE", "router"]
