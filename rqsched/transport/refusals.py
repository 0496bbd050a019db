"""What workers with another database leave in Redis about the jobs they refused: that it happened, and nothing more.

RQ's own count of retries does not say it: a job that nobody promotes is delivered again as a new one.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from redis import Redis
from redis.exceptions import RedisError
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from rqsched.transport import redis_keys

_log = logging.getLogger(__name__)

REMEMBERED = timedelta(minutes=10)
"""How long after its last refusal a job that comes again is not put back once more."""


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

    Of an earlier delivery that failed in the same way nothing is kept: one entry in RQ's registry says it.
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
