"""Deliver notifications: a process claims a delivery, sends its message, and records whether it arrived.

A delivery has a separate job on a worker. Neither the dispatcher nor the job of the run sends it. A failed attempt is
repeated after a backoff. After the last attempt the delivery is given up, which health checks show. If the process dies
after it has sent a message, the message may arrive twice, with the same `id`.

The ping about the start of an attempt is an exception. The process of the attempt sends it during the attempt, because
a separate job would wait for a second worker, and would come too late without one. The ping has a row like every
delivery. If the process does not send it, because the process dies or the receiver does not answer, reconcile enqueues
a job.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Protocol

from rqsched.errors import BackendUnavailableError, NotExecutedError
from rqsched.features.notifications import outbox, sender
from rqsched.features.notifications import store as deliveries
from rqsched.features.notifications.decide import MAX_ERROR, NO_ANSWER, PINGS, Delivery, DeliveryKind, DeliveryStatus
from rqsched.features.notifications.outbox import LEASE_SECONDS, Outbox
from rqsched.features.notifications.watching import find_long, find_overdue, redeliver_notifications
from rqsched.kernel.chain.attempt import process_name
from rqsched.kernel.chain.error_text import describe_error
from rqsched.kernel.chain.feature import Feature, OwnJobId, Pass, Section, Stage, Started
from rqsched.kernel.chain.reconcile.repair import unless_all_frozen
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.time_limit import OutOfTimeError, Watch, time_limit
from rqsched.kernel.decide.ids import DeliveryJobId, new_uid
from rqsched.kernel.decide.model import Change, Run, Schedule
from rqsched.kernel.decide.payload import storable
from rqsched.kernel.store.database import Connection

_log = logging.getLogger(__name__)

ORDER_SECONDS = 2.0
"""How long the end of a short run waits for the ping of its start, so that the receiver gets the two pings in order."""
MOST_THREADS = 4
"""The maximum number of pings that one process delivers at once; more pings are enqueued like other notifications."""
_THREAD = "rqsched-start-pings"
_OVER_HTTP = frozenset({DeliveryKind.WEBHOOK, DeliveryKind.HEARTBEAT})


class Parts(outbox.Parts, Protocol):
    """The parts of a process's runtime that deliveries use."""

    now: Callable[[], datetime]
    """Returns the database's time."""
    watch: Watch
    """Kills the process of application code that overruns its timeout."""


