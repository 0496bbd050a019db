"""The native surface under `/api/v1/`: every operation on a schedule, in our words and in the Pipelit document's."""

from rqsched.http.native.router import SURFACE, router

__all__ = ["SURFACE", "router"]
