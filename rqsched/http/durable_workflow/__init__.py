"""The Durable Workflow surface under `/api/schedules`, so that its own clients work unmodified."""

from .forms import SURFACE
from .routes import router

__all__ = ["SURFACE", "router"]
