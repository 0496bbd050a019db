"""Targets on their queues: the jobs of targets that are pending in SQL, and those of which others follow."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from redis.exceptions import RedisError

from rqsched.chain.runtime import Runtime
from rqsched.core.ids import BatchJobId
from rqsched.errors import BackendUnavailableError
from rqsched.store import fan_out_targets
from rqsched.store.fan_out_targets import RunName, Target
from rqsched.transport.job_label import JobLabel
from rqsched.transport.job_queue import JobSpec

_log = logging.getLogger(__name__)

_DISPATCH_SECONDS = 120
PAGE = 500
"""The most targets that one transaction of a repair changes."""


def enqueue(runtime: Runtime, pending: Sequence[Target]) -> int:
    """Put pending targets on their queues, unless they are there; returns how many were put there.

    Raises RedisError after short retries.
    """
    if not pending:
        return 0
    names = runtime.database.read(partial(fan_out_targets.names_of, run_uids=[target.run_uid for target in pending]))
    grouped: dict[tuple[str | None, str | None], list[Target]] = defaultdict(list)
    for target in pending:
        grouped[target.queue, target.connection].append(target)
    return sum(
        runtime.transport.enqueue(jobs_of(runtime, some, names), *where, now=runtime.now())
        for where, some in grouped.items()
    )


def enqueue_soon(runtime: Runtime, pending: list[Target]) -> None:
    """Do as `enqueue`; with Redis away reconcile enqueues them."""
    try:
        enqueue(runtime, pending)
    except (RedisError, BackendUnavailableError) as error:
        told = len(pending), pending[0].run_uid, error
        _log.warning("%d targets of run %s follow later: %s", *told, extra={"action": "follow_failed"})


def jobs_of(runtime: Runtime, chunk: Iterable[Target], names: Mapping[str, RunName]) -> list[JobSpec]:
    """Describe the jobs of targets; RQ's timeout covers the target and then the time to record how it ended."""
    more = int(runtime.settings.completion_outage.total_seconds())
    return [
        JobSpec(str(target.job_id), target.timeout + more, label=_label(target, names.get(target.run_uid)))
        for target in chunk
    ]


def _label(target: Target, name: RunName | None) -> JobLabel:
    if name is None:
        return JobLabel(target.workflow, target.run_uid)
    known = name.schedule_id, name.namespace, name.occurrence_at, name.attempt
    return JobLabel(target.workflow, target.run_uid, *known)


def batch_job(job: BatchJobId) -> JobSpec:
    """Describe the job that dispatches the next targets of a run."""
    return JobSpec(str(job), _DISPATCH_SECONDS)


def fill(runtime: Runtime, run_uid: str) -> int:
    """Put targets of a run with `max_parallel` in the places that are free; returns how many."""
    now, most = runtime.now(), runtime.settings.target_chunk
    taken = runtime.database.transact(lambda connection: fan_out_targets.take_free(connection, run_uid, most, now))
    if taken:
        enqueue_soon(runtime, taken)
    return len(taken)


def promote(runtime: Runtime, run_uid: str | None = None) -> int:
    """Let a page of retrying and blocked targets whose time has come be handled again, of one run or of all.

    Returns how many there were; with PAGE of them there may be more.
    """
    now = runtime.now()
    ready, limited = runtime.database.transact(lambda c: fan_out_targets.promote(c, now, PAGE, run_uid))
    if ready:
        enqueue_soon(runtime, ready)
    for uid in sorted({target.run_uid for target in limited}):
        fill(runtime, uid)
    return len(ready) + len(limited)
