"""The Open Job Spec surface under `/ojs`: cron jobs, and their runs for workers of any language."""

from rqsched.http.ojs.errors import SURFACE
from rqsched.http.ojs.requests import REQUESTS
from rqsched.http.ojs.responses import REFUSED
from rqsched.http.ojs.router import router

__all__ = ["REFUSED", "REQUESTS", "SURFACE", "router"]
