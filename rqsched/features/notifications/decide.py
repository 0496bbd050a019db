"""Compute the deliveries of a Change: its notifications, each to one destination. Pure.

The transaction that records an event also writes the rows of its deliveries. After the commit, an RQ job sends each
delivery. A delivery and its uid are computed only from the Change. So every process that enqueues the jobs of the
Change, even a second time, computes the same uids (docs/alerts.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote

from rqsched.errors import InvalidInputError, error_line
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.delays import DELIVERY_BACKOFF, PING_BACKOFF, retry_at
from rqsched.kernel.decide.ids import derived_uid, iso_utc
from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule, dumps
from rqsched.kernel.decide.notifications import ALARMS, Notifications, hidden
from rqsched.kernel.decide.occurrences import longest_delay
from rqsched.kernel.decide.settle_decision import has_failed_last
from rqsched.when.spec import Cron

MAX_MINUTES = 40_320
"""The longest margin, and the longest run time, that a monitor of Sentry may have: 28 days."""
MAX_ERROR = 600
"""The maximum number of characters that are stored of a failed attempt's error."""
NO_ANSWER = "no answer: "
"""If a destination did not answer in time, the stored error begins with this. Other deliveries to the destination are
then put off, too."""
STARTED, SUCCEEDED, FAILED = "started", "succeeded", "failed"
"""The states that a heartbeat or check-in reports. They are the `event_type` of its delivery."""


class DeliveryKind(StrEnum):
    """How a delivery reaches its destination."""

    WORKFLOW = "workflow"
    """A workflow of the application is run with the message."""
    WEBHOOK = "webhook"
    """The message is posted to a URL, signed."""
    HEARTBEAT = "heartbeat"
    """A URL is pinged."""
    SENTRY = "sentry"
    """A check-in is sent to a monitor of Sentry."""


PINGS = frozenset({DeliveryKind.HEARTBEAT, DeliveryKind.SENTRY})
"""The kinds that report a state, not an event. A newer ping replaces an older ping that has not arrived. The row of a
ping that has arrived is deleted."""


class DeliveryStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"
    """It waits for a worker, or for its next attempt."""
    RUNNING = "running"
    """A process delivers it."""
    SUCCEEDED = "succeeded"
    """It arrived."""
    FAILED = "failed"
    """Every attempt failed."""


