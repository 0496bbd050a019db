"""The Open Job Spec surface under `/ojs`: cron jobs, and the runs that workers of any language execute."""

from rqsched.http.ojs.errors import SURFACE
from rqsched.http.ojs.router import router
from rqsched.http.ojs.schemas import REFUSED, SENT

__all__ = ["REFUSED", "SENT", "SURFACE", "router"]
