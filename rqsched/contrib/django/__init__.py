"""rqsched in a Django project: `INSTALLED_APPS += ["rqsched.contrib.django"]`. docs/django.md shows the rest.

>>> from rqsched.contrib.django import scheduler  # doctest: +SKIP
>>> @scheduler.cron("0 3 * * *")  # in schedules.py of any installed app
... def tidy_up() -> None: ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.contrib.django.lazy import scheduler

__all__ = ["scheduler"]


def __getattr__(name: str) -> Any:
    """Import the scheduler at its first use, because Django imports this package before its settings are ready."""
    if name != "scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.lazy").scheduler
