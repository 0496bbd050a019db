"""Attempts of runs, targets and notifications: a due one without a live job is put on its queue, a lost one ends.

A pass looks for the same in all three: its job has vanished, its process has died, nobody could start it for too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from rqsched.chain import blocking
from rqsched.chain.fan_out import PAGE, fill, promote
from rqsched.chain.reconcile.repair import SOON, Recovered, pages, pages_unfrozen, repair_each
from rqsched.chain.runtime import Runtime
from rqsched.chain.settling import change_run, expire_run, has_failed_finally, settle_run
from rqsched.chain.target_execution import decide_lost, end_if_over
from rqsched.chain.target_jobs import batch_job, enqueue
from rqsched.core.deliveries import DeliveryStatus
from rqsched.core.ids import BatchJobId
from rqsched.core.model import Change, Run, Schedule
from rqsched.core.notifications import Notifications
from rqsched.core.repair import decide_long
from rqsched.core.settle_decision import AttemptOutcome, AttemptResult
from rqsched.core.target_decision import TargetEnd, decide_blocked
from rqsched.store import changes, claims, deliveries, fan_out_targets, reconcile_queries
from rqsched.store.database import Connection
from rqsched.store.fan_out_targets import EndStep, Target
from rqsched.transport.transport import retry_of

SIGHTINGS = 3
"""A run is lost when this many passes in a row saw the same heartbeat."""
_UNSETTLED = "run %s cannot be settled now"
_UNTOLD = "that run %s takes too long cannot be told now"
_LOST_AFTER = timedelta(seconds=60)
"""How long a target may take to record its end, beyond an SQL outage, before it counts as lost."""
LOST = "its process vanished: it neither ended nor ran out of time"
"""The error of a target whose deadline passed without a result."""


def arm_retries(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm the retry links of runs whose next attempt is due soon, or (everything) of all retrying runs."""
    until = None if everything else runtime.now() + SOON
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.retrying, until=until)):
        armed = runtime.transport.arm([retry_of(run) for run in rows], now=runtime.now())
        yield Recovered(checked=len(rows), retries=armed)


