"""Set Django up in processes that were started without it, such as a spawned work horse. They import this module.

The set-up imports `schedules.py` of every app. DJANGO_SETTINGS_MODULE must be set, which `manage.py` does. If a worker
is started by `rqsched worker`, without `manage.py`, name this module in RQSCHED_IMPORTS.
"""

from __future__ import annotations

import django
from django.apps import apps

if not apps.ready:
    django.setup()
