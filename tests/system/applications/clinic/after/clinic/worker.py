"""What `rq worker -c` imports: Django set up, and where Redis is."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clinic.settings")
django.setup()

REDIS_URL = os.environ["REDIS_URL"]
