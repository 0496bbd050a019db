"""Fan-out: a run that names many targets, and a job for each of them.

The run records its targets and puts the first chunk of them on its queue, and behind that chunk a job that
continues with the next one. A queue is first in, first out: the next chunk comes when workers have taken the one
before, however few they are, and nothing waits or counts. SQL first, Redis second: reconcile enqueues what a crash
left out.

Each target is dispatched once (its id is computed from run and target), claimed once, and fails alone.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

from redis.exceptions import RedisError
from rq.timeouts import JobTimeoutException, get_default_death_penalty_class

from rqsched.chain.execution import describe_error
from rqsched.chain.fan_out_ends import try_to_end
from rqsched.chain.ownership import UnknownJobError
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import BatchJobId, TargetJobId, new_uid
from rqsched.core.model import TargetStatus
from rqsched.errors import UnknownWorkflowError
from rqsched.store import fanout_targets
from rqsched.store.database import Connection, Patience
from rqsched.store.fanout_targets import Batch, RunName, Target
from rqsched.transport.job_label import JobLabel
from rqsched.transport.job_queue import JobSpec
from rqsched.workflows import surroundings

_log = logging.getLogger(__name__)

_DISPATCH_SECONDS = 120
_PAGE = 500
_LOST_AFTER = timedelta(seconds=60)
"""How long a target may take to record its end, beyond an SQL outage, before it counts as lost."""


def fan_out(
    runtime: Runtime, batch: Batch, chunks: Iterable[list[str]], checkpoint: Callable[[], None] | None = None
) -> int:
    """Record the targets of a run chunk by chunk, dispatch the first ones, and say how many there are.

    Repeated after a crash it adds what is missing and dispatches nothing twice. `checkpoint` is called between chunks.
    """
    number = 1 + runtime.database.read(lambda connection: fanout_targets.last_number(connection, batch.run_uid))
    for chunk in chunks:
        record = partial(fanout_targets.record, batch=batch, target_ids=chunk, first=number, now=runtime.now())
        runtime.database.transact(record)
        number += len(chunk)
        if checkpoint is not None:
            checkpoint()
    first = runtime.database.read(lambda connection: fanout_targets.first_waiting(connection, batch.run_uid))
    if first is not None:
        dispatch(runtime, BatchJobId(batch.run_uid, first))
    counts = runtime.database.read(lambda connection: fanout_targets.count(connection, batch.run_uid))
    return sum(counts.values())


def dispatch(runtime: Runtime, job: BatchJobId) -> int:
    """Put the next chunk of a run's targets on its queue, and the job that continues behind it; returns how many.

    Does nothing when another delivery of the job did so. Redis down: logged, and reconcile enqueues them. Raises
    UnknownJobError when this database has no target of that run.
    """

    def take(connection: Connection) -> tuple[list[Target], int | None, dict[str, RunName]]:
        chunk, following = fanout_targets.take_chunk(connection, job, runtime.settings.target_chunk, runtime.now())
        return chunk, following, fanout_targets.names_of(connection, [job.run_uid]) if chunk else {}

    chunk, following, names = runtime.database.transact(take)
    if not chunk:
        _require_known(runtime, partial(fanout_targets.exists_of, run_uid=job.run_uid))
        return 0
    jobs = _jobs_of(runtime, chunk, names)
    if following is not None:
        jobs.append(_next(BatchJobId(job.run_uid, following)))
    try:
        runtime.transport.enqueue(jobs, chunk[0].queue, chunk[0].connection, now=runtime.now())
    except RedisError as error:
        text = "%d targets of run %s follow later: %s"
        _log.warning(text, len(chunk), job.run_uid, error, extra={"action": "follow_failed"})
    return len(chunk)


def _require_known(runtime: Runtime, exists: Callable[[Connection], bool]) -> None:
    if not runtime.database.read(exists):
        raise UnknownJobError("no such target in this database.")


def _jobs_of(runtime: Runtime, chunk: Iterable[Target], names: Mapping[str, RunName]) -> list[JobSpec]:
    """Describe the jobs of targets; RQ's timeout covers the target and then the time to record how it ended."""
    more = int(runtime.settings.completion_outage.total_seconds())
    return [
        JobSpec(str(TargetJobId(target.uid)), target.timeout + more, label=_label(target, names.get(target.run_uid)))
        for target in chunk
    ]


