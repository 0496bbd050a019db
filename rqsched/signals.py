"""Signals: what subscribers of this process are told after a commit, in our words and in Open Job Spec's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from . import audit
from .audit import Event
from .ids import iso_utc, uid_to_uuid
from .state import Change

_log = logging.getLogger(__name__)

TRIGGERED = "cron.triggered"
SKIPPED = "cron.skipped"
EVERY = "*"
_SKIP_REASONS = {"overlap_policy_skip": "overlap_skip", "buffer_full": "overlap_skip"}

Subscriber = Callable[[dict[str, Any]], None]


class Signals:
    """The subscribers of one scheduler, by event name."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Subscriber]] = {}

    def add(self, name: str, subscriber: Subscriber) -> None:
        """Add a subscriber to an event type, a signal or `*`."""
        self._subscribers.setdefault(name, []).append(subscriber)

    def emit(self, change: Change, event: Event) -> None:
        """Tell everyone who asked; a subscriber that raises is logged and harms nothing."""
        if not self._subscribers:
            return
        ours = {"event": event.type, "data": {"schedule_id": change.after.schedule_id, **event.payload}}
        messages = [(event.type, ours), *_open_job_spec(change, event)]
        for name, message in messages:
            for subscriber in [*self._subscribers.get(name, ()), *self._subscribers.get(EVERY, ())]:
                _call(subscriber, message)


def _call(subscriber: Subscriber, message: dict[str, Any]) -> None:
    try:
        subscriber(message)
    except Exception:  # noqa: BLE001
        _log.exception("a subscriber of %s failed", message["event"], extra={"action": "subscriber_failed"})


def _open_job_spec(change: Change, event: Event) -> list[tuple[str, dict[str, Any]]]:
    """Translate to the signals of the Open Job Spec cron chapter, with its data keys."""
    schedule = change.after
    if event.type == audit.TRIGGERED and event.run_uid is not None:
        data = {
            "cron_name": schedule.schedule_id,
            "job_id": uid_to_uuid(event.run_uid),
            "job_type": schedule.definition.workflow,
            "run_count": event.payload["trigger_number"],
            "scheduled_time": event.payload["occurrence_time"],
            "actual_time": iso_utc(schedule.updated_at),
        }
        return [(TRIGGERED, {"event": TRIGGERED, "data": data})]
    if event.type == audit.SKIPPED:
        return [(SKIPPED, {"event": SKIPPED, "data": _skip(schedule.schedule_id, event.payload)})]
    return []


def _skip(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    blocking = payload.get("blocking_run_id")
    data = {
        "cron_name": name,
        "reason": _SKIP_REASONS.get(payload["reason"], payload["reason"]),
        "active_job_id": blocking and uid_to_uuid(blocking),
        "scheduled_time": payload.get("occurrence_time"),
    }
    return {key: value for key, value in data.items() if value is not None}
