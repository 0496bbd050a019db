"""A Django project with django-celery-beat in its own process, because a process can have only one project.

It takes a command per line as a JSON list, `[command, argument]`, and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import sqlalchemy as sa


class DjangoBeat:
    """The project as the tests see it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def create(self, *tasks: dict[str, Any]) -> None:
        """Periodic tasks are saved by their models."""
        self._ask("create", tasks)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Every periodic task by its name, as Django reads it."""
        return {row["name"]: row for row in self._ask("rows", None)}

    def beat(self, seconds: float, *, until: int = 1_000_000) -> list[str]:
        """Let the DatabaseScheduler work for so long, or send so many, and return the names of the sent tasks."""
        return list(self._ask("beat", [seconds, until]))

    def save(self, name: str, **fields: Any) -> None:
        """A periodic task is changed as in Django's admin."""
        self._ask("save", [name, fields])

    def update(self, **fields: Any) -> None:
        """Every row is changed, and no beat is told."""
        self._ask("update", fields)

    def _ask(self, command: str, argument: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, argument]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the project has ended; its error is above"
        return json.loads(answer)


@contextmanager
def open_project(url: str, **settings: Any) -> Iterator[DjangoBeat]:
    """A project over an empty database, whose tables are migrated; it has ended afterwards."""
    command = [sys.executable, "-m", __name__, url, json.dumps(settings)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield DjangoBeat(process)
        finally:
            process.kill()


def _database(url: str) -> dict[str, Any]:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parsed.database}
    place = {"HOST": parsed.host, "PORT": parsed.port, "USER": parsed.username, "NAME": parsed.database}
    return {"ENGINE": "django.db.backends.postgresql", **place}


def load_crontab() -> None:
    """Load the module of python-crontab: the package crontab, which rq-scheduler needs, hides it where both are."""
    place = distribution("python-crontab").locate_file("crontab.py")
    spec = spec_from_file_location("crontab", str(place))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["crontab"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _serve(url: str, differs: dict[str, Any]) -> None:
    load_crontab()
    import django  # noqa: PLC0415 - the process of the tests loads no project
    from django.conf import settings  # noqa: PLC0415

    usual = {
        "DATABASES": {"default": _database(url)},
        "INSTALLED_APPS": ["django_celery_beat"],
        "USE_TZ": True,
        "TIME_ZONE": "Europe/Berlin",
        "DEFAULT_AUTO_FIELD": "django.db.models.AutoField",
        "SECRET_KEY": "of no use",
    }
    settings.configure(**{**usual, **differs})
    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    from tests.importers.django_beat_project import Project  # noqa: PLC0415 - it needs the models

    project = Project()
    for line in sys.stdin:
        command, argument = json.loads(line)
        print(json.dumps(getattr(project, command)(argument)), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
