"""The module for `rq worker -c`: it sets up Django and names Redis."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clinic.settings")
django.setup()

REDIS_URL = os.environ["REDIS_URL"]
