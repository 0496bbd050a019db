"""The Django app: what happens when Django is set up."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class RqschedConfig(AppConfig):
    """rqsched in INSTALLED_APPS."""

    name = "rqsched.contrib.django"
    label = "rqsched"
    verbose_name = "Schedules"

    def ready(self) -> None:
        """Import `schedules.py` of every installed app, so that its workflows and schedules are known."""
        autodiscover_modules("schedules")
