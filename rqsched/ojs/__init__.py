"""The Open Job Spec surface under `/ojs`: cron jobs, and their runs for workers of any language."""

from rqsched.ojs.errors import SURFACE
from rqsched.ojs.requests import REQUESTS
from rqsched.ojs.responses import REFUSED
from rqsched.ojs.router import router

__all__ = ["REFUSED", "REQUESTS", "SURFACE", "router"]
