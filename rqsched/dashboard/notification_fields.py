"""The notifications of a schedule as fields of the form; of a URL, which may hold a secret, only where it leads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqsched.chain import operations
from rqsched.core.model import Schedule
from rqsched.core.notifications import Notifications, hidden
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import require_allowed_hosts
from rqsched.spec.duration import format_duration

WORKFLOWS, URLS = ("on_failure", "on_recovery"), ("webhook", "heartbeat")
FIELDS = (*WORKFLOWS, "expect_success_within", *URLS, "sentry")
"""The names of the fields."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def shown(schedule: Schedule) -> dict[str, str]:
    """Return what the form shows of a schedule."""
    told = schedule.definition.parsed_notifications
    urls = {name: hidden(url) if (url := getattr(told, name)) else "" for name in URLS}
    others = {name: getattr(told, name) or "" for name in (*WORKFLOWS, "sentry")}
    return {**others, **urls, "expect_success_within": length(told.expect_success_within)}


def options_of(visit: Visit, form: Mapping[str, str], schedule: Schedule | None) -> dict[str, Any]:
    """Return the options that the form changes; raises InvalidInputError, which names the field.

    A URL that is left as it is shown stays what it is, and so do the events of the webhook.
    """
    before = dict.fromkeys(FIELDS, "") if schedule is None else shown(schedule)
    given = {name: form[name].strip() for name in FIELDS if name in form}
    changed = {name: value for name, value in given.items() if value != before[name]}
    for name in WORKFLOWS:
        if (wanted := changed.get(name)) and not operations.is_registered(visit.scheduler.runtime, wanted):
            raise InvalidInputError(name, f"no workflow named {wanted[:64]!r} is registered; choose one of the list")
    options: dict[str, Any] = {name: changed[name] or None for name in FIELDS[:3] if name in changed}
    targets = {name: value or None for name, value in changed.items() if name not in options}
    if not targets:
        return options
    require_allowed_hosts(visit.scheduler, targets)
    return options | {"notifications": _kept(schedule) | targets}


def _kept(schedule: Schedule | None) -> dict[str, Any]:
    told = Notifications() if schedule is None else schedule.definition.parsed_notifications
    return {
        "webhook": told.webhook, "heartbeat": told.heartbeat, "sentry": told.sentry, "events": list(told.events) or None
    }  # fmt: skip


def length(span: timedelta | None) -> str:
    """Return a length as people write it, `26h`; one of parts of a second in ISO 8601."""
    if span is None:
        return ""
    if span.microseconds:
        return format_duration(span)
    seconds = int(span.total_seconds())
    return next(f"{seconds // size}{unit}" for size, unit in _UNITS if seconds % size == 0)
