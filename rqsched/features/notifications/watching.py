"""Repairs of notifications: a pass of reconcile reports overdue schedules and long runs, and enqueues lost jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial

from rqsched.features.notifications import store as deliveries
from rqsched.features.notifications.decide import DeliveryStatus
from rqsched.features.notifications.outbox import Outbox
from rqsched.kernel.chain.reconcile.repair import pages, pages_unfrozen, repair_each, repair_schedules
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import change_run
from rqsched.kernel.decide.model import Change, Run, Schedule
from rqsched.kernel.decide.notifications import Notifications
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.decide.schedule_repair import decide_long, decide_overdue
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store.database import Connection

_UNTOLD = "that run %s takes too long cannot be told now"


def find_overdue(runtime: Runtime) -> Iterator[Recovered]:
    """Record once that a schedule is overdue: no run of it succeeded within `expect_success_within`."""
    for uids in pages_unfrozen(runtime, partial(reconcile_queries.overdue, until=runtime.now())):
        found, failed = repair_schedules(
            runtime, uids, lambda _, schedule, clock: decide_overdue(schedule, now=clock())
        )
        yield Recovered(len(uids), overdue=found, failed=failed)


def find_long(runtime: Runtime) -> Iterator[Recovered]:
    """Record once that a run takes longer than its schedule expects."""
    for rows in pages_unfrozen(runtime, reconcile_queries.expected_to_end):
        now, expected = runtime.now(), [Notifications.loads(told).expect_duration for *_, told in rows]
        long = [uid for (uid, began_at, _), span in zip(rows, expected, strict=True) if span and now - began_at > span]
        found, failed = repair_each({uid: partial(_note_long, runtime, uid) for uid in long}, _UNTOLD)
        yield Recovered(checked=len(rows), long=found, failed=failed)


def _note_long(runtime: Runtime, run_uid: str) -> bool:
    def decide(schedule: Schedule, _: list[Run], run: Run, now: datetime) -> Change:
        return decide_long(schedule, run, now=now)

    found = change_run(runtime, run_uid, decide, fence=lambda run: run.long_at is None, skip_locked=True)
    return found is not None and not found.is_empty


def redeliver_notifications(runtime: Runtime) -> Iterator[Recovered]:
    """Enqueue notifications that are due and have no live job, and fail attempts whose process vanished."""

    def lose(connection: Connection) -> int:
        return deliveries.lose(connection, silent, runtime.now())

    for rows in pages(runtime, partial(deliveries.due, now=runtime.now())):
        silent = [one for one in rows if one.status is DeliveryStatus.RUNNING]
        lost = runtime.database.transact(lose) if silent else 0
        waiting = [one for one in rows if one.status is DeliveryStatus.PENDING]
        yield Recovered(checked=len(rows), notifications=lost + Outbox(runtime).enqueue(waiting, runtime.now()))
