"""What tells a failed run job that a person requeued (`rq requeue`, rq-dashboard) from every other second delivery.

At the final failure of a run the time its job was put on the queue is written into the job's `meta`. Requeueing keeps
`meta` and sets another time. Any other delivery (the job twice on its list, a worker that comes back) has none of this
mark, or the same time; a job that is written anew has lost it. Times alone would not do: a job that is put on its queue
again by whatever moves jobs would run code a second time that may run only once.
"""

from __future__ import annotations

import logging

from redis.exceptions import RedisError
from rq.job import Job

from rqsched.transport.job_queue import rq_time

_log = logging.getLogger(__name__)
_MARK = "rqsched_failed"


def mark_failed(job: Job) -> None:
    """Mark a job as that of a run's final failure; while Redis is away it stays without, and cannot be requeued."""
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
