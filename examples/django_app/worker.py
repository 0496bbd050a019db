"""What a worker imports: Django set up, then the workflows."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")
django.setup()

from . import jobs  # noqa: E402 - models and mail need Django to be set up

__all__ = ["jobs"]
