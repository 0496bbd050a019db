"""Signals: call subscribers in this process after a commit. Names are our event types and signals of Open Job Spec.

The process that commits calls the subscribers. Fires are committed by the dispatcher of `rqsched worker`, by a plain
`rq worker`, or by `tick()`. So a subscriber registers with `on` in a module of RQSCHED_IMPORTS, which all of these
import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from rqsched.errors import InvalidInputError
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import CONTRACT, Event
from rqsched.kernel.decide.ids import iso_utc, uid_to_uuid
from rqsched.kernel.decide.model import Change

_log = logging.getLogger(__name__)

TRIGGERED = "cron.triggered"
SKIPPED = "cron.skipped"
EVERY = "*"
_SKIP_REASONS = {"overlap_policy_skip": "overlap_skip", "buffer_full": "overlap_skip"}

Subscriber = Callable[[dict[str, Any]], Any]
"""Called with `{"event": name, "data": {...}}`; its result is ignored."""
S = TypeVar("S", bound=Subscriber)
NAMES = frozenset({*CONTRACT, TRIGGERED, SKIPPED, EVERY})
"""Every name that can be subscribed to."""


class Signals:
    """The subscribers of one scheduler, or of a whole process, by event name."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Subscriber]] = {}

    def add(self, name: str, subscriber: Subscriber) -> None:
        """Add a subscriber to an event type, a signal or `*`; raises InvalidInputError for any other name."""
        if name not in NAMES:
            raise InvalidInputError("name", f"{name!r} is not an event; the events are {', '.join(sorted(NAMES))}")
        self._subscribers.setdefault(name, []).append(subscriber)

    def remove(self, name: str, subscriber: Subscriber) -> None:
        """Remove a subscriber; do nothing if it is not subscribed."""
        if subscriber in self._subscribers.get(name, ()):
            self._subscribers[name].remove(subscriber)

    def emit(self, change: Change, event: Event) -> None:
        """Call every subscriber of the event. If a subscriber raises an error, log it and call the others."""
        if not self._subscribers:
            return
        ours = {"event": event.type, "data": {"schedule_id": change.after.schedule_id, **event.payload}}
        messages = [(event.type, ours), *_open_job_spec(change, event)]
        for name, message in messages:
            for subscriber in [*self._subscribers.get(name, ()), *self._subscribers.get(EVERY, ())]:
                _call(subscriber, message)


everywhere = Signals()
"""The subscribers of `on`, which runs at import like `@workflow`, before there is a scheduler or worker."""


def on(name: str) -> Callable[[S], S]:
    """Call a function for an event that any scheduler or worker of this process commits.

    >>> @on("cron.skipped")
    ... def warn(message: dict[str, Any]) -> None:
    ...     print(message["data"]["reason"])
    """

    def register(subscriber: S) -> S:
        everywhere.add(name, subscriber)
        return subscriber

    return register


def _call(subscriber: Subscriber, message: dict[str, Any]) -> None:
    try:
        subscriber(message)
    except Exception:  # noqa: BLE001
        _log.exception("a subscriber of %s failed", message["event"], extra={"action": "subscriber_failed"})


def _open_job_spec(change: Change, event: Event) -> list[tuple[str, dict[str, Any]]]:
    """Translate an event to the signals of the Open Job Spec cron chapter, with its data keys."""
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
