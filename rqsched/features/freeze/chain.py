"""Freeze and thaw a namespace or everything, and preview a thaw.

During a freeze no fire and no attempt begins. A thaw first handles due schedules and waiting runs as requested, and
then ends the freeze. If the thaw is interrupted, everything is still frozen, and the thaw can be repeated. If the
freeze of everything has ended in SQL but not in Redis, the next pass of reconcile ends it in Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from redis.exceptions import RedisError

from rqsched.clock import SystemClock
from rqsched.errors import BackendUnavailableError, InvalidInputError, RedisUnavailableError
from rqsched.features.after import store as upstream_ends
from rqsched.features.after.chain import UNFOLLOWED, follow_frozen
from rqsched.features.after.decide import Thaw
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.fire_decision import FireContext, decide_fire, decide_miss_due
from rqsched.kernel.decide.freeze import DueSchedule, Freeze, Thawed, ThawPreview, WaitingRun
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.model import OPEN, Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.policy import MissedPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.refusal import told

_log = logging.getLogger(__name__)

_WAITING = OPEN - {RunStatus.RUNNING}
PREVIEWED = 500
"""The maximum number of schedules, and of runs, that a preview lists."""
THAWS: dict[str | None, MissedPolicy | None] = {
    None: None,
    "one": MissedPolicy.FIRE_ONCE,
    "all": MissedPolicy.ALL,
    "none": None,
}
"""The policy for each value of `missed` of a thaw. Without a value, each schedule's own policy applies. With `none` no
occurrence fires."""


class _Due(NamedTuple):
    """The due schedules that a thaw handles, and what happens to their occurrences."""

    namespace: str | None
    """The namespace of the schedules; None for all namespaces that are not frozen."""
    is_missed: bool = False
    """Whether due occurrences are recorded as missed."""
    since: datetime | None = None
    """With `is_missed`: occurrences due before this instant fire nevertheless; None means that none fires."""
    missed: MissedPolicy | None = None
    """The policy by which occurrences fire; None means the policy of each schedule."""


def freeze(runtime: Runtime, namespace: str | None, context: CommandContext) -> Freeze:
    """Freeze a namespace, or everything if it is None, and return the freeze. An existing freeze does not change.

    SQL stores the freeze of a namespace. Raises BackendUnavailableError if SQL does not answer. A note in Redis makes
    other processes read SQL at once. If Redis does not answer now, the next pass of reconcile writes the note.
    """
    if namespace is None:
        return _freeze_everything(runtime, context)
    now = runtime.now()
    asked = Freeze(new_uid(now), now, context.principal, context.reason, ("sql",), namespace=namespace)
    runtime.freezes.freeze(asked)
    return runtime.freezes.frozen.get(namespace, asked)


def _freeze_everything(runtime: Runtime, context: CommandContext) -> Freeze:
    """Write the freeze to SQL, then to Redis. If one does not answer, a pass of reconcile writes to it later.

    If neither answers, raises the error of SQL.
    """
    gate = runtime.freezes
    gate.share()  # removes a freeze that has ended, but that a restored server still has
    now = runtime.now() if gate.has_sql else SystemClock().now()
    asked = gate.kept or Freeze(new_uid(now), now, context.principal, context.reason)
    failure: BackendUnavailableError | None = None
    try:
        gate.put_into_sql(asked, begins=gate.kept is None)
        asked = gate.kept or asked  # Redis gets the freeze that SQL has
    except BackendUnavailableError as error:
        _log.warning("the freeze is not in SQL yet: %s", error, extra={"action": "freeze_not_copied"})
        failure = error
    try:
        gate.put_into_redis(asked)
    except RedisError as error:
        _log.warning("the freeze is not in Redis yet: %s", error, extra={"action": "freeze_not_copied"})
        if failure is not None:
            raise failure from error
    return gate.kept or asked


def preview(
    runtime: Runtime, namespace: str | None, *, missed: str | None = None, since: datetime | None = None
) -> ThawPreview:
    """Return the effects that `thaw` would have now, and write nothing."""
    wanted, gate = _due_of(namespace, missed, since), runtime.freezes
    gate.look(is_fresh=True)

    def read(connection: Connection) -> ThawPreview:
        now = runtime.now()
        due = _late(runtime, namespace, now, PREVIEWED + 1)(connection)
        waiting = _waiting(runtime, namespace, PREVIEWED + 1)(connection)
        decided = _decided(runtime, connection, due[:PREVIEWED], wanted)
        rows = [_row(schedule, one, now) for schedule, one in zip(due, decided, strict=False)]
        runs = [
            WaitingRun(
                schedule.namespace, schedule.schedule_id, run.uid, run.status.value, run.attempt, run.occurrence_at
            )
            for schedule, run in waiting[:PREVIEWED]
        ]
        freeze = gate.known if namespace is None else gate.frozen.get(namespace)
        return ThawPreview(freeze, rows, runs, len(due) > PREVIEWED, len(waiting) > PREVIEWED)

    return runtime.database.read(read)


def thaw(
    runtime: Runtime,
    namespace: str | None,
    context: CommandContext,
    *,
    missed: str | None = None,
    since: datetime | None = None,
    cancels_waiting: bool = False,
) -> Thawed:
    """End the freeze of a namespace, or of everything if it is None. Do nothing if there is no such freeze.

    Due schedules fire by their own policies, unless `missed` is given: `one` or `all` occurrences of each fire, or
    `none`. With `none` and `since`, only occurrences before that instant fire. With `cancels_waiting` every run that
    waits for an attempt is cancelled. Both happen before the freeze ends, and the audit events record them.

    Raises DatabaseUnavailableError if SQL does not answer, and for everything RedisUnavailableError if Redis does not
    answer. Then the freeze continues: repeat the call.
    """
    wanted, gate = _due_of(namespace, missed, since), runtime.freezes
    gate.look(is_fresh=True)  # read which namespaces are frozen: they stay frozen if everything is thawed
    is_all_thawed = gate.kept is None and gate.redis_error is None
    is_thawed = is_all_thawed if namespace is None else namespace not in gate.frozen
    if is_thawed and gate.has_sql:  # a client may have repeated a thaw whose answer was lost
        return Thawed(None, 0, 0, 0)
    cancelled = _cancel_waiting(runtime, namespace, context) if cancels_waiting else 0
    settled = [] if missed is None else _settle_due(runtime, context, wanted)
    settled += _settle_owed(runtime, context, wanted)
    ended = _thaw_everything(runtime, context) if namespace is None else _thaw_one(runtime, namespace, context)
    counts = sum(one.missed for one in settled), cancelled, sum(one.fired for one in settled)
    return Thawed(ended, len(settled), *counts)


def _thaw_everything(runtime: Runtime, context: CommandContext) -> Freeze | None:
    try:
        ended = runtime.freezes.thaw_everything(context.principal, context.reason)
        runtime.transport.ask_for_pass()
    except RedisError as error:
        raise RedisUnavailableError(
            f"{told(error)}; so everything is still frozen. Repeat the thaw, or the first pass that reaches Redis "
            "ends the freeze."
        ) from error
    if ended is not None:
        who, extra = context.principal or "a program", {"action": "everything_thawed"}
        _log.warning("everything is thawed by %s: it was %s", who, ended, extra=extra)
    return ended


def _thaw_one(runtime: Runtime, namespace: str, context: CommandContext) -> Freeze | None:
    """End the freeze of a namespace. If Redis does not answer, work begins with the first pass that reaches Redis."""
    ended = runtime.freezes.thaw(namespace, context.principal, context.reason)
    try:
        runtime.transport.ask_for_pass()
    except RedisError as error:
        _log.warning("no pass is asked for after a thaw: %s", error, extra={"action": "freeze_not_copied"})
    if ended is not None:
        who, extra = context.principal or "a program", {"action": "namespace_thawed"}
        _log.warning("namespace %r is thawed by %s: it was %s", namespace, who, ended, extra=extra)
    return ended


def _due_of(namespace: str | None, missed: str | None, since: datetime | None) -> _Due:
    if missed not in THAWS:
        raise InvalidInputError("missed", "must be one, all or none; leave it out for each schedule's own policy")
    if since is not None and missed != "none":
        raise InvalidInputError("since", "says since when occurrences are recorded as missed: give missed='none', too")
    if since is not None and since.tzinfo is None:
        raise InvalidInputError("since", "is naive; pass an aware datetime, such as one with tzinfo=UTC")
    return _Due(namespace, missed == "none", since and since.astimezone(UTC), THAWS[missed])


def _late(runtime: Runtime, namespace: str | None, now: datetime, limit: int) -> Callable[[Connection], list[Schedule]]:
    """Return a function that reads the due schedules of a namespace, or of all namespaces that are not frozen."""
    frozen = [*runtime.freezes.frozen] if namespace is None else []
    return partial(schedule_queries.late, namespace=namespace, since=now, limit=limit, frozen=frozen)


def _waiting(runtime: Runtime, namespace: str | None, limit: int) -> Callable[[Connection], list[tuple[Schedule, Run]]]:
    """Return a function that reads the waiting runs of a namespace, or of all namespaces that are not frozen."""
    frozen = [*runtime.freezes.frozen] if namespace is None else []
    return partial(run_queries.waiting, limit=limit, namespace=namespace, frozen=frozen)


def _decided(
    runtime: Runtime,
    connection: Connection,
    due: Sequence[Schedule],
    wanted: _Due,
    *,
    asked: CommandContext | None = None,
    is_locked: bool = False,
) -> Iterator[Change | Exception]:
    """Decide about due schedules, given their open runs and the occurrences that already have a run.

    If a decision raises, its error is yielded, and the other schedules are still decided. If the schedules are locked,
    the runs that a decision ends are locked, too, so that no worker claims such a run meanwhile.
    """
    runs = changes.open_runs_for_start(connection, due) if is_locked else changes.open_runs(connection, due)
    ran = changes.occurrences_run(connection, {one.uid: one.next_run_at for one in due if one.next_run_at is not None})
    now = runtime.now()
    for one in due:
        context = FireContext(runtime.settings.environment, ran.get(one.uid, frozenset()), asked)
        try:
            if wanted.is_missed:
                since = wanted.since
                yield decide_miss_due(one, runs[one.uid], since=since, now=now, context=context, asked=asked)
            else:
                yield decide_fire(one, runs[one.uid], now=now, context=context, missed=wanted.missed)
        except Exception as error:  # noqa: BLE001 - a schedule that cannot be evaluated, as in a fire
            yield error


def _row(before: Schedule, decided: Change | Exception, now: datetime) -> DueSchedule:
    due_at = before.due_at or now
    if isinstance(decided, Exception):
        error = f"{type(decided).__name__}: {decided}"
        return DueSchedule(before.namespace, before.schedule_id, due_at, [], 0, 0, due_at, error)
    after = decided.after
    return DueSchedule(
        after.namespace,
        after.schedule_id,
        due_at,
        sorted(run.occurrence_at for run in decided.new_runs if run.occurrence_at is not None),
        after.missed_count - before.missed_count,
        after.skipped_count - before.skipped_count,
        after.due_at,
    )


class _Settled(NamedTuple):
    """The effect of a thaw on the due occurrences of one schedule."""

    missed: int = 0
    """The number of occurrences that were recorded as missed."""
    fired: int = 0
    """The number of occurrences that started or buffered a run."""


def _settle_due(runtime: Runtime, context: CommandContext, wanted: _Due) -> list[_Settled]:
    """Handle due schedules as in `wanted`. Return the effect on each schedule that missed or fired an occurrence.

    Each schedule is handled in a separate transaction, which gives it a later next time.
    """
    # Use one instant for all schedules. Otherwise a schedule that becomes due again would be read again and again.
    settled, until = dict[str, _Settled](), runtime.now()
    while True:
        due = runtime.database.read(_late(runtime, wanted.namespace, until, PREVIEWED))
        fresh = [one.uid for one in due if one.uid not in settled]
        if not fresh:
            return [one for one in settled.values() if any(one)]
        settled |= {uid: _settle_due_of(runtime, uid, context, wanted) for uid in fresh}


def _settle_due_of(runtime: Runtime, uid: str, context: CommandContext, wanted: _Due) -> _Settled:
    def decide(connection: Connection, tried: Decided[_Settled] | None) -> Decided[_Settled]:
        schedule = changes.lock_one(connection, uid)
        if tried is not None and tried.is_written(schedule):
            return tried
        now = runtime.now()
        if schedule is None or not schedule.is_active or schedule.due_at is None or schedule.due_at > now:
            return Decided([], _Settled())
        (decided,) = _decided(runtime, connection, [schedule], wanted, asked=context, is_locked=True)
        if isinstance(decided, Exception):  # it cannot fire, either, and the fire will record the error
            what, extra = (schedule.namespace, schedule.schedule_id, decided), {"action": "not_missed"}
            _log.error("what is due of %s/%s cannot be decided: %s", *what, extra=extra)
            return Decided([], _Settled())
        missed = decided.after.missed_count - schedule.missed_count
        return Decided([decided], _Settled(missed, sum(run.occurrence_at is not None for run in decided.new_runs)))

    return change(runtime, decide)


def _settle_owed(runtime: Runtime, context: CommandContext, wanted: _Due) -> list[_Settled]:
    """For each downstream schedule, treat all upstream ends that are still owed to it as one end."""
    thaw = Thaw(wanted.missed, wanted.is_missed)
    settled, cursor = list[_Settled](), None
    while True:
        read = partial(upstream_ends.owing, namespace=wanted.namespace, frozen=[*runtime.freezes.frozen])
        uids, cursor = runtime.database.read(partial(read, after=cursor, limit=PREVIEWED))
        for uid in uids:
            settled.append(_settle_owed_to(runtime, uid, context, thaw))
        if cursor is None:
            return [one for one in settled if any(one)]


def _settle_owed_to(runtime: Runtime, uid: str, context: CommandContext, thaw: Thaw) -> _Settled:
    try:
        change = follow_frozen(runtime, uid, thaw, context)
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - as for a due schedule that cannot fire
        _log.exception(UNFOLLOWED, uid, extra={"action": "not_followed"})
        return _Settled()
    if change is None or change.before is None:
        return _Settled()
    return _Settled(change.after.missed_count - change.before.missed_count, len(change.new_runs))


def _cancel_waiting(runtime: Runtime, namespace: str | None, context: CommandContext) -> int:
    """Cancel every waiting run, including buffered runs. Return their number."""
    cancelled, ended = 0, AttemptResult(AttemptOutcome.CANCELLED, reason=context.reason, context=context)
    while found := runtime.database.read(_waiting(runtime, namespace, PREVIEWED)):
        done = sum(
            settle_run(runtime, run.uid, ended, fence=lambda run: run.status in _WAITING) is not None
            for _, run in found
        )
        cancelled += done
        if not done:
            break
    return cancelled
