"""Execution: a process claims a run, executes its workflow, shows that it lives, and records how it ended."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from rq.job import Job
from rq.timeouts import JobTimeoutException

from rqsched.errors import FrozenError, NotExecutedError, RunCancelled
from rqsched.kernel.chain import settle
from rqsched.kernel.chain.attempt import Claim, NotAnsweredError, make_context, process_name
from rqsched.kernel.chain.blocked import block_run, unblock_run
from rqsched.kernel.chain.error_text import describe_error, text_of, types_of
from rqsched.kernel.chain.feature import Call
from rqsched.kernel.chain.heartbeats import Heartbeats
from rqsched.kernel.chain.ownership import UnknownJobError
from rqsched.kernel.chain.run_log import log_start
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import has_failed_finally, publish_end, write_end
from rqsched.kernel.chain.time_limit import OVERRUN, Lose, time_limit
from rqsched.kernel.chain.tracer import Attempt
from rqsched.kernel.decide.ids import RunJobId, new_uid
from rqsched.kernel.decide.model import BLOCKED, Change, RunStatus, dumps
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.database import FAILURES, Connection, Patience
from rqsched.kernel.transport.redelivery import mark_failed
from rqsched.workflows import FannedOut, Workflow, WorkflowNotFoundError, enter_run, leave_run

_log = logging.getLogger(__name__)

MAX_RESULT = 65_536
"""The maximum number of characters of a result's JSON that are stored."""


def execute(runtime: Runtime, job: RunJobId, rq_job: Job | None = None) -> Any:
    """Execute one delivered attempt from claim to recorded end; returns the workflow's result.

    If the attempt was claimed before, or the run was cancelled, this does nothing. If a person requeued the `rq_job`
    after its run had failed, this requests another attempt of the run. The error of a failed attempt is recorded, and
    then raised again for RQ and RQ's exception handlers. If the workflow raises RunCancelled, the run is cancelled. If
    this process cannot find the workflow, the run is given back (see `blocked`). Raises UnknownJobError if this
    database has no such run.
    """
    try:
        claim = claim_run(runtime, job) or _leave(runtime, job, rq_job)
    except (UnknownJobError, FrozenError):
        raise
    except Exception as error:
        runtime.on_trouble(error, None)
        raise
    if claim is None:
        return None
    with nullcontext() if runtime.tracing is None else runtime.tracing.attempt(_traced(claim)):
        log_start(claim.schedule, claim.run)
        found = _find_code(runtime, claim, rq_job)
        if found is None:
            return None
        try:
            with ExitStack() as stack:
                for feature in runtime.features.involved([claim.schedule], [claim.run]):
                    stack.enter_context(feature.attempt(claim.schedule, claim.run, claim.owed))
                result = _perform(runtime, claim, *found, partial(_lose, runtime, job, claim, rq_job))
        except RunCancelled as signal:
            _log.debug("run %s stopped at a checkpoint", claim.run.uid, extra={"action": "run_cancelled"})
            _complete(runtime, claim, AttemptResult(AttemptOutcome.CANCELLED, error=text_of(signal) or None))
            return None
        except BaseException as error:
            _fail(runtime, claim, error, rq_job)
            raise
        is_open = isinstance(result, FannedOut) and result.has_targets
        outcome = AttemptOutcome.DISPATCHED if is_open else AttemptOutcome.SUCCEEDED
        _complete(runtime, claim, AttemptResult(outcome, result=_dump_result(result)))
        return result


def _traced(claim: Claim) -> Attempt:
    run = claim.run
    return Attempt(run.workflow, run.uid, run.attempt, run.queue, run.started_at, (claim.schedule, run))


def _leave(runtime: Runtime, job: RunJobId, rq_job: Job | None) -> Claim | None:
    """Handle an attempt that could not be claimed: it is frozen, late or stale, or a person requests another attempt.

    A feature may request another claim: for example, the run waited for a place in its group and has one now.
    """
    found = runtime.database.read(lambda connection: changes.find_with_schedule(connection, job.uid))
    if found is None:
        raise UnknownJobError(f"no run {job.uid} in this database.")
    schedule, run = found
    is_all_frozen = run.status is RunStatus.PENDING and runtime.freezes.look(is_fresh=True)
    if is_all_frozen or (run.status is RunStatus.PENDING and schedule.namespace in runtime.freezes.frozen):
        # Its job is dropped: the first pass after the thaw delivers the run again.
        what = "everything is frozen" if is_all_frozen else f"namespace {schedule.namespace!r} is frozen"
        _log.info("%s waits: %s", job, what, extra={"action": "run_frozen"})
    elif run.is_late(runtime.now()):
        settle.expire_run(runtime, run)
        _log.info("%s was not started in time", job, extra={"action": "run_expired"})
    else:
        answers = (feature.unclaimed(run, job, rq_job) for feature in runtime.features.listed)
        again = next((again for again in answers if again is not None), None)
        if again is not None:
            return claim_run(runtime, job) if again else None
        _log.info("%s has nothing left to do", job, extra={"action": "run_stale"})
    return None


