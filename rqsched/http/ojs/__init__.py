"""The Open Job Spec surface under `/ojs`: cron jobs, and the runs that workers of any language execute."""

from .forms import SURFACE
from .routing import router
from .shapes import REFUSED, SENT

__all__ = ["REFUSED", "SENT", "SURFACE", "router"]
