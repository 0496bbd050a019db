"""Triggers and copies: start a run on request, and publish it.

A trigger needs one statement without a lock, or the schedule's lock; a copy of a run needs the lock.

The uid of the new run is drawn before the first try. So if a try is committed but its answer is lost, the next try
finds the run.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rqsched.errors import IdempotencyConflictError, RunNotFoundError, ScheduleNotFoundError
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.operations import open_runs
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule, ScheduleStatus
from rqsched.kernel.decide.overlap import StartResult
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.decide.runs_on_request import Copy, Trigger, action_of_copy, decide_copy, decide_trigger
from rqsched.kernel.store import changes
from rqsched.kernel.store.caller_transaction import CallerTransaction
from rqsched.kernel.store.database import Connection

_Started = Decided[tuple[Schedule, StartResult]]
_Copied = Decided[tuple[Schedule, Run]]


def trigger(
    runtime: Runtime,
    uid: str,
    *,
    overlap: OverlapPolicy | None = None,
    is_forced: bool = False,
    idempotency_key: str | None = None,
    context: CommandContext | None = None,
    within: CallerTransaction | None = None,
) -> tuple[Schedule, StartResult]:
    """Start a run now as the overlap policy allows; the same idempotency key returns the same run.

    Raises WrongDatabaseError if Redis belongs to another database. Raises FrozenError while everything, or the
    namespace, is frozen. After these errors nothing is written.
    """
    runtime.ownership.require_own_redis()
    runtime.freezes.require_none()
    wanted = Trigger(new_uid(runtime.now()), overlap, is_forced, idempotency_key)

    def write(context: CommandContext | None) -> tuple[Schedule, StartResult]:
        one = _Triggering(runtime, uid, wanted, context)
        return change(runtime, one.decide, alone=one.decide_alone if idempotency_key is None else None, within=within)

    if (tracing := runtime.tracing) is None:
        return write(context)
    with tracing.asked("trigger", context) as asked:
        schedule, result = write(asked.context)
        asked.note(schedule, result.outcome, result.run)
        return schedule, result


class _Triggering(NamedTuple):
    """One trigger: its reads and its decisions."""

    runtime: Runtime
    uid: str
    wanted: Trigger
    context: CommandContext | None

    def decide(self, connection: Connection, tried: _Started | None) -> _Started:
        """Decide under the schedule's lock; raises ScheduleNotFoundError if the schedule is deleted."""
        schedule = changes.lock_one(connection, self.uid)
        if schedule is None:
            raise ScheduleNotFoundError(self.uid)
        if tried is not None and tried.is_written(schedule):
            return tried
        run = self._find_known(connection, schedule, is_tried=tried is not None)
        if run is not None:
            outcome = StartResult("buffered" if run.status is RunStatus.BUFFERED else "triggered", run)
            return Decided([Change(schedule, schedule, changed_runs=((run, run),))], (schedule, outcome))
        if schedule.status is ScheduleStatus.DELETED:
            raise ScheduleNotFoundError(schedule.schedule_id, schedule.namespace)
        overlap = self.wanted.overlap
        is_free = (overlap or schedule.policies.overlap) is OverlapPolicy.ALLOW_ALL  # then no open run matters
        return self._start(schedule, [] if is_free else open_runs(connection, schedule, overlap))

    def decide_alone(self, connection: Connection) -> tuple[_Started, str] | None:
        """Decide without a lock to start a run of a schedule that has no open run; None if this is not possible."""
        found = changes.read_idle(connection, self.uid)
        if found is None:
            return None
        schedule, version = found
        started = self._start(schedule, [])
        return (started, version) if started.changes[0].new_runs else None

    def _start(self, schedule: Schedule, runs: list[Run]) -> _Started:
        self.runtime.freezes.require_thawed(schedule.namespace)
        decided, outcome = decide_trigger(schedule, runs, self.wanted, now=self.runtime.now(), context=self.context)
        return Decided([decided], (decided.after, outcome))

    def _find_known(self, connection: Connection, schedule: Schedule, *, is_tried: bool) -> Run | None:
        """Find the run that an earlier try of this trigger, or an earlier trigger with the same key, started."""
        mine = changes.find_run(connection, self.wanted.uid) if is_tried else None
        key = self.wanted.idempotency_key
        if mine is not None or key is None or schedule.status is ScheduleStatus.DELETED:
            return mine
        known = changes.find_run_by_key(connection, schedule.uid, key)
        if known is None:
            return None
        # Both triggers must have asked for the same policy.
        is_alike = known.overlap == (self.wanted.overlap or schedule.policies.overlap).value
        if self.wanted.overlap is None:
            is_alike = is_alike or not known.is_override
        if known.kind is not RunKind.MANUAL or known.copied_from is not None or not is_alike:
            raise IdempotencyConflictError(key)
        return known


def copy_run(runtime: Runtime, run_uid: str, wanted: Copy, *, context: CommandContext | None = None) -> Run:
    """Run an ended run again, as a new run, and return the new run; the same idempotency key returns the same run.

    Raises RunNotFoundError if the run was pruned, and IdempotencyConflictError if the key belongs to another request.
    Also raises the errors of `trigger` and of `decide_copy`. After an error, nothing is written.
    """
    runtime.ownership.require_own_redis()
    runtime.freezes.require_none()

    def decide(context: CommandContext | None, connection: Connection, tried: _Copied | None) -> _Copied:
        found = changes.lock_with_schedule(connection, run_uid)
        if found is None:
            raise RunNotFoundError(run_uid)
        schedule, run = found
        if tried is not None and tried.is_written(schedule):
            return tried
        known = changes.find_run(connection, wanted.uid) if tried is not None else None
        known = known or _find_copy(connection, run, wanted)
        if known is not None:
            decided = Change(schedule, schedule, changed_runs=((known, known),))
        else:
            runtime.freezes.require_thawed(schedule.namespace)
            is_free = schedule.policies.overlap is OverlapPolicy.ALLOW_ALL  # then no open run matters
            others = [] if is_free else changes.open_runs(connection, [schedule])[schedule.uid]
            decided = decide_copy(schedule, others, run, wanted, now=runtime.now(), context=context)
        copied = known or decided.new_runs[0]
        return Decided([decided], (decided.after, changes.with_upstream(connection, copied)))

    if (tracing := runtime.tracing) is None:
        return change(runtime, partial(decide, context))[1]
    with tracing.asked("trigger", context) as asked:
        schedule, run = change(runtime, partial(decide, asked.context))
        asked.note(schedule, "buffered" if run.status is RunStatus.BUFFERED else "triggered", run)
        return run


def _find_copy(connection: Connection, run: Run, wanted: Copy) -> Run | None:
    """Find the copy that an earlier request with the same key made of a run."""
    key = wanted.idempotency_key
    known = None if key is None else changes.find_run_by_key(connection, run.schedule_uid, key)
    if key is None or known is None:
        return None
    same = (run.uid, action_of_copy(run, wanted), wanted.downstream)
    if (known.copied_from, known.action, known.starts_downstream) != same:
        raise IdempotencyConflictError(key)
    return known