def redeliver_runs(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Enqueue pending runs whose delivery is dead; the next delivery number is taken in SQL first."""
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.pending, before=before)):
        live = runtime.transport.live_deliveries(rows, now=runtime.now())
        dead = [run for run, is_live in zip(rows, live, strict=True) if not is_live]
        again = runtime.database.transact(partial(changes.next_deliveries, dead=dead))
        named = partial(reconcile_queries.names_of, uids=[run.schedule_uid for run in again])
        runtime.transport.deliver(again, runtime.database.read(named) if again else {}, now=runtime.now())
        yield Recovered(checked=len(rows), deliveries=len(again))


def settle_lost(runtime: Runtime) -> Iterator[Recovered]:
    """Lose runs whose heartbeat stood still for three sightings an interval apart, and silent external runs."""

    def compare(connection: Connection, *, after: str | None, limit: int) -> tuple[list[str], str | None]:
        now = runtime.now()  # not that of a pass that waited: two sightings are an interval apart
        before = now - runtime.settings.reconcile_interval
        return reconcile_queries.compare_heartbeats(connection, now=now, before=before, after=after, limit=limit)

    for uids in pages(runtime, compare, is_writing=True):
        yield Recovered(checked=len(uids))
    for runs in pages(runtime, partial(reconcile_queries.without_heartbeat, sightings=SIGHTINGS)):
        yield _lose(runtime, runs, "no sign of life from its worker")
    silent = partial(reconcile_queries.silent, now=runtime.now(), usual=runtime.settings.ojs_visibility)
    for runs in pages(runtime, silent):
        yield _lose(runtime, runs, "no heartbeat from its external worker")


def _lose(runtime: Runtime, runs: Sequence[tuple[Run, int]], reason: str) -> Recovered:
    repairs = {run.uid: partial(_lose_one, runtime, run, heartbeat, reason) for run, heartbeat in runs}
    lost, failed = repair_each(repairs, _UNSETTLED)
    return Recovered(checked=len(runs), lost=lost, failed=failed)


def _lose_one(runtime: Runtime, run: Run, heartbeat: int, reason: str) -> bool:
    def is_still_silent(current: Run) -> bool:
        is_silent = current.heartbeat_at == run.heartbeat_at and current.dispatched_at is None
        return is_silent and current.attempt == run.attempt and current.is_held_by(run.token)

    if runtime.database.read(lambda connection: claims.read_heartbeat(connection, run.uid)) != heartbeat:
        return False
    lost = AttemptResult(AttemptOutcome.LOST, error=reason)
    change = settle_run(runtime, run.uid, lost, fence=is_still_silent, skip_locked=True)
    if has_failed_finally(change, run.uid):
        runtime.transport.mark_failed(run)
    return change is not None


def find_long(runtime: Runtime) -> Iterator[Recovered]:
    """Record, once, each run that takes longer than its schedule expects."""
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


def expire(runtime: Runtime) -> Iterator[Recovered]:
    """End pending runs that may not start any more, if no worker takes them: a worker that takes one ends it itself."""
    for rows in pages(runtime, partial(reconcile_queries.late_to_start, now=runtime.now())):
        repairs = {run.uid: partial(expire_run, runtime, run, skip_locked=True) for run in rows}
        expired, failed = repair_each(repairs, _UNSETTLED)
        yield Recovered(checked=len(rows), expired=expired, failed=failed)


def give_places(runtime: Runtime) -> Iterator[Recovered]:
    """Give the free places of groups, and those whose grants nobody has claimed, to the runs and targets in line."""
    for groups, given in runtime.limits.repair():
        yield Recovered(checked=groups, granted=given)


def fail_blocked(runtime: Runtime) -> Iterator[Recovered]:
    """Fail runs that were blocked for too long, if no worker takes them: a worker that takes one fails it itself."""
    before = runtime.now() - runtime.settings.blocked_timeout
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.blocked, before=before)):
        repairs = {run.uid: partial(blocking.fail_blocked, runtime, run) for run in rows}
        failed_runs, failed = repair_each(repairs, _UNSETTLED)
        yield Recovered(checked=len(rows), blocked=failed_runs, failed=failed)


def repair_targets(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Enqueue the jobs of fan-outs that vanished, fail targets whose process died, and end runs without open ones."""
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    yield from _end_lost_and_blocked(runtime)
    given_up = runtime.database.transact(lambda connection: fan_out_targets.give_up(connection, runtime.now()))
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


def _end_lost_and_blocked(runtime: Runtime) -> Iterator[Recovered]:
    """Decide about targets whose process vanished, and about those that were blocked for too long."""
    for end in (_end_lost, _end_blocked):
        while True:
            ended = len(runtime.database.transact(partial(end, runtime)))
            yield Recovered(checked=ended, targets=ended)
            if ended < PAGE:
                break


def _end_lost(runtime: Runtime, connection: Connection) -> list[str]:
    now = runtime.now()
    silent_since = now - runtime.settings.completion_outage - _LOST_AFTER
    step = EndStep(lambda connection, target: decide_lost(connection, target, LOST, now), now, PAGE)
    return fan_out_targets.end_silent(connection, silent_since, step)


def _end_blocked(runtime: Runtime, connection: Connection) -> list[str]:
    now, timeout = runtime.now(), runtime.settings.blocked_timeout

    def decide(connection: Connection, target: Target) -> TargetEnd:
        reason = fan_out_targets.read_error(connection, target.uid) or ""
        return decide_blocked(target.blocked_at, reason, now=now, timeout=timeout)

    return fan_out_targets.end_blocked(connection, now - timeout, EndStep(decide, now, PAGE))


def _continue(runtime: Runtime, job: BatchJobId, first: Target) -> int:
    """Dispatch the next targets of a run, or put the job that does so behind those that are on its queue."""
    if first.max_parallel is not None:
        return fill(runtime, job.run_uid)
    return runtime.transport.enqueue([batch_job(job)], first.queue, first.connection, now=runtime.now())


def redeliver_notifications(runtime: Runtime) -> Iterator[Recovered]:
    """Enqueue notifications that are due and have no live job, and fail attempts whose process vanished."""

    def lose(connection: Connection) -> int:
        return deliveries.lose(connection, silent, runtime.now())

    for rows in pages(runtime, partial(deliveries.due, now=runtime.now())):
        silent = [one for one in rows if one.status is DeliveryStatus.RUNNING]
        lost = runtime.database.transact(lose) if silent else 0
        waiting = [one for one in rows if one.status is DeliveryStatus.PENDING]
        yield Recovered(checked=len(rows), notifications=lost + runtime.notifier.enqueue(waiting, runtime.now()))
