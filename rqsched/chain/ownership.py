"""Ownership: which database a control queue belongs to, and whose a job is.

A key in Redis names the database that owns the control queue; it is missing after a flush. A worker whose database does
not know a run or target says so, and what to set. Only a claim that was lost asks: a job that can be claimed costs no
read more.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from redis import Redis
from redis.exceptions import RedisError
from rq.job import Job

from rqsched.config import Settings
from rqsched.core.ids import BatchJobId, DeliveryJobId, RunJobId, TargetJobId, new_uid
from rqsched.errors import BackendUnavailableError, NotFoundError, RqschedError, WrongDatabaseError
from rqsched.store import metadata
from rqsched.store.database import Database
from rqsched.transport import telemetry
from rqsched.transport.redelivery import give_up, record_refusal
from rqsched.transport.transport import Transport

PUT_BACK = timedelta(seconds=5)
"""After how long a job is offered once more that this worker's database does not know."""
_REMEDY = (
    "Set RQSCHED_DATABASE_URL of this worker to the database of the processes that create its schedules, or let it "
    "listen on other queues (RQSCHED_DEFAULT_QUEUE gives each database queues of its own)."
)


class Ownership:
    """The id of the SQL database of this process, and whether the control queue in Redis is that database's."""

    def __init__(self, database: Database, transport: Transport, now: Callable[[], datetime]) -> None:
        self.database = database
        """Whose id it is."""
        self.transport = transport
        """Where the control queue's owner is recorded."""
        self._now = now
        self._known: str | None = None

    def database_id(self) -> str:
        """Read the id of the SQL database, which is drawn once."""
        known = self.database.read(lambda connection: metadata.find_value(connection, metadata.DATABASE_ID))
        if known is None:
            drawn = new_uid(self._now())
            known = self.database.transact(
                lambda connection: metadata.claim_value(connection, metadata.DATABASE_ID, drawn)
            )
        self._known = known
        return known

    def known_database_id(self) -> str:
        """Return the id of the SQL database as it was read last in this process."""
        return self._known or self.database_id()

    def owner_of_jobs(self) -> str | None:
        """Return the database's id, read once in this process; None while it is not known and SQL does not answer."""
        try:
            return self._known or self.database_id()
        except BackendUnavailableError:
            return None

    def is_known_to_redis(self) -> bool:
        """Tell whether Redis remembers this database; False after a flush.

        Raises WrongDatabaseError when the control queue belongs to another database.
        """
        owner = self.transport.database_id()
        if owner is None:
            return False
        self._require_owner(owner)
        return True

    def require_own_redis(self) -> None:
        """Raise WrongDatabaseError when the control queue belongs to another database, before anything is written.

        It is asked once, without patience: while Redis does not answer, SQL is written all the same and Redis follows.
        """
        try:
            owner = self.transport.database_id(attempts=1)
        except RedisError:
            return
        if owner is not None:
            self._require_owner(owner)

    def _require_owner(self, owner: str) -> None:
        # What was read before may have changed since: a database can be replaced by a copy.
        if owner == self._known or owner == (mine := self.database_id()):
            return
        raise WrongDatabaseError(
            f"control queue {self.transport.control.name!r} in this Redis belongs to another database "
            f"({owner}, not {mine}). Set RQSCHED_DATABASE_URL to that database, or give this one a Redis database "
            f"or a RQSCHED_CONTROL_QUEUE of its own; if the other one is gone, delete the key "
            f"{self.transport.database_id_key!r}."
        )

    def leave_flush_marker(self) -> str | None:
        """Leave a key in Redis that a flush takes away; None when Redis knows this database already.

        Raises WrongDatabaseError when the control queue belongs to another database.
        """
        return None if self.is_known_to_redis() else self.transport.leave_flush_marker(new_uid(self._now()))

    def record_database_id(self, flush_marker: str) -> bool:
        """Let Redis remember this database, unless another was first; False when Redis was flushed meanwhile."""
        return self.transport.record_database_id(self.database_id(), flush_marker)

    def owner_of_queue(self) -> str | None:
        """Ask Redis who owns the control queue; None when it does not say.

        Jobs of the first release name no database.
        """
        try:
            return self.transport.database_id()
        except RedisError:
            return None


class UnknownJobError(NotFoundError):
    """This database has no row for the run or target of a job."""

    code = "unknown_job"


def explain(
    ownership: Ownership, job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, owner: str | None
) -> RqschedError:
    """Return the error that says why this database does not know a job; `owner` is the database its meta names.

    A WrongDatabaseError when the job belongs to another database; else its row was deleted.
    """
    mine = ownership.database_id()
    owner = owner or ownership.owner_of_queue()
    if owner is not None and owner != mine:
        return WrongDatabaseError(f"job {job} belongs to database {owner}, and this worker's is {mine}. {_REMEDY}")
    return UnknownJobError(
        f"job {job} is not of a run in this database ({mine}): its schedule was purged, or the database was restored "
        "from an older copy."
    )


def is_refused_again(job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, carrier: Job) -> bool:
    """Remember that this worker refuses a job; returns whether one of its deliveries was put back before."""
    name = f"{job.uid}-a{job.attempt}" if isinstance(job, RunJobId) else str(job)
    return record_refusal(carrier.connection, name) or bool(carrier.number_of_retries)


def step_back(settings: Settings, job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, carrier: Job) -> None:
    """Give a refused job up, and take no other until its owner has delivered it again, so that another worker gets it.

    Redis gives a job to the worker that has waited longest: a plain RQ worker blocks for minutes, so it would be first
    again each time, and a worker with the right database never.
    """
    earlier = str(job._replace(delivery=job.delivery - 1)) if isinstance(job, RunJobId) and job.delivery > 1 else None
    give_up(carrier, earlier)
    time.sleep((settings.grace + settings.reconcile_interval).total_seconds())


def report_foreign_worker(redis: Redis, owner: str, worker: str | None, *, now: datetime) -> None:
    """Show in the Redis of a job that this worker has another database, for the owner's `rqsched doctor`."""
    name = f"{socket.gethostname()}{f' ({worker})' if worker else ''}"
    telemetry.record_foreign_worker(redis, owner, name, now=now)
