"""One target of a fan-out: claim it, handle it, record its end, and end its run after the last target.

The process of the last target ends the run. No target locks the row of its run. Instead, each process commits the end
of its target, and then reads whether other targets are open. If none is open, the process settles the run. If the
process dies before that, reconcile settles the run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial

from redis.exceptions import RedisError
from rq.timeouts import JobTimeoutException

from rqsched.errors import NotExecutedError, RunCancelled, UnknownWorkflowError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd, decide_blocked, decide_failed
from rqsched.features.fan_out.dispatch import enqueue_soon
from rqsched.features.fan_out.run_end import try_to_end
from rqsched.features.fan_out.store import ClaimedTarget, Target
from rqsched.features.limits import chain as limits
from rqsched.kernel.chain.attempt import make_context, process_name
from rqsched.kernel.chain.error_text import describe_error, text_of, types_of
from rqsched.kernel.chain.ownership import UnknownJobError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.time_limit import OVERRUN, OutOfTimeError, time_limit
from rqsched.kernel.chain.tracer import Attempt
from rqsched.kernel.decide.ids import RetryLinkId, TargetJobId, new_uid
from rqsched.kernel.decide.model import ENDED_IN_VAIN, OPEN, Run, RunStatus, Schedule, TargetStatus
from rqsched.kernel.decide.policy import TIMEOUT, ErrorTypes
from rqsched.kernel.fork_guard import call_in_this_process
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import FAILURES, Connection
from rqsched.kernel.transport.transport import Arm
from rqsched.workflows import Workflow, WorkflowNotFoundError, enter_run, leave_run, surroundings

_log = logging.getLogger(__name__)

_RUNS_KEPT = 8
"""The maximum number of runs that a process caches while it handles their targets."""


def execute(runtime: Runtime, job: TargetJobId) -> TargetStatus | None:
    """Handle one target from its claim to its recorded end; return None if it could not be claimed.

    A failure is recorded first and then raised again, so that RQ and its exception handlers see it too. If this process
    lacks the target's workflow, the target is given back for another worker. Raises UnknownJobError if this database
    has no such target.
    """
    token, worker = new_uid(runtime.now()), process_name()
    runtime.on_claim(token)
    try:
        claimed = claim_target(runtime, job, token, worker)
    except UnknownJobError:
        raise
    except Exception as error:
        runtime.on_trouble(error, None)
        raise
    if claimed is None:
        _log.info("%s has nothing left to do", job, extra={"action": "target_stale"})
        return None
    target = claimed.target
    if runtime.tracing is None:
        return _handle_to_end(runtime, claimed, token, worker)
    found = claimed.run and _run_of(runtime, target, claimed.run[1])
    attempt = Attempt(
        target.workflow,
        target.uid,
        target.attempt,
        target.queue,
        claimed.started_at,
        found,
        target_id=target.target_id,
        place=target.number,
    )
    with runtime.tracing.attempt(attempt):
        return _handle_to_end(runtime, claimed, token, worker)


def claim_target(runtime: Runtime, job: TargetJobId, token: str, worker: str) -> ClaimedTarget | None:
    """Claim a target. If it is under a limit and has lost its place in the group, ask for a place first.

    Return None if the target could not be claimed.

    Raises UnknownJobError if this database has no such target.
    """

    def claim(connection: Connection, *, is_alone: bool = False) -> ClaimedTarget | None:
        if not is_alone:  # one autocommitted statement skips a locked row
            fan_out_targets.lock(connection, job.uid)
        return fan_out_targets.claim(connection, job, token, runtime.now(), worker, is_alone=is_alone)

    is_alone = runtime.database.takes_single_statements
    claimed = runtime.database.transact_alone(partial(claim, is_alone=is_alone))
    if claimed is not None:
        return claimed
    found = runtime.database.read(lambda connection: fan_out_targets.find_unclaimed(connection, job))
    if found is None:
        raise UnknownJobError("no such target in this database.")
    # A target that has lost its place asks for a new place. If the group is full, it waits in line.
    gets_place = found.asks is not None and limits.ask(runtime, job.uid, found.asks, is_target=True)
    return runtime.database.transact(claim) if gets_place or (is_alone and found.is_ready) else None


def _handle_to_end(runtime: Runtime, claimed: ClaimedTarget, token: str, worker: str) -> TargetStatus | None:
    target = claimed.target
    try:
        status = TargetStatus.SUCCEEDED if _handle(runtime, claimed, token) else TargetStatus.IGNORED
    except RunCancelled as signal:
        cancelled = TargetEnd(TargetStatus.CANCELLED, text_of(signal) or None)
        _finish(runtime, target, token, lambda *_: cancelled)
        return TargetStatus.CANCELLED
    except WorkflowNotFoundError as error:
        return _block(runtime, target, token, worker, error)
    except OutOfTimeError as error:
        _fail(runtime, target, token, f"timeout: {error}", TIMEOUT)
        raise JobTimeoutException(str(error)) from error
    except BaseException as error:
        is_final = isinstance(error, NotExecutedError)  # refused before it ran; a retry would be refused, too
        _fail(runtime, target, token, describe_error(error), types_of(error), is_final=is_final)
        raise
    _finish(runtime, target, token, lambda *_: TargetEnd(status))
    return status


def _handle(runtime: Runtime, claimed: ClaimedTarget, token: str) -> bool:
    target = claimed.target
    workflow = runtime.imports.resolve(target.workflow)
    if workflow.each is None:
        return _call(runtime, workflow, claimed, token)
    with _time_limit(runtime, target, token), surroundings():
        return bool(call_in_this_process(workflow.each, target.target_id))


def _call(runtime: Runtime, workflow: Workflow, claimed: ClaimedTarget, token: str) -> bool:
    """Call a workflow with the id of the target, its payload if there is one, and the arguments of the run."""
    target, payload = claimed.target, claimed.payload
    if claimed.run is None or (found := _run_of(runtime, target, claimed.run[1])) is None:
        raise UnknownWorkflowError(
            target.workflow, f"workflow {target.workflow!r} handles only targets of a run, and this target has no run"
        )
    if (status := claimed.run[0]) in ENDED_IN_VAIN:
        raise RunCancelled(f"its run was {status.value} before it began")
    schedule, run = found
    action = json.loads(run.action)
    args = [target.target_id, *([] if payload is None else [json.loads(payload)]), *action["args"]]
    context = make_context(
        run,
        schedule,
        started_at=claimed.started_at,
        timeout=target.timeout,
        checkpoint=partial(_checkpoint, runtime, target, token),
        attempt=target.attempt,
        target_id=target.target_id,
        traceparent=None if runtime.tracing is None else runtime.tracing.traceparent,
    )
    entered = enter_run(context)
    try:
        with _time_limit(runtime, target, token):
            workflow(args, action["kwargs"])
    finally:
        leave_run(entered)
    return True


def _time_limit(runtime: Runtime, target: Target, token: str) -> AbstractContextManager[None]:
    return time_limit(runtime.watch, target.timeout, partial(lose, runtime, target.job_id, OVERRUN, token=token))


def _run_of(runtime: Runtime, target: Target, attempt: int) -> tuple[Schedule, Run] | None:
    """Return the schedule and the run of a target.

    Within an attempt only the status of the run changes, so a process reads a run only once for many targets.
    """
    key = target.run_uid, attempt
    known = runtime.runs_of_targets.get(key)
    find = partial(changes.find_with_schedule, run_uid=target.run_uid)
    if known is None and (known := runtime.database.read(find)):
        while len(runtime.runs_of_targets) >= _RUNS_KEPT:
            runtime.runs_of_targets.pop(next(iter(runtime.runs_of_targets)), None)
        runtime.runs_of_targets[key] = known
    return known


def _checkpoint(runtime: Runtime, target: Target, token: str) -> None:
    """Raise RunCancelled if the run has ended meanwhile, or if the claim of this process is no longer valid."""
    try:
        is_held = runtime.database.read(lambda connection: fan_out_targets.is_held(connection, target.uid, token))
    except FAILURES as error:
        _log.warning("target %s is not asked about: %s", target.uid, error, extra={"action": "heartbeat_failed"})
        return
    if not is_held:
        raise RunCancelled(f"the run of target {target.target_id} has ended, or the target was given up")


def _block(runtime: Runtime, target: Target, token: str, worker: str, error: WorkflowNotFoundError) -> TargetStatus:
    """Give back a target whose workflow this process lacks. After `blocked_timeout`, fail it and raise `error`."""
    timeout = runtime.settings.blocked_timeout
    reason = f"{worker}: {error.reason}"
    _log.warning("target %s is blocked: %s", target.uid, reason, extra={"action": "target_blocked"})
    end = _finish(
        runtime, target, token, lambda _, now: decide_blocked(target.blocked_at, reason, now=now, timeout=timeout)
    )
    if end.has_ended:
        raise error
    return end.status


def _fail(
    runtime: Runtime, target: Target, token: str, error: str, error_types: ErrorTypes, *, is_final: bool = False
) -> None:
    def decide(connection: Connection, now: datetime) -> TargetEnd:
        schedule = None if is_final else _read_policy(connection, target)
        return decide_failed(schedule, target.uid, target.attempt, error, now=now, error_types=error_types)

    _finish(runtime, target, token, decide, is_alone=False)


def _read_policy(connection: Connection, target: Target) -> Schedule | None:
    """Return the schedule whose policy decides about another attempt of a target; None if no attempt may follow."""
    found = changes.find_with_schedule(connection, target.run_uid)
    return found[0] if found and (found[1].status in OPEN or found[1].status is RunStatus.SUCCEEDED) else None


def _finish(
    runtime: Runtime,
    target: Target,
    token: str,
    decide: Callable[[Connection, datetime], TargetEnd],
    *,
    is_alone: bool = True,
) -> TargetEnd:
    """Decide, record and return the end of an attempt. While SQL is down, retry this as for a run.

    With `is_alone`, try one autocommitted statement first. If it writes nothing, use a transaction.
    """

    def finish(connection: Connection, *, is_alone: bool = False) -> tuple[TargetEnd, tuple[bool, list[Target]] | None]:
        if not is_alone:
            fan_out_targets.lock(connection, target.uid)
        now = runtime.now()
        end = decide(connection, now)
        return end, fan_out_targets.finish(connection, target, token, end, now, is_alone=is_alone)

    runtime.on_end(None)
    written, patience = None, runtime.end_patience
    if is_alone and target.max_parallel is None and runtime.database.takes_single_statements:
        end, written = runtime.database.transact_alone(partial(finish, is_alone=True), patience=patience)
    if written is None:
        end, written = runtime.database.transact(finish, patience=patience)
    if runtime.tracing is not None:
        runtime.tracing.note_outcome(end.status.value)
    may_be_last, following = written or (False, [])
    _follow(runtime, target, end, may_be_last, following)
    return end


def _follow(runtime: Runtime, target: Target, end: TargetEnd, may_be_last: bool, following: list[Target]) -> None:
    """After the end of an attempt, enqueue the next target, arm a retry, and end the run if no target is left."""
    if following:
        enqueue_soon(runtime, following)
    elif target.limit_group is not None:
        limits.give(runtime, (), {target.limit_group})
    if end.retry_at is not None:
        _arm(runtime, target, end.retry_at)
    elif may_be_last:
        try_to_end(runtime, target.run_uid)


def _arm(runtime: Runtime, target: Target, retry_at: datetime) -> None:
    """Arm the retry link of the run, a delayed job that wakes a dispatcher at `retry_at`. Targets have no links.

    Without the link, reconcile would find the target some seconds after it is due.
    """
    try:
        found = runtime.database.read(lambda connection: changes.find_with_schedule(connection, target.run_uid))
        if found is not None:
            schedule, run = found
            link = RetryLinkId(schedule.uid, run.number, run.attempt)
            if not runtime.transport.arm([Arm(link, retry_at)], now=runtime.now()):
                # Another target has armed the link, perhaps for a later time.
                runtime.transport.bring_forward(link, retry_at)
    except RedisError as error:
        _log.warning("target %s is left to reconcile: %s", target.uid, error, extra={"action": "follow_failed"})


def decide_lost(connection: Connection, target: Target, error: str, now: datetime) -> TargetEnd:
    """Decide about a target whose process vanished: another attempt, or its end."""
    schedule = _read_policy(connection, target)
    return decide_failed(schedule, target.uid, target.attempt, error, now=now, is_lost=True)


def lose(runtime: Runtime, job: TargetJobId, reason: str, *, token: str | None = None, is_final: bool = False) -> None:
    """End the attempt of a target after the caller saw its process die. The target is tried again, or it is lost.

    With a `token`, do nothing unless the target was claimed with that token. With `is_final`, a person stopped the
    target, and it has failed.
    """

    def work(connection: Connection) -> tuple[Target, TargetEnd, bool, list[Target]] | None:
        fan_out_targets.lock(connection, job.uid)
        target = fan_out_targets.find_running(connection, job, token)
        if target is None:
            return None
        now = runtime.now()
        end = TargetEnd(TargetStatus.FAILED, reason) if is_final else decide_lost(connection, target, reason, now)
        return target, end, *fan_out_targets.lose(connection, target, end, now)

    if (ended := runtime.database.transact(work)) is not None:
        _follow(runtime, *ended)
