"""Operations: one owner's request as one transaction with its audit event, or a part of its caller's; Redis follows.

The uid of the operation is drawn before the first attempt and written with the row, so that a lost answer to COMMIT is
told from a lost COMMIT, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rqsched.chain import upstreams
from rqsched.chain.changing import Decided, change
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import new_uid
from rqsched.core.lifecycle import planned_first
from rqsched.core.model import Change, Run, Schedule, ScheduleStatus
from rqsched.core.policy import OverlapPolicy
from rqsched.errors import ScheduleNotFoundError, VersionConflictError
from rqsched.store import changes, pruning
from rqsched.store.caller_transaction import CallerTransaction
from rqsched.store.database import Connection

Decide = Callable[[Connection, Schedule, str], Change]
"""Decides about a locked schedule; the text is the operation's uid."""


def operate(
    runtime: Runtime,
    uid: str,
    decide: Decide,
    *,
    version: int | None = None,
    stops: bool = False,
    within: CallerTransaction | None = None,
    after: tuple[str, str, str] | None = None,
) -> Schedule:
    """Decide about one incarnation under its lock, write, commit, publish; returns the schedule as it is then.

    Raises ScheduleNotFoundError once it is deleted and VersionConflictError when `version` is given and differs. What
    only `stops` something is done even when Redis belongs to another database; anything else raises
    WrongDatabaseError then. `after` are a namespace, the id of this schedule in it and that of the one that it
    is to come after: raises UpstreamError where it cannot.
    """
    if not stops:
        runtime.ownership.require_own_redis()
    operation = new_uid(runtime.now())

    def decide_one(connection: Connection, tried: Decided[Schedule] | None) -> Decided[Schedule]:
        namespace, schedule_id, upstream = after or ("", "", None)
        wanted = {schedule_id: upstream} if after is not None else {}
        locked = upstreams.lock(connection, namespace, wanted) if after is not None else {}
        schedule = changes.lock_one(connection, uid)
        if tried is not None and tried.is_written(schedule):
            return tried
        if schedule is None or schedule.status is ScheduleStatus.DELETED:
            named = (schedule.schedule_id, schedule.namespace) if schedule else (uid, "")
            raise ScheduleNotFoundError(*named)
        if version is not None and version != schedule.version:
            raise VersionConflictError(schedule.schedule_id, version, schedule.version)
        upstreams.require(connection, namespace, wanted, locked)
        ran_of = partial(changes.nominals_run, connection)
        decided = planned_first(
            schedule, lambda one: decide(connection, one, operation), now=runtime.now(), ran_of=ran_of
        )
        return Decided([decided], decided.after, also=upstreams.telling(namespace, wanted, [decided]))

    return change(runtime, decide_one, within=within)


def open_runs(connection: Connection, schedule: Schedule, overlap: OverlapPolicy | None = None) -> list[Run]:
    """Read what a decision about a locked schedule must see, and lock what it may end; `overlap` is its own policy."""
    return changes.open_runs_for_start(connection, [schedule], overlap=overlap)[schedule.uid]


def purge(runtime: Runtime, uid: str) -> None:
    """Remove a deleted schedule's row with its runs, backfills, audit events and keys, for good.

    The jobs of runs that wait on their queues are withdrawn: a worker would report them as unknown.
    """

    def decide(connection: Connection, tried: Decided[list[Run]] | None) -> Decided[list[Run]]:
        if changes.lock_one(connection, uid) is None and tried is not None:
            return tried
        return Decided([], changes.pending_runs(connection, uid), also=partial(pruning.purge_schedule, uid=uid))

    waiting = change(runtime, decide)
    runtime.transport.withdraw(waiting)
