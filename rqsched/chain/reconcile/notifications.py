"""Notifications: those whose job vanished are enqueued again, those whose process died are attempted again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rqsched.chain.reconcile.repair import Recovered, pages
from rqsched.chain.runtime import Runtime
from rqsched.core.deliveries import DeliveryStatus
from rqsched.store import deliveries


def redeliver(runtime: Runtime) -> Iterator[Recovered]:
    """Enqueue notifications that are due and have no live job, and fail attempts whose process vanished."""
    now = runtime.now()
    for rows in pages(runtime, partial(deliveries.due, now=now)):
        silent = [one for one in rows if one.status is DeliveryStatus.RUNNING]
        lost = runtime.database.transact(partial(deliveries.lose, silent=silent, now=now)) if silent else 0
        waiting = [one for one in rows if one.status is DeliveryStatus.PENDING]
        yield Recovered(checked=len(rows), notifications=lost + runtime.notifier.enqueue(waiting, runtime.now()))
