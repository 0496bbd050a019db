"""The Durable Workflow surface under `/api/schedules`, so that its own clients work unmodified."""

from rqsched.http.durable_workflow.errors import SURFACE
from rqsched.http.durable_workflow.responses import REFUSED
from rqsched.http.durable_workflow.routes import router

__all__ = ["REFUSED", "SURFACE", "router"]
