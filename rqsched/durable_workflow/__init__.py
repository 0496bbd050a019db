"""The Durable Workflow surface under `/api/schedules`. Clients of Durable Workflow work with it unmodified."""

from rqsched.durable_workflow.errors import SURFACE
from rqsched.durable_workflow.responses import REFUSED
from rqsched.durable_workflow.routes import router

__all__ = ["REFUSED", "SURFACE", "router"]
