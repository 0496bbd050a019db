"""Imported by processes that were started without Django, such as a spawned work horse: sets Django up.

That imports `schedules.py` of every app. DJANGO_SETTINGS_MODULE must be set, as `manage.py` does. A plain `rqsched
worker` outside of `manage.py` names this module in RQSCHED_IMPORTS.
"""

from __future__ import annotations

import django
from django.apps import apps

if not apps.ready:
    django.setup()
