"""The functions that RQ calls. Their dotted paths are stored in Redis, so they must not change."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rq import Retry, get_current_job
from rq.job import Job

from rqsched.config import Settings
from rqsched.errors import RqschedError, WrongDatabaseError
from rqsched.features.list import make_runtime
from rqsched.kernel.chain import execution, ownership
from rqsched.kernel.chain import fire as firing
from rqsched.kernel.chain.feature import OwnJobId
from rqsched.kernel.chain.ownership import UnknownJobError
from rqsched.kernel.chain.reconcile.passes import reconcile_in_turn
from rqsched.kernel.chain.runtime import Runtime, in_use
from rqsched.kernel.decide.ids import RunJobId, parse_delivery_job_id, parse_run_job_id, parse_target_job_id
from rqsched.kernel.store import schema_version
from rqsched.kernel.transport.job_label import DATABASE, SERVER, WORKFLOW

_log = logging.getLogger(__name__)

_WORKFLOWS = WORKFLOW.removeprefix(f"{__name__}.") + "."
_WAITS = 1_000_000


def __getattr__(name: str) -> Callable[..., Any]:
    """Return `execute` for every name `workflow.<name>`, by which RQ's tools distinguish workflows.

    RQ looks up this name when it imports the function of a job; the job's id identifies the run.
    """
    if name.startswith(_WORKFLOWS) and name != _WORKFLOWS:
        return execute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def current_runtime() -> Runtime:
    """Return the runtime for this process's RQ jobs: from `using`, else from the environment, made once."""
    return in_use.get() or _from_environment()


@lru_cache(maxsize=1)
def _from_environment() -> Runtime:
    runtime = make_runtime(Settings())
    if runtime.settings.is_sqlite:
        schema_version.upgrade(runtime.database)
    runtime.imports.owe(None)
    # If modules are missing, links still fire and runs of known workflows execute. Other workers execute the other
    # runs.
    runtime.imports.attempt()
    return runtime


def fire(link_id: str | None = None) -> Retry | None:
    """Fire the link whose job RQ performs in a plain `rq worker`, and make a pass of reconcile if one is due.

    The result makes RQ repeat a link that came early, or whose schedule another process holds.
    """
    runtime, name = current_runtime(), link_id or _job_id()
    runtime.freezes.look()
    fired = firing.fire(runtime, [name], skip_locked=True)[0]
    reconcile_in_turn(runtime)
    if runtime.tracing is not None:
        runtime.tracing.end_job(name)
    if fired.again_at is None:
        return None
    wait = (fired.again_at - runtime.now()).total_seconds()
    return Retry(max=_WAITS, interval=max(1, math.ceil(wait)))


def execute(job_id: str | None = None) -> Any:
    """Execute the job with this id: an attempt of a run, a target or batch of a fan-out, or a notification.

    The result is kept only in SQL, and no user data goes through Redis. But if RQ keeps the jobs of succeeded runs
    (`RQSCHED_RQ_RESULT_TTL`), RQ gets the result, too. A job of another database is put back once, for a worker of that
    database, and then fails with advice on the settings.
    """
    name = job_id or _job_id()
    job = parse_run_job_id(name) or parse_target_job_id(name) or parse_delivery_job_id(name)
    if job is None:
        raise ValueError(f"{name!r} is not the id of a run job")
    rq_job = None if job_id else get_current_job()
    server = None if rq_job is None else rq_job.meta.get(SERVER)
    if server is not None and server != current_runtime().transport.server:
        try:
            current_runtime().ownership.require_server(server)
        except WrongDatabaseError as error:
            return _refuse(job, error)
    try:
        if isinstance(job, RunJobId):
            current_runtime().freezes.look(with_sql=False)  # the claim reads the freezes in SQL itself
            result = execution.execute(current_runtime(), job, rq_job)
            return execution.recorded(result) if rq_job is not None and rq_job.result_ttl else None
        if not current_runtime().features.owner_of(job).perform(job) and _is_foreign(rq_job):
            return _refuse(job)
    except UnknownJobError:
        return _refuse(job)
    finally:
        if (tracing := current_runtime().tracing) is not None:
            tracing.end_job(name)
    return None


def _is_foreign(rq_job: Job | None) -> bool:
    """Return whether a job without a row is of another database. The row of a ping is gone after its arrival."""
    owner = None if rq_job is None else rq_job.meta.get(DATABASE)
    return owner is not None and owner != current_runtime().ownership.database_id()


def _refuse(job: RunJobId | OwnJobId, error: RqschedError | None = None) -> Retry:
    """Put a job of another database back once, else raise the error.

    A job that belongs to another server of the database, as `error` says, is put back, too.
    """
    runtime, carrier = current_runtime(), get_current_job()
    owner = None if carrier is None else carrier.meta.get(DATABASE)
    error = error or ownership.explain(runtime.ownership, job, owner)
    _log.error("a job is refused: %s", error, extra={"action": "job_refused"})
    if carrier is None or not isinstance(error, WrongDatabaseError):
        raise error
    if (owner := owner or runtime.ownership.owner_of_queue()) is not None:
        ownership.report_foreign_worker(carrier.connection, owner, carrier.worker_name, now=runtime.now())
    if ownership.is_refused_again(job, carrier):
        ownership.step_back(runtime.settings, job, carrier)
        raise error
    return Retry(max=1, interval=int(ownership.PUT_BACK.total_seconds()))


def _job_id() -> str:
    job = get_current_job()
    if job is None:
        raise LookupError("RQ performs no job here; pass the id of the link or run job")
    return str(job.id)
