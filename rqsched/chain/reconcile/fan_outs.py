"""Fan-outs: vanished jobs of targets are enqueued again, lost and blocked targets end, and runs that await none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial

from rqsched.chain.fan_out.dispatch import PAGE, batch_job, enqueue, fill, promote
from rqsched.chain.fan_out.execution import decide_lost, end_if_over
from rqsched.chain.reconcile.repair import Recovered, pages, repair_each
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import BatchJobId
from rqsched.core.target_decision import TargetEnd, decide_blocked
from rqsched.store import fan_out_targets, reconcile_queries, target_attempts
from rqsched.store.database import Connection
from rqsched.store.fan_out_targets import Target
from rqsched.store.target_attempts import EndStep

_LOST_AFTER = timedelta(seconds=60)
"""How long a target may take to record its end, beyond an SQL outage, before it counts as lost."""
LOST = "its process vanished: it neither ended nor ran out of time"
"""The error of a target whose deadline passed without a result."""


def repair_targets(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Enqueue the jobs of fan-outs that vanished, fail targets whose process died, and end runs without open ones."""
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    yield from _end_overdue(runtime, now)
    given_up = runtime.database.transact(lambda connection: target_attempts.give_up(connection, now))
    yield Recovered(checked=given_up, targets=given_up)
    while promoted := promote(runtime):
        yield Recovered(checked=promoted, targets=promoted)
        if promoted < PAGE:
            break
    unfinished = runtime.database.read(lambda connection: fan_out_targets.unfinished_batches(connection, before))
    for job, first in unfinished:
        yield Recovered(checked=1, targets=_continue(runtime, job, first))
    for rows in pages(runtime, partial(fan_out_targets.pending, before=before)):
        yield Recovered(checked=len(rows), targets=enqueue(runtime, rows))
    for uids in pages(runtime, reconcile_queries.dispatched):
        repairs = {uid: partial(end_if_over, runtime, uid, skip_locked=True) for uid in uids}
        ended, failed = repair_each(repairs, "the fan-out of run %s cannot be ended now")
        yield Recovered(checked=len(uids), targets=ended, failed=failed)


def _end_overdue(runtime: Runtime, now: datetime) -> Iterator[Recovered]:
    """Decide about targets whose process vanished, and about those that were blocked for too long."""
    timeout = runtime.settings.blocked_timeout

    def blocked_for_too_long(connection: Connection, target: Target) -> TargetEnd:
        reason = fan_out_targets.read_error(connection, target.uid) or ""
        return decide_blocked(target.blocked_at, reason, now=now, timeout=timeout)

    silent_since = now - runtime.settings.completion_outage - _LOST_AFTER
    lost = EndStep(lambda connection, target: decide_lost(connection, target, LOST, now), now, PAGE)
    blocked = EndStep(blocked_for_too_long, now, PAGE)
    works: tuple[Callable[[Connection], list[str]], ...] = (
        partial(target_attempts.end_silent, before=silent_since, step=lost),
        partial(target_attempts.end_blocked, before=now - timeout, step=blocked),
    )
    for work in works:
        while True:
            ended = len(runtime.database.transact(work))
            yield Recovered(checked=ended, targets=ended)
            if ended < PAGE:
                break


def _continue(runtime: Runtime, job: BatchJobId, first: Target) -> int:
    """Dispatch the next targets of a run, or put the job that does so behind those that are on its queue."""
    if first.max_parallel is not None:
        return fill(runtime, job.run_uid)
    return runtime.transport.enqueue([batch_job(job)], first.queue, first.connection, now=runtime.now())
