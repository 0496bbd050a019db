"""What a server boots: `recover()` repairs what Redis lost while nobody looked."""

import os

from django.core.wsgi import get_wsgi_application

from .scheduling import get_scheduler

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")

application = get_wsgi_application()
get_scheduler().recover()
