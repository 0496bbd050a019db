"""Retries on request: of one run, of all runs that failed since an instant, and of jobs that `rq requeue` requeued."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rq.job import Job

from rqsched.errors import (
    ConflictError,
    FrozenError,
    InvalidInputError,
    InvalidLimitError,
    NotFoundError,
    RunNotFoundError,
    RunStateError,
)
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.feature import Feature
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import runs_on_request
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import RunJobId, new_uid
from rqsched.kernel.decide.model import FAILURES, OPEN, Change, Run, RunKind, RunStatus
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.decide.results import RetryRow
from rqsched.kernel.decide.runs_on_request import decide_retry_on_request
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries.runs import FailedRuns
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.redelivery import is_requeued, mark_failed

_log = logging.getLogger(__name__)

DEFAULT_BOUND = 1_000
"""The maximum number of runs of one bulk retry by default."""


class RetryOnRequest(Feature):
    """Give a run one more attempt if a person requeues its failed job in RQ."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def unclaimed(self, run: Run, job: RunJobId, rq_job: Job | None) -> bool | None:  # noqa: ARG002 - read under its lock
        """Retry the run of a requeued job. The retry has a new job, so the requeued job ends without effect."""
        if rq_job is None or not is_requeued(rq_job):
            return None
        try:
            retry_requeued(self._runtime, job)
        except FrozenError:
            mark_failed(rq_job)
            raise
        return False


def retry_run(
    runtime: Runtime,
    run_uid: str,
    *,
    reason: str | None = None,
    context: CommandContext | None = None,
    fence: Callable[[Run], bool] | None = None,
    failed_targets: bool = False,
) -> Run:
    """Give a run that ended without success one more attempt. Return the run after this change.

    With `failed_targets`, the run must have failed targets, and may have succeeded. A blocked run is put on its queue
    now. If the run is already being retried on request, it is returned unchanged.

    Raises RunNotFoundError; RunStateError if the run cannot be retried, or if `fence` returns False for it;
    WrongDatabaseError if Redis belongs to another database; and FrozenError while everything or the namespace is
    frozen. After an error, nothing is written.
    """
    runtime.ownership.require_own_redis()
    runtime.freezes.require_none()
    operation = new_uid(runtime.now())

    def decide(connection: Connection, tried: Decided[Run] | None) -> Decided[Run]:
        found = changes.lock_with_schedule(connection, run_uid)
        if found is None:
            raise RunNotFoundError(run_uid)
        schedule, run = found
        if tried is not None and tried.is_written(schedule):
            return tried
        is_under_way = run.is_asked and run.status in OPEN and not run.is_blocked
        if is_under_way or (tried is not None and _has_begun(run, tried.result)):
            return Decided([Change(schedule, schedule, changed_runs=((run, run),))], run)
        if fence is not None and not fence(run):
            raise RunStateError(run.uid, run.status.value, "retry", "It has changed since; read it again.")
        runtime.freezes.require_thawed(schedule.namespace)
        is_backfill = run.kind is RunKind.BACKFILL
        is_free = schedule.policies.overlap is OverlapPolicy.ALLOW_ALL  # then no open run matters
        others = [] if is_free else changes.open_runs(connection, [schedule], with_backfill=is_backfill)[schedule.uid]
        decided = decide_retry_on_request(
            schedule,
            others,
            run,
            now=runtime.now(),
            reason=reason,
            context=context,
            failed_targets=failed_targets,
            operation=operation,
        )
        again = next(after for _, after in decided.changed_runs if after.uid == run_uid)
        return Decided([decided], again, also=partial(prepare_again, run_uids=[run_uid]))

    return change(runtime, decide)


def _has_begun(run: Run, tried: Run) -> bool:
    """Return whether the attempt in `tried` was committed, even if it has ended since."""
    return not tried.is_blocked and (run.asked_attempt or 0) >= (tried.asked_attempt or 0)


def prepare_again(connection: Connection, run_uids: Sequence[str]) -> None:
    """Prepare runs for another attempt: set failed targets back to waiting, and remove dead letters."""
    fan_out_targets.wait_again(connection, run_uids)
    run_queries.take_off_dead_letters(connection, run_uids)


def find_failed(runtime: Runtime, wanted: FailedRuns, bound: int = DEFAULT_BOUND) -> list[RetryRow]:
    """Return the runs of a bulk retry, ordered by their end. Raises InvalidLimitError for more than `bound` runs."""
    for name, instant in (("since", wanted.since), ("until", wanted.until)):
        if instant is not None and instant.tzinfo is None:
            raise InvalidInputError(name, "is naive; pass an aware datetime, such as one with tzinfo=UTC")
    if isinstance(bound, bool) or bound < 1:
        raise InvalidLimitError("bound", "must be at least 1")
    found = runtime.database.read(lambda connection: run_queries.failed_runs(connection, wanted, bound + 1))
    if len(found) > bound:
        raise InvalidLimitError(
            "bound",
            f"more than {bound} runs have failed since then; give a later instant, a schedule or a higher bound",
        )
    return [RetryRow(run.uid, schedule_id, run.instance_id, "would_retry") for schedule_id, run in found]


def require_retryable(runtime: Runtime, run_uid: str, *, failed_targets: bool = False) -> None:
    """Check that a run could be retried now, without writing. Raises the same errors as `retry_run`."""

    def read(connection: Connection) -> None:
        found = changes.find_with_schedule(connection, run_uid)
        if found is None:
            raise RunNotFoundError(run_uid)
        schedule, run = found
        if not (run.is_asked and run.status in OPEN):
            runs_on_request.require_retryable(schedule, run, failed_targets=failed_targets)

    runtime.database.read(read)


def retry_failed(
    runtime: Runtime,
    wanted: FailedRuns,
    *,
    bound: int = DEFAULT_BOUND,
    reason: str | None = None,
    context: CommandContext | None = None,
) -> Iterator[RetryRow]:
    """Retry every failed run, each in a separate transaction, and yield the outcome of each.

    If the overlap policy of a schedule requires it, its runs start one after another. After an interruption, call this
    again. Retried runs are left out then, because they do not count as failed any more.
    """
    for row in find_failed(runtime, wanted, bound):
        why = None
        try:
            run = retry_run(runtime, row.run_uid, reason=reason, context=context)
            outcome = "buffered" if run.status is RunStatus.BUFFERED else "started"
        except (ConflictError, NotFoundError) as error:
            outcome, why = "skipped", str(error)
        yield RetryRow(row.run_uid, row.schedule_id, row.instance_id, outcome, why)


def retry_requeued(runtime: Runtime, job: RunJobId) -> Run | None:
    """Retry the run of a failed job that was requeued in RQ. Return None if the run cannot be retried.

    Only the job of the run's last attempt can be retried. Raises FrozenError while everything, or the namespace, is
    frozen. Then the job fails again, and can be requeued after the thaw.
    """

    def is_its_end(run: Run) -> bool:
        return run.attempt == job.attempt and run.status in FAILURES

    try:
        run = retry_run(
            runtime, job.uid, reason="requeued in RQ", context=CommandContext(source="rq"), fence=is_its_end
        )
    except FrozenError:
        raise
    except (ConflictError, NotFoundError) as error:
        _log.warning("%s was requeued, but its run is not retried: %s", job, error, extra={"action": "requeue_refused"})
        return None
    _log.info("%s was requeued: attempt %d of its run follows", job, run.attempt, extra={"action": "run_requeued"})
    return run
