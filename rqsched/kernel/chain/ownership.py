"""Ownership: tell which database a control queue belongs to, and which database a job belongs to.

A key in Redis names the database that owns the control queue. After a flush the key is missing. If a worker's database
does not have the run or target of a job, the worker reports this and says which setting to change. The worker checks
this only if a claim fails, so a job that can be claimed costs no additional read.

A copy of a database has the same id. So another key, and the meta of jobs, hold the identity of the PostgreSQL server.
With each call of the scripts LEASE and ARM, a process presents the identity that it read from its own server, and the
script compares it with the key. If the two differ, the process asks Redis which server may use the control queue. A
promoted server may use it at once. An old primary may not use it. A copy may use it when no process of the original was
seen for `ALIVE_FOR`.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from redis import Redis
from redis.exceptions import RedisError
from rq.job import Job

from rqsched.config import Settings
from rqsched.errors import BackendUnavailableError, ConfigError, NotFoundError, RqschedError, WrongDatabaseError
from rqsched.kernel.decide.ids import BatchJobId, DeliveryJobId, RunJobId, TargetJobId, iso_utc, new_uid
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Database, Patience
from rqsched.kernel.store.server_identity import ServerIdentity, parse_identity
from rqsched.kernel.transport import telemetry
from rqsched.kernel.transport.redelivery import give_up, record_refusal
from rqsched.kernel.transport.transport import Standing, Transport

_log = logging.getLogger(__name__)

ALIVE_FOR = timedelta(minutes=5)
"""How long a server counts as alive after the last pass of one of its processes."""
MAY_GO_ON = frozenset({"first", "same", "promoted", "adopted", "taken"})
"""The outcomes of a comparison that let a server use the control queue."""
REFUSALS = {
    "older": "has gone on without this server: this one ({mine}) is of an earlier timeline, as an old primary is that "
    "comes back after a failover. Set RQSCHED_DATABASE_URL to the new primary",
    "alive": "belongs to the database of another server, whose processes were seen within five minutes: this one "
    "({mine}) is a copy. Stop the processes of the other one, or set RQSCHED_DATABASE_URL to it, or let the copy be a "
    "database of its own: `rqsched db new-identity`",
    "waits": "belongs to the database of another server, whose processes may come back: this one ({mine}) takes over "
    "when none was seen for some seconds more",
    "flushed": "was flushed, and this process was refused before: this server ({mine}) takes over when no process of "
    "the other one comes back within five minutes",
}
"""Why a server may not use the control queue, by the outcome of the comparison."""
_TOLD = {
    "promoted": (logging.WARNING, {"action": "server_promoted"}),
    "adopted": (logging.WARNING, {"action": "server_adopted"}),
    "taken": (logging.ERROR, {"action": "server_taken_over"}),
}
PUT_BACK = timedelta(seconds=5)
"""If this worker refuses a job, because the worker's database lacks the job's run, the job is on its queue again after
this time."""
_AT_ONCE = Patience(total=timedelta(0))
_ASK_SECONDS = 1.0
"""How many seconds a copy waits before it asks again whether its original is gone."""
_REMEDY = (
    "Set RQSCHED_DATABASE_URL of this worker to the database of the processes that create its schedules, or let it "
    "listen on other queues (RQSCHED_DEFAULT_QUEUE gives each database queues of its own)."
)


class Ownership:
    """The id of the SQL database of this process, and whether the control queue in Redis belongs to that database."""

    def __init__(self, database: Database, transport: Transport, now: Callable[[], datetime]) -> None:
        self.database = database
        """The SQL database of this process."""
        self.transport = transport
        """Redis, which records the owner of the control queue."""
        self._now = now
        self._known: str | None = None
        self._recognised: tuple[ServerIdentity, str] | None = None
        self._refused_at: float | None = None
        if database.dialect.has_server:
            transport.claim = self.claim_server
            database.on_identity.append(self._present)
            database.recorded = self._recorded
            if database.identity is not None:
                self._present(database.identity)

    def _recorded(self) -> ServerIdentity | None:
        """Ask Redis which server has the control queue; None if no server is recorded or Redis does not answer."""
        try:
            server = self.transport.recorded(attempts=1).server
        except (RedisError, ConfigError):
            return None
        return None if server is None else parse_identity(server)

    def _present(self, mine: ServerIdentity) -> None:
        """Let the scripts present the server of the newest connection, in the form that Redis recorded, if known."""
        known = self._recognised
        self.transport.server = known[1] if known is not None and known[0] == mine else str(mine)

    def claim_server(self, *, waits: bool = False) -> None:
        """Record the server that answers now, if it may have the control queue, and present it from then on.

        With `waits`, if this server is a copy and its original seems to be gone, this waits until the original is
        certainly gone. Raises WrongDatabaseError, which says what to do, if another server has the control queue.
        Raises BackendUnavailableError if PostgreSQL does not answer.
        """
        mine = self.database.identify()
        if mine is None:
            return
        found = self._compare(mine, "claim")
        if found.outcome not in MAY_GO_ON:
            self.database.close()  # this process's connections may lead to a server that all other processes have left
            mine = self.database.identify() or mine
            found = self._compare(mine, "claim")
        while waits and found.outcome == "waits":
            time.sleep(_ASK_SECONDS)
            found = self._compare(mine, "claim")
        if found.outcome not in MAY_GO_ON:
            self._refused_at = time.monotonic()
            why = REFUSALS[found.outcome].format(mine=mine)
            raise WrongDatabaseError(
                f"control queue {self.transport.control.name!r} {why}. If this server is the right one, `rqsched db "
                f"adopt` lets it go on at once (recorded is {found.recorded or 'none'})."
            )
        self._refused_at = None
        self._go_on(mine, found)

    def adopt_server(self) -> Standing:
        """Record this process's server in any case. From then on Redis refuses processes of the server recorded before.

        This deletes the findings that SQL or Redis went back and that a server took over. Raises WrongDatabaseError if
        the control queue belongs to a database with another id.
        """
        mine = self.database.identify()
        if mine is None:
            self.is_known_to_redis()
            self.database.transact(metadata.forget_went_back)
            return Standing("same", "")
        found = self._compare(mine, "adopt")
        self.database.transact(metadata.forget_went_back)
        self._go_on(mine, found)
        return found

    def standing(self) -> Standing:
        """Compare this process's server with the recorded one, and change nothing."""
        mine = self.database.identify()
        return Standing("same", "") if mine is None else self._compare(mine, "ask")

    def require_server(self, presented: str | None) -> None:
        """Raise WrongDatabaseError if `presented` names another server and this process's server may not use the queue.

        While PostgreSQL does not answer, this raises nothing. The next statement raises the error.
        """
        if presented is None or presented == self.transport.server or not self.database.dialect.has_server:
            return
        with suppress(BackendUnavailableError):
            if self.database.identity is None:  # this process has not asked SQL for anything yet
                self.database.identify(patience=_AT_ONCE)
            if presented != self.transport.server:
                self.claim_server()

    def _compare(self, mine: ServerIdentity, what: str) -> Standing:
        settings, since = self.transport.settings, self._refused_at
        was_refused = since is not None and time.monotonic() - since < ALIVE_FOR.total_seconds()
        waits = (settings.repair_grace + settings.reconcile_interval).total_seconds()
        options = what, int(ALIVE_FOR.total_seconds()), waits, int(was_refused)
        found = self.transport.claim_identity(self.known_database_id(), mine, *options)
        if found.outcome == "other" and what != "ask":
            self._require_owner(found.recorded)
        return found

    def _go_on(self, mine: ServerIdentity, found: Standing) -> None:
        """Present this process's server as it is recorded now, and log if another server was recorded before."""
        self._recognised = (mine, found.recorded)
        self._present(mine)
        if found.outcome in _TOLD:
            level, extra = _TOLD[found.outcome]
            text = "control queue %r goes on with another server: %s, before %s (%s)"
            told = self.transport.control.name, found.recorded, found.before or "none", found.outcome
            _log.log(level, text, *told, extra=extra)
        if found.outcome == "taken":
            record = f"{iso_utc(self._now())} {found.before}"
            self.database.transact(lambda connection: metadata.set_value(connection, metadata.TAKEN_OVER, record))

    def database_id(self) -> str:
        """Read the id of the SQL database; draw one if the database has none."""
        find = partial(metadata.find_value, name=metadata.DATABASE_ID)
        known = self.database.read(find, is_alone=True)
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
        """Return the database's id, read once in this process; None if it is not known and SQL does not answer."""
        try:
            return self._known or self.database_id()
        except BackendUnavailableError:
            return None

    def is_known_to_redis(self) -> bool:
        """Return whether Redis remembers this database; False after a flush.

        Raises WrongDatabaseError if the control queue belongs to another database.
        """
        owner = self.transport.database_id()
        if owner is None:
            return False
        self._require_owner(owner)
        return True

    def require_own_redis(self) -> None:
        """Raise WrongDatabaseError if the control queue belongs to another database, before anything is written.

        Redis is asked once. If it does not answer, this raises nothing: the caller writes to SQL, and Redis follows
        later.
        """
        try:
            owner, server = self.transport.recorded(attempts=1)
            if owner is not None:
                self._require_owner(owner)
            self.require_server(server)
        except RedisError:
            return

    def _require_owner(self, owner: str) -> None:
        # Read the id again, because it may have changed: a database can be replaced by a copy.
        if owner == self._known or owner == (mine := self.database_id()):
            return
        raise WrongDatabaseError(
            f"control queue {self.transport.control.name!r} in this Redis belongs to another database "
            f"({owner}, not {mine}). Set RQSCHED_DATABASE_URL to that database, or give this one a Redis database "
            f"or a RQSCHED_CONTROL_QUEUE of its own; if the other one is gone, delete the key "
            f"{self.transport.database_id_key!r}."
        )

    def leave_flush_marker(self) -> str | None:
        """Write a key to Redis that a flush removes, and return its name; None if Redis knows this database already.

        Raises WrongDatabaseError if the control queue belongs to another database.
        """
        return None if self.is_known_to_redis() else self.transport.leave_flush_marker(new_uid(self._now()))

    def record_database_id(self, flush_marker: str) -> bool:
        """Record this database in Redis, unless one is recorded already; False if Redis was flushed meanwhile."""
        return self.transport.record_database_id(self.database_id(), flush_marker)

    def owner_of_queue(self) -> str | None:
        """Ask Redis which database owns the control queue. Return None if Redis does not answer.

        This serves jobs whose meta names no database.
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
    """Return the error that says why this database does not know a job; `owner` is the database in the job's meta.

    This is a WrongDatabaseError if the job belongs to another database. Otherwise the row of the job was deleted.
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
    """Remember that this worker refuses a job; returns whether a delivery of the job was put back before."""
    name = f"{job.uid}-a{job.attempt}" if isinstance(job, RunJobId) else str(job)
    return record_refusal(carrier.connection, name) or bool(carrier.number_of_retries)


def step_back(settings: Settings, job: RunJobId | TargetJobId | BatchJobId | DeliveryJobId, carrier: Job) -> None:
    """Give up a refused job, and wait until the processes of its database have delivered the run again.

    Redis gives a job to the worker that has waited longest, and a plain RQ worker waits for minutes. So if this worker
    did not pause here, it would get the job again each time, and a worker with the right database would never get it.
    """
    earlier = str(job._replace(delivery=job.delivery - 1)) if isinstance(job, RunJobId) and job.delivery > 1 else None
    give_up(carrier, earlier)
    time.sleep((settings.repair_grace + settings.reconcile_interval).total_seconds())


def report_foreign_worker(redis: Redis, owner: str, worker: str | None, *, now: datetime) -> None:
    """Record in the job's Redis that this worker has another database, for `rqsched doctor` with the right database."""
    name = f"{socket.gethostname()}{f' ({worker})' if worker else ''}"
    telemetry.record_foreign_worker(redis, owner, name, now=now)
