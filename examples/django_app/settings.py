"""Django's settings. rqsched needs no more than its line in INSTALLED_APPS."""

import os

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only good for an example")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["examples.django_app", "rqsched.contrib.django"]
ROOT_URLCONF = "examples.django_app.urls"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
USE_TZ = True

ADMINS = [("Ada", "ada@example.org")]
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "mails"
