"""The native surface under `/api/v1/`: all one does to a schedule, in our words and in the Pipelit document's."""

from rqsched.http.native.router import SURFACE, router

__all__ = ["SURFACE", "router"]
