"""Repairs of attempts: a due attempt without a live job is enqueued, and an attempt without a process ends as lost.

A run is also ended if no worker could start it in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rqsched.kernel.chain import blocked
from rqsched.kernel.chain.reconcile.repair import SOON, pages, pages_unfrozen, repair_each
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import expire_run, has_failed_finally, settle_run
from rqsched.kernel.decide.model import Run
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.transport import retry_of

SIGHTINGS = 3
"""A run is lost when this many passes in a row saw the same heartbeat."""
_UNSETTLED = "run %s cannot be settled now"


def arm_retries(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm the retry links of runs whose next attempt is due soon; with `everything`, of all retrying runs."""
    until = None if everything else runtime.now() + SOON
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.retrying, until=until)):
        armed = runtime.transport.arm([retry_of(run) for run in rows], now=runtime.now())
        yield Recovered(checked=len(rows), retries=armed)


def redeliver_runs(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Enqueue pending runs again if Redis will not deliver their job.

    Each of these runs gets a job with the next number, which is written to SQL first.
    """
    now = runtime.now()
    before = now if everything else now - runtime.settings.repair_grace
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.pending, before=before)):
        live = runtime.transport.live_deliveries(rows, now=runtime.now())
        dead = [run for run, is_live in zip(rows, live, strict=True) if not is_live]
        again = runtime.database.transact(partial(changes.next_deliveries, dead=dead))
        named = partial(reconcile_queries.names_of, uids=[run.schedule_uid for run in again])
        runtime.transport.deliver(again, runtime.database.read(named) if again else {}, now=runtime.now())
        yield Recovered(checked=len(rows), deliveries=len(again))


def settle_lost(runtime: Runtime) -> Iterator[Recovered]:
    """End runs as lost if three passes, an interval apart, saw the same heartbeat. Also end silent external runs."""

    def compare(connection: Connection, *, after: str | None, limit: int) -> tuple[list[str], str | None]:
        now = runtime.now()  # read late, because the pass may have waited, and two sightings must be an interval apart
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


def expire(runtime: Runtime) -> Iterator[Recovered]:
    """End pending runs that no worker has started in time.

    If a worker takes such a run, the worker ends it.
    """
    for rows in pages(runtime, partial(reconcile_queries.late_to_start, now=runtime.now())):
        repairs = {run.uid: partial(expire_run, runtime, run, skip_locked=True) for run in rows}
        expired, failed = repair_each(repairs, _UNSETTLED)
        yield Recovered(checked=len(rows), expired=expired, failed=failed)


def fail_blocked(runtime: Runtime) -> Iterator[Recovered]:
    """Fail runs that were blocked for too long.

    If a worker takes such a run, the worker fails it.
    """
    before = runtime.now() - runtime.settings.blocked_timeout
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.blocked, before=before)):
        repairs = {run.uid: partial(blocked.fail_blocked, runtime, run) for run in rows}
        failed_runs, failed = repair_each(repairs, _UNSETTLED)
        yield Recovered(checked=len(rows), blocked=failed_runs, failed=failed)
