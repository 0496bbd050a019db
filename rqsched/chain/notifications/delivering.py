"""Delivering: a process claims a notification, delivers it, and records whether it arrived.

It happens in a job of its own, on a worker: never in the dispatcher, and never in the job of the run that it is about.
An attempt that fails is repeated after a backoff, and the delivery is given up after the last one, visibly. A message
may arrive twice (its process died after it had sent it); its `id` is the same then.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from functools import partial

from rq.timeouts import get_default_death_penalty_class

from rqsched.chain.error_text import describe_error
from rqsched.chain.notifications import receivers
from rqsched.chain.notifications.notifier import LEASE_SECONDS
from rqsched.chain.runtime import Runtime, process_name
from rqsched.chain.time_limit import KILL_AFTER
from rqsched.core.deliveries import MAX_ERROR, NO_ANSWER, PINGS, Delivery, DeliveryKind, DeliveryStatus
from rqsched.core.ids import DeliveryJobId, new_uid
from rqsched.store import deliveries
from rqsched.store.database import Connection

_log = logging.getLogger(__name__)

_OVER_HTTP = frozenset({DeliveryKind.WEBHOOK, DeliveryKind.HEARTBEAT})


class _OutOfTimeError(BaseException):
    """An attempt took too long. Not an Exception: a workflow that catches those would continue."""


def execute(runtime: Runtime, job: DeliveryJobId, *, is_beside: bool = False) -> DeliveryStatus | None:
    """Attempt one delivery from claim to recorded end; None when there was nothing to do.

    One that `is_beside` something else runs in a thread, where only its receiver's own time limit holds.
    The error of an application's workflow is recorded and raised again, so that RQ's exception handlers see it too;
    that a receiver does not answer is recorded and logged.
    """
    token = new_uid(runtime.now())
    delivery = runtime.database.transact(partial(_claim, runtime, job=job, token=token))
    if delivery is None:
        _log.info("%s has nothing left to do", job, extra={"action": "delivery_stale"})
        return None
    try:
        _deliver(runtime, delivery, is_beside=is_beside)
    except _OutOfTimeError as error:
        return _fail(runtime, delivery, token, f"{NO_ANSWER}{error}" if _is_http(delivery) else f"timeout: {error}")
    except receivers.NoAnswerError as error:
        return _fail(runtime, delivery, token, f"{NO_ANSWER}{error}")
    except receivers.SendingError as error:
        return _fail(runtime, delivery, token, str(error))
    except BaseException as error:
        _fail(runtime, delivery, token, describe_error(error).partition("\n")[0])
        raise
    now = runtime.now()
    runtime.database.transact(lambda connection: deliveries.succeed(connection, delivery, token, now))
    return DeliveryStatus.SUCCEEDED


def _is_http(delivery: Delivery) -> bool:
    return delivery.kind in _OVER_HTTP


def _claim(runtime: Runtime, connection: Connection, *, job: DeliveryJobId, token: str) -> Delivery | None:
    """Claim a delivery that makes sense now; one whose receiver does not answer others waits with those."""
    now = runtime.now()
    found = deliveries.find(connection, job.uid)
    if found is None:
        return None
    until = now + timedelta(seconds=runtime.notifier.seconds(found) + LEASE_SECONDS)
    worker = process_name()
    delivery = deliveries.claim(connection, job, token, worker=worker, now=now, until=until)
    if delivery is None:
        return None
    if delivery.kind in PINGS and deliveries.is_superseded(connection, delivery):
        deliveries.succeed(connection, delivery, token, now)
        return None
    again_at = deliveries.silent_until(connection, delivery, now) if _is_http(delivery) else None
    if again_at is not None:
        deliveries.put_off(connection, delivery, token, again_at)
        return None
    return delivery


def _deliver(runtime: Runtime, delivery: Delivery, *, is_beside: bool) -> None:
    seconds = runtime.notifier.seconds(delivery)
    if is_beside:
        _send(runtime, delivery, seconds)
        return
    # What its process dies with is attempted again when its lease is over.
    with runtime.watch(seconds + KILL_AFTER, _leave), get_default_death_penalty_class()(seconds, _OutOfTimeError):
        _send(runtime, delivery, seconds)


def _send(runtime: Runtime, delivery: Delivery, seconds: int) -> None:
    message = json.loads(delivery.payload)
    if delivery.kind is DeliveryKind.WORKFLOW:
        runtime.workflows.resolve(delivery.destination)([message], {})
    else:
        receivers.send(delivery, message, settings=runtime.settings, now=runtime.now(), seconds=seconds)


def _leave() -> None:
    """Record nothing."""


def _fail(runtime: Runtime, delivery: Delivery, token: str, error: str) -> DeliveryStatus:
    """Record that an attempt failed, and tell operators; the last one is an error."""
    now, error = runtime.now(), error[:MAX_ERROR]
    again_at = runtime.database.transact(lambda c: deliveries.fail(c, delivery, token, error, now))
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
