"""Operations: write an owner's request and its audit event in one transaction, which is ours or the caller's.

The uid of the operation is drawn before the first try and written with the row. If the answer to a COMMIT was lost,
this uid shows whether the COMMIT was executed, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rqsched.errors import RqschedError, ScheduleNotFoundError, VersionConflictError
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.plans import Plan, outcome_of, while_calendars_move
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.lifecycle import planned_first
from rqsched.kernel.decide.model import Change, Run, Schedule, ScheduleStatus
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.store import changes, metadata, named_calendars
from rqsched.kernel.store.caller_transaction import CallerTransaction
from rqsched.kernel.store.database import Connection

Decide = Callable[[Connection, Schedule, str], Change]
"""Decides about a locked schedule. The text is the operation's uid."""


def operate(
    runtime: Runtime,
    uid: str,
    decide: Decide,
    *,
    version: int | None = None,
    stops: bool = False,
    within: CallerTransaction | None = None,
    after: tuple[str, str, str] | None = None,
    foresee: Decide | None = None,
) -> Schedule:
    """Decide about one incarnation under its lock, write, commit, publish; returns the changed schedule.

    Raises ScheduleNotFoundError if the schedule is deleted, and VersionConflictError if `version` is given and differs.
    If Redis belongs to another database, only an operation that `stops` something is allowed. Any other operation
    raises WrongDatabaseError. `after` is the namespace, this schedule's id and the id of its new upstream (see
    `lock_declared`).

    `foresee` makes the same decision as `decide`, but without a lock. Use it if the decision may take long and depends
    only on the schedule and its calendars. It is called first. Its decision is used under the lock if the schedule and
    its calendars have not changed. Raises CalendarBusyError if the calendars change again and again.
    """
    if not stops:
        runtime.ownership.require_own_redis()
    operation = new_uid(runtime.now())
    foreseen: Plan | None = None

    def decide_one(connection: Connection, tried: Decided[Schedule] | None) -> Decided[Schedule]:
        if after is not None:
            namespace, schedule_id, upstream = after
            lock_declared(connection, namespace, {schedule_id: upstream})
        schedule = changes.lock_one(connection, uid)
        if tried is not None and tried.is_written(schedule):
            return tried
        if schedule is None or schedule.status is ScheduleStatus.DELETED:
            named = (schedule.schedule_id, schedule.namespace) if schedule else (uid, "")
            raise ScheduleNotFoundError(*named)
        if version is not None and version != schedule.version:
            raise VersionConflictError(schedule.schedule_id, version, schedule.version)
        ran_of = partial(changes.nominals_run, connection)
        calendars_of = partial(named_calendars.named, connection, schedule.namespace, locks=True)
        decided = (foreseen and foreseen.taken(schedule, calendars_of)) or planned_first(
            schedule, lambda one: decide(connection, one, operation), now=runtime.now(), ran_of=ran_of
        )
        return Decided([decided], decided.after)

    def attempt() -> Schedule:
        nonlocal foreseen
        if foresee is not None and within is None:
            foreseen = runtime.database.read(partial(_look_ahead, runtime, uid, foresee, operation))
        return change(runtime, decide_one, within=within)

    return while_calendars_move(attempt)


def lock_declared(connection: Connection, namespace: str, wanted: Mapping[str, str | None]) -> dict[str, Schedule]:
    """Lock and read, by id, the schedules that an operation declares, and their upstreams.

    All are locked together, in the order of `changes.lock`. If there is an upstream, no other operation can change the
    upstreams of the namespace's schedules meanwhile. `wanted` maps the id of each declared schedule to the id of its
    upstream, or to None.
    """
    named = {one for one in wanted.values() if one is not None}
    if named:
        metadata.lock_of(connection, "upstreams", namespace)
    return changes.lock_named(connection, namespace, [*wanted, *sorted(named - wanted.keys())])


def _look_ahead(runtime: Runtime, uid: str, decide: Decide, operation: str, connection: Connection) -> Plan | None:
    known = changes.find(connection, uid)
    if known is None:
        return None
    ran_of, now = partial(changes.nominals_run, connection), runtime.now()
    outcome = outcome_of(
        lambda: planned_first(known, lambda one: decide(connection, one, operation), now=now, ran_of=ran_of)
    )
    if isinstance(outcome, RqschedError):
        return Plan(known, (), (), outcome)
    return Plan(known, outcome.after.spec.calendars, outcome.after.contents, outcome)


def open_runs(connection: Connection, schedule: Schedule, overlap: OverlapPolicy | None = None) -> list[Run]:
    """Read the open runs of a locked schedule, and lock the runs that a start may end.

    `overlap` replaces the schedule's policy.
    """
    return changes.open_runs_for_start(connection, [schedule], overlap=overlap)[schedule.uid]


def purge(runtime: Runtime, uid: str) -> None:
    """Delete the row of a deleted schedule with its runs, backfills, audit events and keys. This cannot be undone.

    The waiting jobs of its runs are removed from their queues, because a worker would report them as unknown.
    """

    def decide(connection: Connection, tried: Decided[list[Run]] | None) -> Decided[list[Run]]:
        if changes.lock_one(connection, uid) is None and tried is not None:
            return tried
        return Decided([], changes.pending_runs(connection, uid), also=partial(changes.purge_schedule, uid=uid))

    waiting = change(runtime, decide)
    runtime.transport.withdraw(waiting)
