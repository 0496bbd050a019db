"""The native surface under `/api/v1/`: all one does to a schedule, in our words and in the Pipelit document's."""

from .routing import SURFACE, router

__all__ = ["SURFACE", "router"]
