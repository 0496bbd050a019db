"""The checks of `manage.py check`. They open no connection. `manage.py rqsched doctor` checks the servers."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.urls import NoReverseMatch, get_resolver, reverse
from django.utils.module_loading import import_string

from rqsched.config import Settings
from rqsched.contrib.django.project import OPERATOR, own_settings
from rqsched.errors import ConfigError

_HINT = "See RQSCHED, DATABASES and RQ_QUEUES in the settings, and RQSCHED_* in the environment."


def check_settings(app_configs: Any = None, **others: Any) -> list[CheckMessage]:
    """Report settings that are missing, wrong or not suitable for production."""
    del app_configs, others
    try:
        settings = Settings()
    except ConfigError as error:
        return [Error(str(error), hint=_HINT, id="rqsched.E001")]
    if settings.redis_url is None and not django_settings.DEBUG:
        return [
            Warning(
                "rqsched has no Redis and starts its own Valkey, which serves this machine only.",
                hint="Set RQSCHED['REDIS_URL'], or RQ_QUEUES['default'] of django-rq.",
                id="rqsched.W001",
            )
        ]
    return []


def check_tasks(app_configs: Any = None, **others: Any) -> list[CheckMessage]:
    """If TASKS names rqsched's backend and the task framework is missing, report it. The framework checks the rest."""
    del app_configs, others
    for alias, params in getattr(django_settings, "TASKS", {}).items():
        try:
            import_string(params.get("BACKEND", ""))
        except ModuleNotFoundError as error:
            if error.name == "django_tasks":
                text = f"TASKS[{alias!r}] needs Django's tasks framework, which Django has from 6.0 on."
                hint = "pip install django-tasks, and insert 'django_tasks' in INSTALLED_APPS."
                return [Error(text, hint=hint, id="rqsched.E006")]
        except ImportError:
            continue
    return []


def check_dashboard(app_configs: Any = None, **others: Any) -> list[CheckMessage]:
    """If the project's URLs include the dashboard, report what the dashboard needs and does not find."""
    del app_configs, others
    try:
        operator = own_settings().get(OPERATOR)
    except ConfigError:
        return []  # E001 reports it
    found: list[CheckMessage] = []
    if isinstance(operator, str):
        try:
            import_string(operator)
        except ImportError as error:
            hint = "Write the dotted path of a function that takes a request and returns a rqsched.dashboard.Principal."
            found.append(Error(f"RQSCHED[{OPERATOR!r}] cannot be imported: {error}.", hint=hint, id="rqsched.E002"))
    if not _has_dashboard():
        return found
    missing = [app for app in ("django.contrib.auth", "django.contrib.sessions") if not apps.is_installed(app)]
    if missing and operator is None:
        text = f"The dashboard needs users that Django authenticates, but {' and '.join(missing)} not installed."
        hint = f"Add it to INSTALLED_APPS with its middleware, or set RQSCHED[{OPERATOR!r}] to a function of your own."
        found.append(Error(text.replace(" not ", " is not ", 1), hint=hint, id="rqsched.E003"))
    return found


def _has_dashboard() -> bool:
    """Return whether the project's URLs include the dashboard. Django's own checks report broken URLs."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return False
    try:
        get_resolver()
        reverse("rqsched-dashboard")
    except NoReverseMatch:
        return False
    except Exception:  # noqa: BLE001 - a module of URLs may raise anything
        return False
    return True
