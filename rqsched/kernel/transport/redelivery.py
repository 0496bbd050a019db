"""How a job that is delivered again is recognised: refused by a worker with another database, or requeued by a person.

A refusal is remembered in Redis: RQ's own count of retries does not say it, for a job that nobody promotes is delivered
again as a new one.

At the final failure of a run the time its job was put on the queue is written into the job's `meta`. Requeueing (`rq
requeue`, rq-dashboard) keeps `meta` and sets another time. Any other delivery (the job twice on its list, a worker that
comes back) has none of this mark, or the same time; a job that is written anew has lost it. Times alone would not do: a
job that is put on its queue again by whatever moves jobs would run code a second time that may run only once.
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
"""How long after its last refusal a job that comes again is not put back once more."""
_MARK = "rqsched_failed"


def record_refusal(redis: Redis, name: str) -> bool:
    """Remember that a job was refused, by a name that all its deliveries share; returns whether it was before."""
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
    """Show a job as failed before its worker does, so that its owner delivers the run again at once.

    An earlier delivery that failed in the same way is removed: one entry in RQ's registry is enough.
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
    """Mark the job of a run's final failure. While Redis is away it gets no mark, and cannot be requeued."""
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
