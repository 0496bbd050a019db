"""The Django app: it sets rqsched up when Django starts, and renews database connections around each run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core import checks
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started
from django.db import close_old_connections
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules, import_string

from rqsched.config import Settings, provide
from rqsched.contrib.django import project
from rqsched.contrib.django.checks import check_dashboard, check_settings, check_tasks
from rqsched.contrib.django.lazy import scheduler
from rqsched.errors import ConfigError, speak_with
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.workflows import around_runs

_log = logging.getLogger(__name__)


class RqschedConfig(AppConfig):
    """rqsched in INSTALLED_APPS."""

    name = "rqsched.contrib.django"
    label = "rqsched"
    verbose_name = "Schedules"

    def ready(self) -> None:
        """Use the project's settings, and name them in messages. Import `schedules.py` of every installed app."""
        provide(project.provided)
        speak_with(project.in_words)
        around_runs(fresh_connections)
        checks.register(check_settings, "rqsched")
        checks.register(check_dashboard, "rqsched")
        checks.register(check_tasks, "rqsched")
        post_migrate.connect(upgrade, sender=self)
        request_started.connect(keep_recovering)
        import_task_backends()
        autodiscover_modules("schedules")


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Before and after a run, close connections that are broken or older than CONN_MAX_AGE.

    Django does the same around a request.
    """
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def import_task_backends() -> None:
    """Import the backends of TASKS, because the import of rqsched's backend registers how workers execute tasks.

    An import error is ignored here, because Django reports it when the backend is used.
    """
    for params in getattr(django_settings, "TASKS", {}).values():
        with suppress(ImportError):
            import_string(params.get("BACKEND", ""))


def keep_recovering(sender: type, **others: Any) -> None:
    """Make reconcile passes in a web server, from its first request on. Django's test client does not start them."""
    del others
    if issubclass(sender, WSGIHandler | ASGIHandler):
        scheduler.keep_recovering()


def upgrade(using: str, **others: Any) -> None:
    """After `manage.py migrate`, upgrade rqsched's tables if they are in the database that was migrated."""
    del others
    if not project.shares_database() or using != project.alias():
        return
    try:
        settings = Settings()
    except ConfigError as error:
        # `manage.py check` reports this error. It must not stop the migration of a test database in memory, which needs
        # no tables of rqsched.
        _log.warning("rqsched's tables are not upgraded: %s", error, extra={"action": "schema_not_upgraded"})
        return
    with closing(Database(settings.database_url or "", pooler=settings.database_pooler)) as database:
        schema_version.upgrade(database)
