"""Django's settings. rqsched has its own, in `RQSCHED_*`."""

import os

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only good for an example")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "examples.django_app.urls"
WSGI_APPLICATION = "examples.django_app.wsgi.application"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
USE_TZ = True
TIME_ZONE = "UTC"  # Django sets it for the process, so a worker's logs use it too

EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "mails"
