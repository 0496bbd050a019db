"""The functions RQ calls. Their dotted paths are stored in Redis: they are API."""

from __future__ import annotations

import math

from rq import Retry, get_current_job

from rqsched.chain import execution, fanout, firing
from rqsched.chain.reconcile import reconcile_in_turn
from rqsched.chain.runtime import current_runtime
from rqsched.core.ids import BatchJobId, RunJobId, parse_run_job_id, parse_target_job_id

_WAITS = 1_000_000


def fire(link_id: str | None = None) -> Retry | None:
    """Fire one link (the one whose job RQ performs) under a plain `rq worker`, and reconcile when the interval is free.

    A link that came early, or whose schedule another process holds, comes again: RQ is told when.
    """
    runtime = current_runtime()
    fired = firing.fire(runtime, [link_id or _job_id()])[0]
    reconcile_in_turn(runtime)
    if fired.again_at is None:
        return None
    wait = (fired.again_at - runtime.now()).total_seconds()
    return Retry(max=_WAITS, interval=max(1, math.ceil(wait)))


def execute(job_id: str | None = None) -> None:
    """Execute one delivery of a run's attempt, or what a fan-out put on the queue: the one whose job RQ performs.

    Its result is kept in SQL alone: nothing of the user's goes through Redis.
    """
    name = job_id or _job_id()
    job = parse_run_job_id(name) or parse_target_job_id(name)
    if job is None:
        raise ValueError(f"{name!r} is not the id of a run job")
    if isinstance(job, RunJobId):
        execution.execute(current_runtime(), job)
    elif isinstance(job, BatchJobId):
        fanout.dispatch(current_runtime(), job)
    else:
        fanout.execute(current_runtime(), job)


def _job_id() -> str:
    job = get_current_job()
    if job is None:
        raise LookupError("RQ performs no job here; pass the id of the link or run job")
    return str(job.id)