def require_delivery_status(status: str | None) -> None:
    """Check the name of a delivery's status; raises InvalidInputError."""
    if status is not None and status not in list(DeliveryStatus):
        raise InvalidInputError("status", f"{status!r} is not one of {', '.join(DeliveryStatus)}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one destination."""

    uid: str
    """Its uid, computed from the Change, the kind and the destination, so that a repetition gives the same uid."""
    schedule_uid: str
    """The schedule that the message is about."""
    run_uid: str | None
    """The run that the message is about; None if it is only about the schedule."""
    kind: DeliveryKind
    """How it is delivered."""
    destination: str
    """The name of the workflow, the URL, or the slug of the monitor."""
    event_type: str
    """The type of the audit event, or the state that a ping reports."""
    payload: str
    """JSON: the message."""
    created_at: datetime
    """When its row was written."""
    due_at: datetime
    """When the next attempt is due. During an attempt, the instant after which the attempt counts as lost."""
    status: DeliveryStatus = DeliveryStatus.PENDING
    """The status of the delivery."""
    attempt: int = 1
    """The current attempt, from 1."""
    queue: str | None = None
    """The queue of its jobs; None for the default one."""
    connection: str | None = None
    """The named Redis of that queue; None for the main one."""
    timeout: int | None = None
    """How many seconds an attempt may take; None means the value of the settings."""
    error: str | None = None
    """Why the newest attempt failed; None if no attempt failed."""
    worker: str | None = None
    """The process of the newest attempt; None before the first."""
    started_at: datetime | None = None
    """When the newest attempt began; None before the first."""
    ended_at: datetime | None = None
    """When it arrived or was given up; None while neither has happened."""


def shown_destination(delivery: Delivery) -> str:
    """Return the destination of a delivery for people: only the host of a URL, which may hold a secret."""
    is_url = delivery.kind in {DeliveryKind.WEBHOOK, DeliveryKind.HEARTBEAT}
    return hidden(delivery.destination) if is_url else delivery.destination


class Configured(NamedTuple):
    """The destinations that the settings name for every schedule."""

    webhook: str | None = None
    """The URL to which ALARMS are posted, or None."""
    heartbeat: str | None = None
    """The URL to ping, or None. `{namespace}` and `{schedule_id}` in it are replaced."""
    sentry: bool = False
    """Whether each schedule's runs check in at Sentry, under the schedule's id."""
    queue: str | None = None
    """The queue of deliveries; None means the queue of the notified workflow, or else the queue of the run."""


def deliveries_of(change: Change, configured: Configured) -> list[Delivery]:
    """Return the deliveries of a Change: messages about its events, and pings about the runs that end in it."""
    owed, first = list[Delivery](), change.after.event_sequence - len(change.events) + 1
    for sequence, event in enumerate(change.events, first):
        for kind, destination in _receivers(change, event, configured):
            owed.append(_message(change, event, sequence, kind, destination, configured))
    for before, run in change.changed_runs:
        said = _ENDS.get(run.status) if run.expired_at is None else FAILED
        if said is not None and before.status is not run.status:
            owed += _pings_of(change.after, run, said, configured, change.after.updated_at)
    return owed


_ENDS = {RunStatus.SUCCEEDED: SUCCEEDED, RunStatus.FAILED: FAILED, RunStatus.LOST: FAILED}


def deliveries_of_start(schedule: Schedule, run: Run, configured: Configured, now: datetime) -> list[Delivery]:
    """Return the pings about the start of an attempt."""
    return list(_pings_of(schedule, run, STARTED, configured, now))


def _receivers(change: Change, event: Event, configured: Configured) -> Iterator[tuple[DeliveryKind, str]]:
    """Yield the receivers of an event: the workflow for failures or recoveries, and the webhook."""
    definition = change.after.definition
    wanted, defaults = definition.parsed_notifications, definition.parsed_defaults
    if event.type in {audit.RUN_FAILED, audit.RUN_LOST, audit.RUN_EXPIRED, audit.RUN_LONG, audit.OVERDUE}:
        workflow = wanted.on_failure or defaults.get("on_failure")
    else:
        is_recovery = event.type == audit.RUN_SUCCEEDED and _was_told(change, event.run_uid)
        workflow = (wanted.on_recovery or defaults.get("on_recovery")) if is_recovery else None
    if workflow is not None:
        yield DeliveryKind.WORKFLOW, workflow
    webhook = wanted.webhook or configured.webhook
    if webhook is not None and event.type in (wanted.events or ALARMS):
        yield DeliveryKind.WEBHOOK, webhook


def _was_told(change: Change, run_uid: str | None) -> bool:
    """Return whether a success ends a reported failure. A failed attempt of the same run is not such a failure.

    The success of a copy ends no failure of the schedule.
    """
    before = change.before
    run = next((run for run, _ in change.changed_runs if run.uid == run_uid), None)
    if before is None or run is None:
        return False
    was_failing = has_failed_last(before) or before.overdue_since is not None
    return run.long_at is not None or (was_failing and run.copied_from is None)


def _message(
    change: Change, event: Event, sequence: int, kind: DeliveryKind, destination: str, configured: Configured
) -> Delivery:
    schedule, now = change.after, change.after.updated_at
    uid = derived_uid(now, schedule.uid, sequence, kind.value, destination)
    run = next((run for _, run in change.changed_runs if run.uid == event.run_uid), None)
    data = {**event.payload, **_named(schedule)}
    message = {"id": uid, "event": event.type, "sequence": sequence, "recorded_at": iso_utc(now), "data": data}
    return _delivery(uid, schedule, run, kind, destination, event.type, message, configured, now)


def _named(schedule: Schedule) -> dict[str, Any]:
    return {
        "schedule_id": schedule.schedule_id,
        "schedule_uid": schedule.uid,
        "namespace": schedule.namespace,
        "workflow": schedule.definition.workflow,
    }


def _pings_of(schedule: Schedule, run: Run, said: str, configured: Configured, now: datetime) -> Iterator[Delivery]:
    """Yield the pings about a run. A backfilled run and a copy have none, because they are about the past."""
    if run.kind is RunKind.BACKFILL or run.copied_from is not None:
        return
    wanted = schedule.definition.parsed_notifications
    duration = run.started_at and round((now - run.started_at).total_seconds(), 3)
    for kind, destination in _monitors(schedule, wanted, configured):
        uid = derived_uid(now, run.uid, run.attempt, said, kind.value, destination)
        data = {
            "workflow_run_id": run.uid,
            "attempt": run.attempt,
            "error": error_line(run.error)[:MAX_ERROR] if said == FAILED else None,
            "duration_seconds": duration if said != STARTED else None,
            "monitor": _monitor_config(schedule) if kind is DeliveryKind.SENTRY else None,
            **_named(schedule),
        }
        known = {name: value for name, value in data.items() if value is not None}
        message = {"id": uid, "event": said, "recorded_at": iso_utc(now), "data": known}
        yield _delivery(uid, schedule, run, kind, destination, said, message, configured, now)


def _monitor_config(schedule: Schedule) -> dict[str, Any] | None:
    """Return the configuration with which Sentry creates a monitor; None unless the spec is one cron of five fields.

    Sentry reads no other timing. The configuration has two values that Sentry would otherwise guess: by how many
    minutes a fire may be delayed, and how many minutes a run may take. A spec with exclusions gets no configuration,
    because Sentry would report each excluded occurrence as missed.
    """
    members = schedule.spec.members
    is_plain = len(members) == 1 and not schedule.spec.exclude and not schedule.spec.newer
    cron = members[0] if is_plain and isinstance(members[0], Cron) else None
    if cron is None or not _PLAIN_CRON.fullmatch(cron.plain):
        return None
    timezone = cron.timezone or schedule.spec.timezone
    delay, longest = longest_delay(schedule), _longest(schedule)
    return {
        "schedule": {"type": "crontab", "value": cron.plain},
        "timezone": timezone,
        **({"checkin_margin": 1 + _minutes(delay)} if delay else {}),
        **({"max_runtime": _minutes(longest)} if longest else {}),
    }


def _longest(schedule: Schedule) -> timedelta | None:
    """Return the longest duration of a schedule's runs: the expected duration, else the timeout."""
    definition = schedule.definition
    seconds = definition.timeout or definition.parsed_defaults.get("timeout")
    has_targets = schedule.policies.targets or definition.parsed_defaults.get("targets")  # the timeout is per target
    return schedule.expect_duration or (timedelta(seconds=seconds) if seconds and not has_targets else None)


def _minutes(span: timedelta) -> int:
    """Return a span in minutes, rounded up, and at most the maximum that Sentry accepts."""
    return min(-(-span // timedelta(minutes=1)), MAX_MINUTES)


_PLAIN_CRON = re.compile(r"[0-9*/,-]+( [0-9*/,-]+){4}")


def _monitors(schedule: Schedule, wanted: Notifications, configured: Configured) -> Iterator[tuple[DeliveryKind, str]]:
    heartbeat = wanted.heartbeat or _filled_in(configured.heartbeat, schedule)
    if heartbeat is not None:
        yield DeliveryKind.HEARTBEAT, heartbeat
    slug = wanted.sentry or (schedule.schedule_id if configured.sentry else None)
    if slug is not None:
        yield DeliveryKind.SENTRY, slug


def _filled_in(template: str | None, schedule: Schedule) -> str | None:
    """Put a schedule's namespace and id into a URL, escaped so that they cannot change the rest of the path."""
    if template is None:
        return None
    named = {"namespace": schedule.namespace, "schedule_id": schedule.schedule_id}
    for name, value in named.items():
        template = template.replace("{" + name + "}", quote(value, safe=""))
    return template


def _delivery(
    uid: str,
    schedule: Schedule,
    run: Run | None,
    kind: DeliveryKind,
    destination: str,
    event_type: str,
    message: dict[str, Any],
    configured: Configured,
    now: datetime,
) -> Delivery:
    """Build the delivery of a message.

    Its queue is the settings' queue, or else the run's queue, which some worker serves.
    """
    definition, defaults = schedule.definition, schedule.definition.parsed_defaults
    queue = run.queue if run else definition.queue or defaults.get("queue")
    connection = run.connection if run else definition.connection or defaults.get("connection")
    is_external = definition.executor != "rq"  # perhaps no RQ worker serves its queue
    return Delivery(
        uid=uid,
        schedule_uid=schedule.uid,
        run_uid=run.uid if run else None,
        kind=kind,
        destination=destination,
        event_type=event_type,
        payload=dumps(message),
        created_at=now,
        due_at=now,
        queue=configured.queue or (None if is_external else queue),
        connection=None if configured.queue or is_external else connection,
    )


def next_attempt_at(delivery: Delivery, now: datetime) -> datetime | None:
    """Return when a delivery is tried again after a failed attempt; None if it is given up."""
    policy = PING_BACKOFF if delivery.kind in PINGS else DELIVERY_BACKOFF
    return retry_at(policy, delivery.attempt, now=now, interval=timedelta(minutes=1), salt=delivery.uid)
