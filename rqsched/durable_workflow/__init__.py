"""The Durable Workflow surface under `/api/schedules`, so that its own clients work unmodified."""

from rqsched.durable_workflow.errors import SURFACE
from rqsched.durable_workflow.responses import REFUSED
from rqsched.durable_workflow.routes import router

__all__ = ["REFUSED", "SURFACE", "router"]
