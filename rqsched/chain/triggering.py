"""Triggers: a run is started on request, by one write without a lock or under that of its schedule; Redis follows.

The uid of the run is drawn before the first attempt, so that what was written by one whose answer was lost is found.
"""

from __future__ import annotations

from rqsched.chain.caller_transaction import operate_in
from rqsched.chain.operations import open_runs
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import CommandContext
from rqsched.core.ids import new_uid
from rqsched.core.model import Change, Run, RunKind, Schedule, ScheduleStatus
from rqsched.core.overlap import StartResult, refused
from rqsched.core.policy import OverlapPolicy
from rqsched.core.start_on_request import Trigger, decide_trigger
from rqsched.errors import IdempotencyConflictError, ScheduleNotFoundError
from rqsched.store import changes, one_change
from rqsched.store.caller_transaction import CallerTransaction
from rqsched.store.database import Connection

_Triggered = tuple[Change, StartResult]


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

    Raises WrongDatabaseError, with nothing written, when Redis belongs to another database.
    """
    runtime.require_own_redis()
    wanted = Trigger(new_uid(runtime.now()), overlap, is_forced, idempotency_key)
    triggering = _Triggering(runtime, uid, wanted, context)
    if within is None and (done := triggering.try_alone()) is not None:
        change, outcome = done
        runtime.publish([change])
    else:
        change, outcome = operate_in(within, runtime, triggering.under_lock, lambda done: [done[0]])
    return change.after, outcome


class _Triggering:
    """One trigger, which may be tried several times."""

    def __init__(self, runtime: Runtime, uid: str, wanted: Trigger, context: CommandContext | None) -> None:
        self._runtime = runtime
        self._uid = uid
        self._wanted = wanted
        self._context = context
        self._tried: _Triggered | None = None
        """What may have been written, its answer lost."""

    def try_alone(self) -> _Triggered | None:
        """Start the run of a schedule that has no open one by a read and a write, each a statement (PostgreSQL only).

        Returns None where it did not, and where its answer was lost.
        """
        database = self._runtime.database
        if self._wanted.idempotency_key is not None or not database.takes_single_statements:
            return None
        return database.transact_alone(self._alone)

    def _alone(self, connection: Connection) -> _Triggered | None:
        found = one_change.read_idle(connection, self._uid) if self._tried is None else None
        if found is None:
            return None
        schedule, version = found
        decided = self._decide(schedule, [])
        if not decided[0].new_runs or self._runtime.notifier.owed([decided[0]]):
            return None
        self._tried = decided
        if not one_change.write(connection, decided[0], version=version):
            self._tried = None
        return self._tried

    def under_lock(self, connection: Connection) -> _Triggered:
        """Decide under the schedule's lock and write; raises ScheduleNotFoundError once it is deleted."""
        schedule = changes.lock_one(connection, self._uid)
        if schedule is None:
            raise ScheduleNotFoundError(self._uid)
        if (known := self._known(connection, schedule)) is not None:
            return known
        if schedule.status is ScheduleStatus.DELETED:
            raise ScheduleNotFoundError(schedule.schedule_id, schedule.namespace)
        self._tried = self._decide(schedule, open_runs(connection, schedule, self._wanted.overlap))
        self._runtime.notifier.write(connection, [self._tried[0]])
        return self._tried

    def _decide(self, schedule: Schedule, runs: list[Run]) -> _Triggered:
        return decide_trigger(schedule, runs, self._wanted, now=self._runtime.now(), context=self._context)

    def _known(self, connection: Connection, schedule: Schedule) -> _Triggered | None:
        """Find what this very trigger, or an earlier one with its key, has done already."""
        if self._tried is None and self._wanted.idempotency_key is None:
            return None  # nobody has heard of its uid
        if self._tried is not None and schedule == self._tried[0].after:
            return self._tried
        if (run := self._known_run(connection, schedule)) is not None:
            outcome = StartResult("buffered" if run.status.value == "buffered" else "triggered", run)
            return Change(schedule, schedule, changed_runs=((run, run),)), outcome
        if schedule.operation == self._wanted.uid:
            return Change(schedule, schedule), refused(schedule.last_skip_reason or "")
        return None

    def _known_run(self, connection: Connection, schedule: Schedule) -> Run | None:
        mine, key = changes.find_run(connection, self._wanted.uid), self._wanted.idempotency_key
        if mine is not None or key is None or schedule.status is ScheduleStatus.DELETED:
            return mine
        known = changes.find_run_by_key(connection, schedule.uid, key)
        if known is not None and (known.kind is not RunKind.MANUAL or not self._is_same_request(schedule, known)):
            raise IdempotencyConflictError(key)
        return known

    def _is_same_request(self, schedule: Schedule, known: Run) -> bool:
        """Return whether the trigger that started a run asked for the same policy."""
        overlap = self._wanted.overlap
        if overlap is None:
            return not known.is_override or known.overlap == schedule.policies.overlap.value
        return known.overlap == overlap.value
