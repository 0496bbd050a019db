"""Ownership: whose job it is. A worker whose database does not know a run or target says so, and what to set.

Only a claim that was lost asks: a job that can be claimed costs no read more.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta

from redis import Redis
from redis.exceptions import RedisError
from rq.job import Job

from rqsched.chain.runtime import Runtime
from rqsched.core.ids import BatchJobId, DeliveryJobId, RunJobId, TargetJobId
from rqsched.errors import NotFoundError, RqschedError, WrongDatabaseError
from rqsched.transport import telemetry
from rqsched.transport.redelivery import give_up, record_refusal

PUT_BACK = timedelta(seconds=5)
"""After how long a job is offered once more that this worker's database does not know."""
_REMEDY = (
    "Set RQSCHED_DATABASE_URL of this worker to the database of the processes that create its schedules, or let it "
    "listen on other queues (RQSCHED_DEFAULT_QUEUE gives each database queues of its own)."
)


class UnknownJobError(NotFoundError):
    """This database has no row for the run or target of a job."""

    code = "unknown_job"


def explain(
    runtime: Runtime, job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, owner: str | None
) -> RqschedError:
    """Return the error that says why this database does not know a job; `owner` is the database its meta names.

    A WrongDatabaseError when the job belongs to another database; else its row was deleted.
    """
    mine = runtime.database_id()
    owner = owner or _owner_of_queue(runtime)
    if owner is not None and owner != mine:
        return WrongDatabaseError(f"job {job} belongs to database {owner}, and this worker's is {mine}. {_REMEDY}")
    return UnknownJobError(
        f"job {job} is not of a run in this database ({mine}): its schedule was purged, or the database was restored "
        "from an older copy."
    )


def _owner_of_queue(runtime: Runtime) -> str | None:
    """Ask Redis who owns the control queue: jobs of the first release name no database."""
    try:
        return runtime.transport.database_id()
    except RedisError:
        return None


def is_refused_again(job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, carrier: Job) -> bool:
    """Remember that this worker refuses a job; returns whether one of its deliveries was put back before."""
    name = f"{job.uid}-a{job.attempt}" if isinstance(job, RunJobId) else str(job)
    return record_refusal(carrier.connection, name) or bool(carrier.number_of_retries)


def step_back(runtime: Runtime, job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, carrier: Job) -> None:
    """Give a refused job up, and take no other until its owner has delivered it again, so that another worker gets it.

    Redis gives a job to the worker that has waited longest: a plain RQ worker blocks for minutes, so it would be first
    again each time, and a worker with the right database never.
    """
    earlier = str(job._replace(delivery=job.delivery - 1)) if isinstance(job, RunJobId) and job.delivery > 1 else None
    give_up(carrier, earlier)
    settings = runtime.settings
    time.sleep((settings.grace + settings.reconcile_interval).total_seconds())


def report_foreign_worker(runtime: Runtime, redis: Redis, owner: str | None, worker: str | None) -> None:
    """Show in the Redis of a job that this worker has another database, for the owner's `rqsched doctor`."""
    name = f"{socket.gethostname()}{f' ({worker})' if worker else ''}"
    owner = owner or _owner_of_queue(runtime)
    if owner is not None:
        telemetry.record_foreign_worker(redis, owner, name, now=runtime.now())
