"""Start pings: that an attempt has begun is told beside it, by the process that executes it.

A job of its own would wait for a second worker, and say nothing where there is none. The ping is a row like every
notification: what this process does not deliver, because it dies or its receiver is away, reconcile enqueues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rqsched.chain.notifications import delivering
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import DeliveryJobId
from rqsched.core.model import Run, Schedule
from rqsched.errors import BackendUnavailableError

_log = logging.getLogger(__name__)

ORDER_SECONDS = 2.0
"""How long the end of a short run waits for the ping of its start, so that the receiver gets them in their order."""
MOST_THREADS = 4
"""Pings that one process delivers at once; the next go where other notifications go, until one of these has ended."""
_THREAD = "rqsched-start-pings"


def write(runtime: Runtime, schedule: Schedule, run: Run) -> tuple[str, ...]:
    """Write what the start of an attempt owes whose claim could not, its workflow being found only now."""
    if runtime.workflows.get(run.workflow) is not None:
        return ()
    now = runtime.now()
    if not runtime.notifier.owes_start(schedule, run, now):
        return ()
    try:
        owed = runtime.database.transact(
            lambda connection: runtime.notifier.write_start(connection, schedule, run, now)
        )
    except BackendUnavailableError as error:
        _log.warning("the start of run %s is not told: %s", run.uid, error, extra={"action": "delivery_failed"})
        return ()
    return tuple(owed)


@contextmanager
def told(runtime: Runtime, owed: Sequence[str]) -> Iterator[None]:
    """Deliver pings while the block runs: here, unless the settings name a queue or too many are delivered here."""
    if not owed:
        yield
        return
    if runtime.settings.notification_queue is not None or threads() >= MOST_THREADS:
        runtime.notifier.dispatch(owed, runtime.now())
        yield
        return
    thread = threading.Thread(target=_tell, args=(runtime, owed), name=_THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(ORDER_SECONDS)


def threads() -> int:
    """Count the threads of this process that deliver pings; a counter would survive a fork, which they do not."""
    return sum(thread.name == _THREAD for thread in threading.enumerate())


def _tell(runtime: Runtime, owed: Sequence[str]) -> None:
    for uid in owed:
        try:
            delivering.execute(runtime, DeliveryJobId(uid, 1), is_beside=True)
        except Exception:  # noqa: BLE001 - a thread's boundary; the row says what is left to do
            _log.exception("the start ping %s is left to reconcile", uid, extra={"action": "delivery_failed"})