def _find_code(runtime: Runtime, claim: Claim, rq_job: Job | None) -> tuple[Workflow, Call | None] | None:
    """Find the workflow of a claimed run, and the function that a feature calls instead of the workflow, if any.

    Returns None if this process does not have the code. Then the run was given back.
    """
    try:
        workflow = runtime.imports.resolve(claim.run.workflow)
        involved = runtime.features.involved([], [], [claim.schedule.policies, workflow])
        calls = [feature.call(claim.schedule, claim.run, workflow) for feature in involved]
        found = workflow, next((call for call in calls if call is not None), None)
    except WorkflowNotFoundError as error:
        if runtime.tracing is not None:
            runtime.tracing.note_outcome(BLOCKED)
        change = block_run(runtime, claim.run, error.reason, patience=runtime.end_patience)
        if has_failed_finally(change, claim.run.uid):
            _mark_failed(rq_job)
            raise
        return None
    except BaseException as error:
        _fail(runtime, claim, error, rq_job)
        raise
    if claim.run.blocked_at is not None:
        unblock_run(runtime, claim.run)
    return found


def _fail(runtime: Runtime, claim: Claim, error: BaseException, rq_job: Job | None) -> None:
    is_final = isinstance(error, NotExecutedError)  # the workflow was refused, and would be refused again
    text, types = describe_error(error), types_of(error)
    failed = AttemptResult(AttemptOutcome.FAILED, error=text, is_final=is_final, error_types=types)
    if has_failed_finally(_complete(runtime, claim, failed), claim.run.uid):
        _mark_failed(rq_job)


def _lose(runtime: Runtime, job: RunJobId, claim: Claim, rq_job: Job | None) -> None:
    if has_failed_finally(settle.lose_run(runtime, job, OVERRUN, token=claim.token), claim.run.uid):
        _mark_failed(rq_job)


def _mark_failed(rq_job: Job | None) -> None:
    if rq_job is not None:
        mark_failed(rq_job)


def claim_run(runtime: Runtime, job: RunJobId) -> Claim | None:
    """Claim a pending attempt for this process; None if it could not be claimed, or everything is frozen."""
    if runtime.freezes.is_all_frozen and runtime.freezes.look(is_fresh=True):  # the freeze may be over
        return None
    token, worker = new_uid(runtime.now()), process_name()
    runtime.on_claim(token)
    if runtime.parent is None:
        claim = write_claim(runtime, job, token, worker)
    else:
        try:  # the worker that forked this process may claim for it
            claim = runtime.parent.claim(job, token, worker)
        except NotAnsweredError as error:
            _log.debug("run %s is claimed by its own process: %s", job.uid, error, extra={"action": "parent_silent"})
            claim = write_claim(runtime, job, token, worker)  # under the same token, so there is one claim
    return claim


def write_claim(
    runtime: Runtime, job: RunJobId, token: str, worker: str, *, patience: Patience | None = None
) -> Claim | None:
    """Write the claim of an attempt; None if it could not be claimed. A call with the same token repeats the claim."""
    start = {"token": token, "worker": worker}
    conditions = runtime.features.claims_alone
    alone = None if conditions is None else partial(_claim, runtime, job, start, alone=conditions)
    return runtime.database.transact(partial(_claim, runtime, job, start), alone=alone, patience=patience)


def _claim(
    runtime: Runtime,
    job: RunJobId,
    start: dict[str, Any],
    connection: Connection,
    *,
    alone: claims.Conditions | None = None,
) -> Claim | None:
    if alone is None and not runtime.database.dialect.has_one_writer:  # one writer needs no lock
        claims.lock_run(connection, job.uid)
    start = {**start, "started_at": runtime.now()}
    started = claims.start_run(connection, job.uid, job.attempt, job.delivery, start, alone=alone)
    if started is None:
        return None
    run, schedule, version = started
    owed: list[str] = []
    for feature in runtime.features.involved([schedule], [run]) if alone is None else ():
        owed += feature.claimed(connection, [(run, schedule)], at=start["started_at"])
    return Claim(run, schedule, start["token"], tuple(owed), version)