def _label(target: Target, name: RunName | None) -> JobLabel:
    if name is None:
        return JobLabel(target.workflow, target.run_uid)
    known = name.schedule_id, name.namespace, name.occurrence_at, name.attempt
    return JobLabel(target.workflow, target.run_uid, *known)


def _next(job: BatchJobId) -> JobSpec:
    return JobSpec(str(job), _DISPATCH_SECONDS)


class _OutOfTimeError(BaseException):
    """A target took too long. Not an Exception: state machines and loops that catch those would continue."""


def execute(runtime: Runtime, job: TargetJobId) -> TargetStatus | None:
    """Handle one target from claim to recorded end; None when it could not be claimed.

    A failure is recorded first and then raised again, so that RQ and its exception handlers see it too. Raises
    UnknownJobError when this database has no such target.
    """
    token = new_uid(runtime.now())
    runtime.on_claim(token)
    claim = partial(fanout_targets.claim, uid=job.uid, token=token, now=runtime.now())
    target = runtime.database.transact(claim)
    if target is None:
        _require_known(runtime, partial(fanout_targets.exists, uid=job.uid))
        _log.info("%s has nothing left to do", job, extra={"action": "target_stale"})
        return None
    try:
        status = TargetStatus.SUCCEEDED if _handle(runtime, target) else TargetStatus.IGNORED
    except _OutOfTimeError as error:
        _finish(runtime, target, token, TargetStatus.FAILED, f"timeout: {error}")
        raise JobTimeoutException(str(error)) from error
    except BaseException as error:
        _finish(runtime, target, token, TargetStatus.FAILED, describe_error(error))
        raise
    _finish(runtime, target, token, status)
    return status


def _handle(runtime: Runtime, target: Target) -> bool:
    each = runtime.workflows.resolve(target.workflow).each
    if each is None:
        raise UnknownWorkflowError(target.workflow, f"workflow {target.workflow!r} does not handle targets")
    with get_default_death_penalty_class()(target.timeout, _OutOfTimeError), surroundings():
        return each(target.target_id)


def _finish(runtime: Runtime, target: Target, token: str, status: TargetStatus, error: str | None = None) -> None:
    """Record the end through an SQL outage as long as a run's may last."""
    patience = Patience(total=runtime.settings.completion_outage, longest=timedelta(seconds=5), repeats_timeouts=True)
    finish = partial(fanout_targets.finish, target=target, token=token, status=status, now=runtime.now(), error=error)
    may_be_last = runtime.database.transact(finish, patience=patience)
    if may_be_last:
        try_to_end(runtime, target.run_uid)


def lose(runtime: Runtime, job: TargetJobId, reason: str, *, token: str | None = None) -> None:
    """Fail a target whose process this one saw die; with a `token`, only if it was claimed under it."""
    give_up = partial(fanout_targets.lose, uid=job.uid, error=reason, now=runtime.now(), token=token)
    runtime.database.transact(give_up)


def repair(runtime: Runtime, *, everything: bool) -> Iterator[tuple[int, int]]:
    """Enqueue what should be on its queue, and fail targets whose process vanished.

    Yields how many rows were compared and how many jobs were written or targets failed, batch by batch.
    """
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    silent_since = now - runtime.settings.completion_outage - _LOST_AFTER
    lost = runtime.database.transact(lambda connection: fanout_targets.lose_silent(connection, silent_since, now))
    yield lost, lost
    given_up = runtime.database.transact(lambda connection: fanout_targets.give_up(connection, now))
    yield given_up, given_up
    unfinished = runtime.database.read(lambda connection: fanout_targets.unfinished_batches(connection, before))
    for job, first in unfinished:
        yield 1, runtime.transport.enqueue([_next(job)], first.queue, first.connection, now=runtime.now())
    cursor: str | None = None
    while True:
        page = partial(fanout_targets.pending, before=before, after=cursor, limit=_PAGE)
        rows, cursor = runtime.database.read(page)
        yield len(rows), _post_all(runtime, rows)
        if cursor is None:
            return


def _post_all(runtime: Runtime, pending: Sequence[Target]) -> int:
    if not pending:
        return 0
    names = runtime.database.read(partial(fanout_targets.names_of, run_uids=[target.run_uid for target in pending]))
    grouped: dict[tuple[str | None, str | None], list[Target]] = defaultdict(list)
    for target in pending:
        grouped[target.queue, target.connection].append(target)
    return sum(
        runtime.transport.enqueue(_jobs_of(runtime, some, names), *where, now=runtime.now())
        for where, some in grouped.items()
    )
