"""Fan-out: a run that names many targets, and a job for each of them.

The run records its targets and puts the first chunk of them on its queue, and behind that chunk a job that
continues with the next one. A queue is first in, first out: the next chunk comes when workers have taken the one
before, however few they are, and nothing waits or counts. SQL first, Redis second: reconcile enqueues what a crash
left out. With `max_parallel` only so many are on the queue, and each that ends puts the next one there.

Each target is dispatched once (its id is computed from run and target), claimed once, and fails alone: see
`execution`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from redis.exceptions import RedisError

from rqsched.chain.fan_out.execution import decide_lost
from rqsched.chain.fan_out.jobs import PAGE, batch_job, enqueue, fill, jobs_of, promote
from rqsched.chain.ownership import UnknownJobError
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import BatchJobId
from rqsched.core.target_ends import TargetEnd, end_blocked
from rqsched.errors import RunNotFoundError
from rqsched.store import changes, fan_out_targets, target_repairs
from rqsched.store.database import Connection
from rqsched.store.fan_out_targets import Batch, RunName, Target
from rqsched.store.target_repairs import EndStep

_log = logging.getLogger(__name__)

_LOST_AFTER = timedelta(seconds=60)
"""How long a target may take to record its end, beyond an SQL outage, before it counts as lost."""
LOST = "its process vanished: it neither ended nor ran out of time"
"""The error of a target whose deadline passed without a result."""


def batch_of(runtime: Runtime, run_uid: str, workflow: str | None = None) -> Batch:
    """Return what the targets of a run have in common, by its schedule's policies as they are now."""

    def read(connection: Connection) -> Batch:
        run = changes.find_run(connection, run_uid)
        schedule = None if run is None else changes.find(connection, run.schedule_uid)
        if run is None or schedule is None:
            raise RunNotFoundError(run_uid)
        usual = run.timeout or max(1, int(runtime.settings.run_timeout.total_seconds()))
        return Batch(
            run_uid=run.uid,
            workflow=workflow or run.workflow,
            at=run.occurrence_at,
            timeout=schedule.policies.target_timeout or usual,
            schedule_uid=run.schedule_uid,
            queue=run.queue,
            connection=run.connection,
            max_parallel=schedule.policies.max_parallel,
            is_named=run.has_named_targets,
        )

    return runtime.database.read(read)


def fan_out(
    runtime: Runtime,
    batch: Batch,
    chunks: Iterable[Sequence[str | tuple[str, str | None]]],
    checkpoint: Callable[[], None] | None = None,
) -> int:
    """Record the targets of a run chunk by chunk, dispatch the first ones, and say how many there are.

    Repeated after a crash it adds what is missing and dispatches nothing twice. When an earlier attempt has named them
    all, `chunks` is not looked at. `checkpoint` is called between chunks.
    """
    number = 1 + runtime.database.read(lambda connection: fan_out_targets.last_number(connection, batch.run_uid))
    for chunk in () if batch.is_named else chunks:
        record = partial(fan_out_targets.record, batch=batch, named=chunk, first=number, now=runtime.now())
        runtime.database.transact(record)
        number += len(chunk)
        if checkpoint is not None:
            checkpoint()
    dispatch_first(runtime, batch.run_uid)
    counts = runtime.database.read(lambda connection: fan_out_targets.count(connection, batch.run_uid))
    return sum(counts.values())


def dispatch_first(runtime: Runtime, run_uid: str) -> None:
    """Put the first waiting targets of a run on their queue; does nothing when none waits."""
    first = runtime.database.read(lambda connection: fan_out_targets.first_waiting(connection, run_uid))
    if first is None:
        return
    number, max_parallel = first
    if max_parallel is None:
        dispatch(runtime, BatchJobId(run_uid, number))
    else:
        fill(runtime, run_uid)


def dispatch(runtime: Runtime, job: BatchJobId) -> int:
    """Put the next chunk of a run's targets on its queue, and the job that continues behind it; returns how many.

    Does nothing when another delivery of the job did so. Redis down: logged, and reconcile enqueues them. Raises
    UnknownJobError when this database has no target of that run.
    """

    def take(connection: Connection) -> tuple[list[Target], int | None, dict[str, RunName]]:
        chunk, following = fan_out_targets.take_chunk(connection, job, runtime.settings.target_chunk, runtime.now())
        return chunk, following, fan_out_targets.names_of(connection, [job.run_uid]) if chunk else {}

    chunk, following, names = runtime.database.transact(take)
    if not chunk:
        if not runtime.database.read(lambda connection: fan_out_targets.exists_of(connection, job.run_uid)):
            raise UnknownJobError("no such target in this database.")
        return 0
    jobs = jobs_of(runtime, chunk, names)
    if following is not None:
        jobs.append(batch_job(BatchJobId(job.run_uid, following)))
    try:
        runtime.transport.enqueue(jobs, chunk[0].queue, chunk[0].connection, now=runtime.now())
    except RedisError as error:
        text = "%d targets of run %s follow later: %s"
        _log.warning(text, len(chunk), job.run_uid, error, extra={"action": "follow_failed"})
    return len(chunk)


def repair(runtime: Runtime, *, everything: bool) -> Iterator[tuple[int, int]]:
    """Enqueue what should be on its queue, and end the attempts of targets whose process vanished.

    Yields how many rows were compared and how many jobs were written or targets ended, batch by batch.
    """
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    yield from _end_overdue(runtime, now)
    given_up = runtime.database.transact(lambda connection: target_repairs.give_up(connection, now))
    yield given_up, given_up
    while promoted := promote(runtime):
        yield promoted, promoted
        if promoted < PAGE:
            break
    unfinished = runtime.database.read(lambda connection: target_repairs.unfinished_batches(connection, before))
    for job, first in unfinished:
        yield 1, _continue(runtime, job, first)
    cursor: str | None = None
    while True:
        page = partial(target_repairs.pending, before=before, after=cursor, limit=PAGE)
        rows, cursor = runtime.database.read(page)
        yield len(rows), enqueue(runtime, rows)
        if cursor is None:
            return


def _continue(runtime: Runtime, job: BatchJobId, first: Target) -> int:
    """Dispatch the next targets of a run, or put the job that does so behind those that are on its queue."""
    if first.max_parallel is not None:
        return fill(runtime, job.run_uid)
    return runtime.transport.enqueue([batch_job(job)], first.queue, first.connection, now=runtime.now())


def _end_overdue(runtime: Runtime, now: datetime) -> Iterator[tuple[int, int]]:
    """Decide about targets whose process vanished, and about those that were blocked for too long."""
    timeout = runtime.settings.blocked_timeout

    def blocked_for_too_long(connection: Connection, target: Target) -> TargetEnd:
        reason = fan_out_targets.read_error(connection, target.uid) or ""
        return end_blocked(target.blocked_at, reason, now=now, timeout=timeout)

    silent_since = now - runtime.settings.completion_outage - _LOST_AFTER
    lost = EndStep(lambda connection, target: decide_lost(connection, target, LOST, now), now, PAGE)
    blocked = EndStep(blocked_for_too_long, now, PAGE)
    for work in (
        partial(target_repairs.end_silent, before=silent_since, step=lost),
        partial(target_repairs.end_blocked, before=now - timeout, step=blocked),
    ):
        while True:
            ended = runtime.database.transact(work)
            yield len(ended), len(ended)
            if len(ended) < PAGE:
                break
