"""Runs: retry links and jobs that vanished are put back, runs whose process died are settled, those that wait start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

from rqsched.chain import blocking
from rqsched.chain.reconcile.repair import SOON, Recovered, pages, repair_each, repair_schedules
from rqsched.chain.runtime import Runtime
from rqsched.chain.settling import has_failed_finally, settle_run
from rqsched.core.model import Change, Run, RunStatus, Schedule
from rqsched.core.repair import decide_drain
from rqsched.core.settle_decision import AttemptOutcome, AttemptResult
from rqsched.store import changes, claims, reconcile_queries
from rqsched.store.database import Connection
from rqsched.transport.transport import retry_of

SIGHTINGS = 3
"""A run is lost when this many passes in a row saw the same heartbeat."""
_UNSETTLED = "run %s cannot be settled now"


def arm_retries(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm the retry links of runs whose next attempt is due soon, or (everything) of all retrying runs."""
    until = None if everything else runtime.now() + SOON
    for rows in pages(runtime, partial(reconcile_queries.retrying, until=until)):
        armed = runtime.transport.arm([retry_of(run) for run in rows], now=runtime.now())
        yield Recovered(checked=len(rows), retries=armed)


def redeliver(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Enqueue pending runs whose delivery is dead; the next delivery number is taken in SQL first."""
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    for rows in pages(runtime, partial(reconcile_queries.pending, before=before)):
        live = runtime.transport.live_deliveries(rows, now=runtime.now())
        dead = [run for run, is_live in zip(rows, live, strict=True) if not is_live]
        again = runtime.database.transact(partial(changes.next_deliveries, dead=dead))
        named = partial(reconcile_queries.names_of, uids=[run.schedule_uid for run in again])
        runtime.transport.deliver(again, runtime.database.read(named) if again else {}, now=runtime.now())
        yield Recovered(checked=len(rows), deliveries=len(again))


def settle_lost(runtime: Runtime) -> Iterator[Recovered]:
    """Lose runs whose heartbeat stood still for three sightings an interval apart, and silent external runs."""
    now = runtime.now()
    interval = runtime.settings.reconcile_interval
    compare = partial(reconcile_queries.compare_heartbeats, now=now, before=now - interval)
    for uids in pages(runtime, compare, is_writing=True):
        yield Recovered(checked=len(uids))
    for runs in pages(runtime, partial(reconcile_queries.without_heartbeat, sightings=SIGHTINGS)):
        yield _lose(runtime, runs, "no sign of life from its worker")
    for runs in pages(runtime, partial(reconcile_queries.silent, now=now, usual=runtime.settings.ojs_visibility)):
        yield _lose(runtime, runs, "no heartbeat from its external worker")


def _lose(runtime: Runtime, runs: Sequence[tuple[Run, int]], reason: str) -> Recovered:
    repairs = {run.uid: partial(_lose_one, runtime, run, heartbeat, reason) for run, heartbeat in runs}
    lost, failed = repair_each(repairs, _UNSETTLED)
    return Recovered(checked=len(runs), lost=lost, failed=failed)


def _lose_one(runtime: Runtime, run: Run, heartbeat: int, reason: str) -> bool:
    def is_still_silent(current: Run) -> bool:
        is_same = current.token == run.token and current.attempt == run.attempt
        is_silent = current.heartbeat_at == run.heartbeat_at and current.dispatched_at is None
        return is_same and current.status is RunStatus.RUNNING and is_silent

    if runtime.database.read(lambda connection: claims.read_heartbeat(connection, run.uid)) != heartbeat:
        return False
    lost = AttemptResult(AttemptOutcome.LOST, error=reason)
    change = settle_run(runtime, run.uid, lost, fence=is_still_silent, skip_locked=True)
    if has_failed_finally(change, run.uid):
        runtime.transport.mark_failed(run)
    return change is not None


def fail_blocked(runtime: Runtime) -> Iterator[Recovered]:
    """Fail runs that were blocked for too long and that no worker takes any more: one that does fails them itself."""
    before = runtime.now() - runtime.settings.blocked_timeout
    for rows in pages(runtime, partial(reconcile_queries.blocked, before=before)):
        repairs = {run.uid: partial(blocking.fail_blocked, runtime, run) for run in rows}
        failed_runs, failed = repair_each(repairs, _UNSETTLED)
        yield Recovered(checked=len(rows), blocked=failed_runs, failed=failed)


def drain(runtime: Runtime) -> Iterator[Recovered]:
    """Start the oldest waiting run of each schedule where nothing is ahead of it."""
    for uids in pages(runtime, reconcile_queries.waiting):
        drained, failed = repair_schedules(runtime, uids, _drain_one)
        yield Recovered(len(uids), drained=drained, failed=failed)


def _drain_one(connection: Connection, schedule: Schedule, now: datetime) -> Change:
    return decide_drain(schedule, changes.open_runs(connection, [schedule])[schedule.uid], now=now)