class Notifications(Feature):
    """Write deliveries in the transaction of their Change or claim, and send them after the commit."""

    columns = ((attrgetter("definition.notifications"), "{}"), (attrgetter("definition.defaults"), "{}"))
    claims_alone = deliveries.HAS_NO_RECEIVER
    jobs = (DeliveryJobId,)

    def __init__(self, parts: Runtime) -> None:
        self._parts, self._outbox = parts, Outbox(parts)
        self.is_always_involved = self._outbox.tells_of_every_schedule
        self.writes_every_start = self._outbox.tells_every_start

    def after_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write the deliveries of Changes."""
        self._outbox.record(connection, changes)

    def writes_more(self, change: Change) -> bool:
        """Return whether a Change has a delivery."""
        return bool(self._outbox.owed([change]))

    def enqueue(self, decided: Sequence[Change]) -> None:
        """Put the deliveries of committed Changes on their queues."""
        self._outbox.dispatch(self._outbox.owed(decided), self._parts.now())

    def claimed(self, connection: Connection, started: Sequence[Started], *, at: datetime) -> Sequence[str]:
        """Write the pings about the starts of runs."""
        owed: list[str] = []
        for run, schedule in started:
            # If this process does not know the workflow, it may give the run back, and then the run has not started.
            if run.executor != "rq" or self._parts.workflows.get(run.workflow) is not None:
                owed += self._outbox.write_start(connection, schedule, run, at)
        return owed

    def attempt(self, schedule: Schedule, run: Run, owed: Sequence[str]) -> AbstractContextManager[object]:
        """Send the pings about a start during the attempt."""
        if not owed and self._parts.workflows.get(run.workflow) is None:  # the claim could not compute the pings
            owed = write_start(self._parts, schedule, run)
        return start_told(self._parts, owed) if owed else nullcontext()

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - every pass handles everything that is due
        """Report overdue schedules and long runs, and put due deliveries on their queues."""
        parts = self._parts
        reports = [unless_all_frozen(parts, find_overdue(parts)), unless_all_frozen(parts, find_long(parts))]
        return [Section(Stage.RUNS, batches) for batches in [*reports, redeliver_notifications(parts)]]

    def perform(self, job: OwnJobId) -> bool:
        """Attempt a delivery. A ping that has arrived has no row any more, so its job is over."""
        return isinstance(job, DeliveryJobId) and execute(self._parts, job) is not None


def execute(parts: Parts, job: DeliveryJobId, *, is_beside: bool = False) -> DeliveryStatus | None:
    """Make one attempt at a delivery, from its claim to its recorded end; return None if there was nothing to do.

    With `is_beside`, the attempt is made in a thread during a run, with only the time limit of HTTP. An error of the
    application's workflow is recorded and raised again, so that RQ's exception handlers see it, too. If a receiver does
    not answer, this is recorded and logged.
    """
    token = new_uid(parts.now())
    delivery = parts.database.transact(partial(_claim, parts, job=job, token=token))
    if delivery is None:
        _log.info("%s has nothing left to do", job, extra={"action": "delivery_stale"})
        return None
    try:
        seconds = Outbox(parts).seconds(delivery)
        # If the process dies here, nothing is recorded, and the delivery is attempted again when its lease is over.
        with nullcontext() if is_beside else time_limit(parts.watch, seconds, lambda: None):
            _send(parts, delivery, seconds)
    except OutOfTimeError as error:
        why = NO_ANSWER if delivery.kind in _OVER_HTTP else "timeout: "
        return _fail(parts, delivery, token, f"{why}{error}")
    except sender.NoAnswerError as error:
        return _fail(parts, delivery, token, f"{NO_ANSWER}{error}")
    except sender.SendingError as error:
        return _fail(parts, delivery, token, str(error))
    except BaseException as error:
        is_final = isinstance(error, NotExecutedError)  # refused before it ran; a retry would be refused, too
        _fail(parts, delivery, token, describe_error(error).partition("\n")[0], is_final=is_final)
        raise
    parts.database.transact(partial(_succeed, parts, delivery, token))
    return DeliveryStatus.SUCCEEDED


def _claim(parts: Parts, connection: Connection, *, job: DeliveryJobId, token: str) -> Delivery | None:
    """Claim a delivery, unless a later delivery replaces it.

    If its receiver did not answer another delivery, this delivery is put off. Returns None if there is nothing to send
    now.
    """
    found = deliveries.find(connection, job.uid, locks=True)
    now = parts.now()
    if found is None or not parts.settings.notify:
        return None
    until = now + timedelta(seconds=Outbox(parts).seconds(found) + LEASE_SECONDS)
    worker = process_name()
    delivery = deliveries.claim(connection, job, token, worker=worker, now=now, until=until)
    if delivery is None:
        return None
    if delivery.kind in PINGS and deliveries.is_superseded(connection, delivery):
        deliveries.succeed(connection, delivery, token, now)
        return None
    again_at = deliveries.silent_until(connection, delivery, now) if delivery.kind in _OVER_HTTP else None
    if again_at is not None:
        deliveries.put_off(connection, delivery, token, again_at)
        return None
    return delivery


def _send(parts: Parts, delivery: Delivery, seconds: int) -> None:
    message = json.loads(delivery.payload)
    if delivery.kind is DeliveryKind.WORKFLOW:
        parts.workflows.resolve(delivery.destination)([message], {})
    else:
        sender.send(delivery, message, settings=parts.settings, now=parts.now(), seconds=seconds)


def _succeed(parts: Parts, delivery: Delivery, token: str, connection: Connection) -> None:
    deliveries.find(connection, delivery.uid, locks=True)
    deliveries.succeed(connection, delivery, token, parts.now())


def _fail(parts: Parts, delivery: Delivery, token: str, error: str, *, is_final: bool = False) -> DeliveryStatus:
    """Record and log that an attempt failed: as an error after the last attempt, else as a warning."""
    error = storable(error)[:MAX_ERROR]

    def fail(connection: Connection) -> datetime | None:
        deliveries.find(connection, delivery.uid, locks=True)
        return deliveries.fail(connection, delivery, token, error, parts.now(), is_final=is_final)

    again_at = parts.database.transact(fail)
    level, fate = (logging.ERROR, "is given up") if again_at is None else (logging.WARNING, "is tried again")
    text = "%s of %s to a %s %s: %s"
    _log.log(
        level,
        text,
        delivery.event_type,
        delivery.schedule_uid,
        delivery.kind.value,
        fate,
        error,
        extra={"action": "delivery_failed"},
    )
    return DeliveryStatus.FAILED if again_at is None else DeliveryStatus.PENDING


def write_start(parts: Parts, schedule: Schedule, run: Run) -> tuple[str, ...]:
    """Write the pings about a claimed attempt whose workflow was imported only after the claim."""
    if not Outbox(parts).owes_start(schedule, run, parts.now()):
        return ()
    try:
        owed = parts.database.transact(
            lambda connection: Outbox(parts).write_start(connection, schedule, run, parts.now())
        )
    except BackendUnavailableError as error:
        _log.warning("the start of run %s is not told: %s", run.uid, error, extra={"action": "delivery_failed"})
        return ()
    return tuple(owed)


@contextmanager
def start_told(parts: Parts, owed: Sequence[str]) -> Iterator[None]:
    """Deliver pings while the block runs: in threads, or as jobs if a queue is set or too many threads run already."""
    if parts.settings.notification_queue is not None or count_start_threads() >= MOST_THREADS:
        Outbox(parts).dispatch(owed, parts.now())
        yield
        return
    thread = threading.Thread(target=_tell, args=(parts, owed), name=_THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(ORDER_SECONDS)


def count_start_threads() -> int:
    """Count the threads of this process that deliver pings. A counter would be wrong after a fork."""
    return sum(thread.name == _THREAD for thread in threading.enumerate())


def _tell(parts: Parts, owed: Sequence[str]) -> None:
    for uid in owed:
        try:
            execute(parts, DeliveryJobId(uid, 1), is_beside=True)
        except Exception:  # noqa: BLE001 - a thread's boundary; the row is still there for reconcile
            _log.exception("the start ping %s is left to reconcile", uid, extra={"action": "delivery_failed"})
