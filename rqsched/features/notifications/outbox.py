"""The outbox: write the deliveries of Changes in their transactions, and enqueue them after the commit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Protocol

from redis.exceptions import RedisError

from rqsched.config import Settings
from rqsched.errors import BackendUnavailableError
from rqsched.features.notifications import store as deliveries
from rqsched.features.notifications.decide import Configured, Delivery, DeliveryKind, deliveries_of, deliveries_of_start
from rqsched.kernel.decide.ids import DeliveryJobId
from rqsched.kernel.decide.model import Change, Run, Schedule
from rqsched.kernel.store import registered_workflows
from rqsched.kernel.store.database import Connection, Database
from rqsched.kernel.transport.job_queue import JobSpec
from rqsched.kernel.transport.transport import Transport
from rqsched.workflows import Registry

_log = logging.getLogger(__name__)

LEASE_SECONDS = 60
"""How many seconds after its timeout an attempt may still record its end. After that it counts as lost."""


class Parts(Protocol):
    """The parts of a process's runtime that the outbox uses."""

    settings: Settings
    """The notifications of every schedule, and the default queue and timeouts."""
    database: Database
    """The database of deliveries."""
    transport: Transport
    """Puts the jobs of deliveries on queues."""
    workflows: Registry
    """The workflows that this process knows, which notifications may run."""


class Outbox:
    """Writes and dispatches the deliveries of one process's Changes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        settings = parts.settings
        self._configured = Configured(
            webhook=settings.webhook_url,
            heartbeat=settings.heartbeat_url,
            sentry=settings.sentry_checkins,
            queue=settings.notification_queue,
        )
        self.tells_every_start = self._configured.heartbeat is not None or self._configured.sentry
        """Whether the settings ask for a ping at the start of every attempt, whatever its schedule asks for."""
        self.tells_of_every_schedule = self._configured.webhook is not None or self.tells_every_start
        """Whether the settings ask for notifications of every schedule, whatever the schedule asks for."""

    def record(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write the deliveries of Changes in the transaction that has written the Changes."""
        if owed := self._deliveries(changes):
            deliveries.record(connection, [self._routed(connection, delivery) for delivery in owed])

    def owes_start(self, schedule: Schedule, run: Run, now: datetime) -> bool:
        """Return whether the start of an attempt has a ping."""
        return self._tells_of(schedule) and bool(deliveries_of_start(schedule, run, self._configured, now))

    def write_start(self, connection: Connection, schedule: Schedule, run: Run, now: datetime) -> list[str]:
        """Write the pings about the start of an attempt. Return their uids, for `dispatch` after the commit."""
        owed = deliveries_of_start(schedule, run, self._configured, now) if self._tells_of(schedule) else []
        if owed:
            deliveries.record(connection, owed)
        return [delivery.uid for delivery in owed]

    def _routed(self, connection: Connection, delivery: Delivery) -> Delivery:
        """Return a delivery, for a workflow with the timeout, queue and Redis that this workflow declares."""
        if delivery.kind is not DeliveryKind.WORKFLOW:
            return delivery
        known = self._parts.workflows.get(delivery.destination)
        row = None if known else registered_workflows.find(connection, delivery.destination)
        routing = known.defaults if known else row or {}
        delivery = replace(delivery, timeout=routing.get("timeout"))
        if routing.get("queue") is None or self._parts.settings.notification_queue is not None:
            return delivery
        return replace(delivery, queue=routing["queue"], connection=routing.get("connection"))

    def owed(self, changes: Iterable[Change]) -> list[str]:
        """Return the uids of the deliveries of Changes."""
        return [delivery.uid for delivery in self._deliveries(changes)]

    def _deliveries(self, changes: Iterable[Change]) -> list[Delivery]:
        told = [change for change in changes if self._tells_of(change.after)]
        return [delivery for change in told for delivery in deliveries_of(change, self._configured)]

    def _tells_of(self, schedule: Schedule) -> bool:
        """Return whether a schedule may have a receiver: by its options, its workflow's options or the settings."""
        if not self._parts.settings.notify:
            return False
        definition = schedule.definition
        if definition.notifications != "{}" or self.tells_of_every_schedule:
            return True
        return "on_failure" in definition.parsed_defaults or "on_recovery" in definition.parsed_defaults

    def dispatch(self, uids: Sequence[str], now: datetime) -> None:
        """Put deliveries on their queues. If Redis fails, reconcile enqueues them later."""
        if not uids:
            return
        try:
            waiting = self._parts.database.read(lambda connection: deliveries.pending(connection, uids))
            self.enqueue(waiting, now)
        except (BackendUnavailableError, RedisError) as error:
            text = "%d notifications follow later: %s"
            _log.warning(text, len(uids), error, extra={"action": "follow_failed"})

    def enqueue(self, waiting: Iterable[Delivery], now: datetime) -> int:
        """Put the jobs of pending deliveries on their queues, unless they are there already.

        Return how many were added.
        """

        def where(delivery: Delivery) -> tuple[str, str]:
            return delivery.connection or "", delivery.queue or ""

        written = 0
        if not self._parts.settings.notify:
            return written
        for (connection, queue), some in groupby(sorted(waiting, key=where), where):
            jobs = [
                JobSpec(str(DeliveryJobId(one.uid, one.attempt)), self.seconds(one) + LEASE_SECONDS) for one in some
            ]
            written += self._parts.transport.enqueue(jobs, queue or None, connection or None, now=now)
        return written

    def seconds(self, delivery: Delivery) -> int:
        """Return how long an attempt may take."""
        is_workflow = delivery.kind is DeliveryKind.WORKFLOW
        default = self._parts.settings.run_timeout if is_workflow else self._parts.settings.notification_timeout
        return delivery.timeout or max(1, int(default.total_seconds()))
