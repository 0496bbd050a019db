"""Sets Django up in processes that were started without it, such as a spawned work horse: they import this module.

Setting it up imports `schedules.py` of every app. DJANGO_SETTINGS_MODULE must be set, as `manage.py` does. For a plain
`rqsched worker` outside of `manage.py` name this module in RQSCHED_IMPORTS.
"""

from __future__ import annotations

import django
from django.apps import apps

if not apps.ready:
    django.setup()