def _perform(runtime: Runtime, claim: Claim, workflow: Workflow, call: Call | None, lose: Lose) -> Any:
    timeout = claim.run.timeout or max(1, int(runtime.settings.run_timeout.total_seconds()))
    action = json.loads(claim.run.action)
    context = make_context(
        claim.run,
        claim.schedule,
        started_at=claim.run.started_at or runtime.now(),
        timeout=timeout,
        checkpoint=partial(_checkpoint, runtime, claim),
        traceparent=None if runtime.tracing is None else runtime.tracing.traceparent,
    )
    entered = enter_run(context)
    heartbeats = Heartbeats(runtime.settings.heartbeat_interval.total_seconds(), partial(_beat, runtime, claim))
    try:
        with heartbeats, time_limit(runtime.watch, timeout, lose, JobTimeoutException):
            if call is not None:
                return call(context.checkpoint)
            return workflow(action["args"], action["kwargs"])
    finally:
        leave_run(entered)


def _checkpoint(runtime: Runtime, claim: Claim) -> None:
    status = _send_heartbeat(runtime, claim)
    if status is not None:
        raise RunCancelled(f"run {claim.run.uid} is {status}")


def _send_heartbeat(runtime: Runtime, claim: Claim) -> str | None:
    """Record a heartbeat of the run. Return None, or the run's status if this process no longer holds the run."""
    try:
        return runtime.database.transact(lambda c: claims.record_heartbeat(c, claim.run.uid, claim.token))
    except FAILURES as error:  # the database's fault, not the workflow's
        _log.warning("no heartbeat of run %s: %s", claim.run.uid, error, extra={"action": "heartbeat_failed"})
        return None


def _beat(runtime: Runtime, claim: Claim) -> bool:
    """Send a heartbeat from the heartbeat thread; returns whether the run still needs heartbeats."""
    try:
        status = _send_heartbeat(runtime, claim)
        if status == RunStatus.TERMINATED:
            runtime.transport.stop(claim.run)  # this process still lives, so the stop command was lost
        elif status is not None:
            return False
    except Exception:  # noqa: BLE001 - one missing heartbeat does no harm
        _log.exception("heartbeat of run %s failed", claim.run.uid, extra={"action": "heartbeat_failed"})
    return True


def recorded(result: Any) -> Any:
    """Return a workflow's result as the JSON-native value that SQL stores.

    Every serializer of RQ can write such a value.
    """
    text = _dump_result(result)
    return None if text is None else json.loads(text)


def _dump_result(result: Any) -> str | None:
    """Return a workflow's result as JSON, or else its `repr` as JSON. Raise nothing, because the run has succeeded."""
    if result is None:
        return None
    text = dumps(f"<{type(result).__name__}>")
    for write in (dumps, lambda value: dumps(repr(value))):
        try:
            text = write(result)
            break
        except BaseException:  # noqa: BLE001, S112 - the workflow's own code, which may also end the process
            continue
    return text if len(text) <= MAX_RESULT else dumps(text[: MAX_RESULT // 2] + " [cut]")


def _complete(runtime: Runtime, claim: Claim, attempt_result: AttemptResult) -> Change | None:
    """Record how this process's attempt ended; None if another process had ended it before.

    During an outage this is tried again for `completion_outage`. A database that refuses writes also counts as an
    outage, for example if it is read-only or full, or its user lacks a privilege.
    """
    at, is_repeated = None, False
    runtime.on_end(attempt_result)
    if runtime.tracing is not None:
        runtime.tracing.note_outcome(attempt_result.outcome.value)
    if runtime.parent is not None and attempt_result.outcome is AttemptOutcome.SUCCEEDED:
        at = runtime.now()
        try:
            return publish_end(runtime, runtime.parent.end(attempt_result, at))
        except NotAnsweredError as error:
            _log.debug("run %s ends by its own process: %s", claim.run.uid, error, extra={"action": "parent_silent"})
            is_repeated = True
    try:
        patience = runtime.end_patience
        written = write_end(runtime, claim, attempt_result, at=at, is_repeated=is_repeated, patience=patience)
    except Exception as error:
        _log.exception("the end of run %s is lost", claim.run.uid, extra={"action": "completion_lost"})
        runtime.on_trouble(error, attempt_result)
        raise
    return publish_end(runtime, written)
