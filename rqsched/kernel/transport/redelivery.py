"""Recognise a job that is delivered again, because a worker with another database refused it or a person requeued it.

A refusal is remembered in Redis. RQ's own count of retries is not enough. If no RQ scheduler puts the job back on its
queue, reconcile delivers a new job, and RQ's count starts again.

When a run has finally failed, its job's `meta` gets a mark: the time at which the job was put on its queue. Requeueing
(`rq requeue`, rq-dashboard) keeps the mark and puts the job on the queue at another time. A job may also come again
because it was on its list twice, or because its worker comes back. In these cases the job has no mark, or the mark
equals the time at which the job was put on its queue. Without the mark, any tool that puts a job on its queue again
would look like a person, and code that may run only once would run twice.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from redis import Redis
from redis.exceptions import RedisError
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.job_queue import rq_time

_log = logging.getLogger(__name__)

REMEMBERED = timedelta(minutes=10)
"""How long a refusal is remembered. A job that comes again in this time is not put back on its queue."""
_MARK = "rqsched_failed"


def record_refusal(redis: Redis, name: str) -> bool:
    """Remember a refused job by a name that all its deliveries share; returns whether it was refused before."""
    key = redis_keys.refused(name)
    try:
        is_first = bool(redis.set(key, 1, ex=REMEMBERED, nx=True))
        if not is_first:
            redis.expire(key, REMEMBERED)
    except RedisError as error:
        _log.debug("a refusal is not remembered: %s", error, extra={"action": "telemetry_failed"})
        return True
    return not is_first


def give_up(job: Job, earlier: str | None) -> None:
    """Show a job as failed before its worker does, so that processes of the right database soon deliver the run again.

    An earlier delivery that failed in the same way is removed, because one entry in RQ's registry is enough.
    """
    try:
        job.set_status(JobStatus.FAILED)
        if earlier is not None:
            registry = FailedJobRegistry(job.origin, connection=job.connection, serializer=job.serializer)
            registry.remove(earlier, delete_job=True)
    except NoSuchJobError:
        return
    except RedisError as error:
        _log.debug("job %s still looks alive: %s", job.id, error, extra={"action": "telemetry_failed"})


def mark_failed(job: Job) -> None:
    """Mark the job of a run that has finally failed.

    While Redis is away the job gets no mark, and cannot be requeued.
    """
    enqueued_at = _enqueued_at(job)
    if enqueued_at is None:
        return
    try:
        job.meta[_MARK] = enqueued_at
        job.save_meta()
    except RedisError as error:
        _log.warning("job %s is not marked as failed: %s", job.id, error, extra={"action": "mark_failed"})


def is_requeued(job: Job) -> bool:
    """Return whether a person put this job on its queue again after the final failure of its run."""
    mark = job.meta.get(_MARK)
    return mark is not None and mark != _enqueued_at(job)


def _enqueued_at(job: Job) -> str | None:
    return None if job.enqueued_at is None else rq_time(job.enqueued_at)
