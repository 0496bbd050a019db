"""A Django project of the reader's, in a folder, and the commands its users type."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import BIN, REPOSITORY, Process, Processes

SETTINGS = """
import json
import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "only good for a test"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "urls"
ASGI_APPLICATION = "asgi.application"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "rqsched.contrib.django",
    "visits",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]}}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
USE_TZ = True
globals().update(json.loads(os.environ.get("SETTINGS", "{}")))
"""
MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""
URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("jobs/", include("rqsched.contrib.django.urls"))]
"""
ASGI = """
from django.core.asgi import get_asgi_application

application = get_asgi_application()
"""
SCHEDULES = """
from django.contrib.auth.models import User

from rqsched import workflow
from rqsched.contrib.django import scheduler


@workflow("rename")
def rename(pk, name):
    User.objects.filter(pk=pk).update(first_name=name)
    return User.objects.count()


@scheduler.cron("0 3 * * *", queue="slow")
def tidy_up():
    pass
"""


@dataclass
class Project(Processes):
    """A project with one app, `visits`, whose schedules.py has a workflow and a declared schedule."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Overrides of the settings above."""
    database_url: str = ""
    """The URL of the tables; empty means the project's SQLite."""

    def __post_init__(self) -> None:
        self.write("settings.py", SETTINGS)
        self.write("manage.py", MANAGE)
        self.write("urls.py", URLS)
        self.write(
            "asgi.py", "from django.core.asgi import get_asgi_application\n\napplication = get_asgi_application()\n"
        )
        self.write("visits/__init__.py", "")
        self.write("visits/schedules.py", SCHEDULES)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(self, *words: str, **differs: str) -> Process:
        """Start a command in the project's folder."""
        program, *arguments = words
        path = sys.executable if program == "python" else BIN / program
        return self.start([path, *arguments], cwd=self.folder, SETTINGS=json.dumps(self.settings), **differs)

    def manage(self, *words: str, code: int = 0, **differs: str) -> str:
        """Run a command of manage.py to its end, and return its output."""
        process = self.run("python", "manage.py", *words, **differs)
        assert process.wait(timeout=120) == code, process.log()
        return process.log()

    def python(self, script: str) -> str:
        """Run a script with Django set up to its end, and return its output."""
        process = self.run("python", "-c", f"import json\nimport django\ndjango.setup()\n{script}")
        assert process.wait(timeout=120) == 0, process.log()
        return process.log()


@pytest.fixture
def project(redis_url: str, tmp_path: Path) -> Iterator[Project]:
    environment = {
        "PYTHONPATH": os.pathsep.join([".", str(REPOSITORY)]),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "DJANGO_SETTINGS_MODULE": "settings",
    }
    project = Project(tmp_path, environment)
    project.settings["RQSCHED"] = {"REDIS_URL": redis_url}
    yield project
    project.close()
