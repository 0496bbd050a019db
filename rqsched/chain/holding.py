"""Holding and releasing: what an operator does with the hold of an installation, and what a release would do.

A release first does, under the hold, what it was asked to do with what is due and what waits; then it ends the hold.
Interrupted, everything is still held, and the release is repeated. Once SQL has ended it, the next pass does so in
Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from redis.exceptions import RedisError

from rqsched.chain.changing import Decided, change
from rqsched.chain.runtime import Runtime
from rqsched.chain.settling import settle_run
from rqsched.clock import SystemClock
from rqsched.core.audit import CommandContext
from rqsched.core.fire_decision import FireContext, decide_fire, decide_miss_due
from rqsched.core.hold import HeldRun, HeldSchedule, Hold, Released, ReleasePreview
from rqsched.core.ids import new_uid
from rqsched.core.model import OPEN, Change, RunStatus, Schedule
from rqsched.core.settle_decision import AttemptOutcome, AttemptResult
from rqsched.errors import BackendUnavailableError, InvalidInputError, RedisUnavailableError
from rqsched.store import changes, run_queries, schedule_queries
from rqsched.store.database import Connection

_log = logging.getLogger(__name__)

_WAITING = OPEN - {RunStatus.RUNNING}
PREVIEWED = 500
"""The most schedules, and the most runs, that a preview lists."""


def hold(runtime: Runtime, context: CommandContext) -> Hold:
    """Let nothing begin from now on; what is held already stays as it is. Returns the hold.

    SQL first, then Redis. One of them is enough: the other is told by a pass of reconcile when it answers again. Raises
    the error of SQL when neither answers.
    """
    gate = runtime.hold
    gate.share()  # one that was released, and is back, is no hold
    now = runtime.now() if gate.has_sql else SystemClock().now()
    asked = gate.kept or Hold(new_uid(now), now, context.principal, context.reason)
    failure: BackendUnavailableError | None = None
    try:
        gate.put_into_sql(asked)
    except BackendUnavailableError as error:
        _log.warning("the hold is not in SQL yet: %s", error, extra={"action": "hold_not_copied"})
        failure = error
    try:
        gate.put_into_redis(asked)
    except RedisError as error:
        _log.warning("the hold is not in Redis yet: %s", error, extra={"action": "hold_not_copied"})
        if failure is not None:
            raise failure from error
    return gate.kept or asked


def preview(runtime: Runtime, *, since: datetime | None = None, is_missed: bool = False) -> ReleasePreview:
    """Return what a release would do now, by each schedule's policies; nothing is written. See `release`."""
    since = _require_range(since, is_missed=is_missed)
    runtime.hold.look(is_fresh=True)

    def read(connection: Connection) -> ReleasePreview:
        now = runtime.now()
        due = schedule_queries.late(connection, None, now, PREVIEWED + 1)
        waiting = run_queries.waiting(connection, PREVIEWED + 1)
        decided = _decided(runtime, connection, due[:PREVIEWED], now, since, is_missed=is_missed)
        rows = [_row(schedule, one, now) for schedule, one in zip(due, decided, strict=False)]
        runs = [
            HeldRun(schedule.namespace, schedule.schedule_id, run.uid, run.status.value, run.attempt, run.occurrence_at)
            for schedule, run in waiting[:PREVIEWED]
        ]
        return ReleasePreview(runtime.hold.known, rows, runs, max(len(due), len(waiting)) > PREVIEWED)

    return runtime.database.read(read)


def release(
    runtime: Runtime,
    context: CommandContext,
    *,
    since: datetime | None = None,
    is_missed: bool = False,
    cancels_waiting: bool = False,
) -> Released:
    """Let everything begin that may; what is due fires by each schedule's policies. What is paused stays paused.

    With `is_missed` what is due is recorded as missed instead, or since an instant: then what was due before fires.
    With `cancels_waiting` every run that waits for an attempt to begin is cancelled. Both are done first, and what was
    done so is said in the audit events. Raises RedisUnavailableError or DatabaseUnavailableError, with everything still
    held, when one of them does not answer: repeat it.
    """
    since = _require_range(since, is_missed=is_missed)
    cancelled = _cancel_waiting(runtime, context) if cancels_waiting else 0
    counts = _miss_due(runtime, context, since) if is_missed else []
    try:
        ended = runtime.hold.drop(context.principal, context.reason)
        runtime.transport.ask_for_pass()
    except RedisError as error:
        raise RedisUnavailableError(
            "Redis does not answer, so everything is still held; repeat the release, or the first pass that "
            "reaches Redis ends it."
        ) from error
    if ended is not None:
        _log.warning(
            "released by %s: it was %s", context.principal or "a program", ended, extra={"action": "hold_released"}
        )
    return Released(ended, len(counts), sum(counts), cancelled)


def _require_range(since: datetime | None, *, is_missed: bool) -> datetime | None:
    if since is None:
        return None
    if not is_missed:
        raise InvalidInputError("since", "says since when occurrences are recorded as missed: give `missed`, too")
    if since.tzinfo is None:
        raise InvalidInputError("since", "is naive; pass an aware datetime, such as one with tzinfo=UTC")
    return since.astimezone(UTC)


def _decided(
    runtime: Runtime,
    connection: Connection,
    due: Sequence[Schedule],
    now: datetime,
    since: datetime | None,
    *,
    is_missed: bool,
    asked: CommandContext | None = None,
    is_locked: bool = False,
) -> Iterator[Change | Exception]:
    """Decide what becomes of due schedules, from what ran and runs of them; one that fails harms no other.

    Of schedules that are locked, the runs that are replaced are locked, too: nobody may claim one meanwhile.
    """
    runs = changes.open_runs_for_start(connection, due) if is_locked else changes.open_runs(connection, due)
    ran = changes.occurrences_run(connection, {one.uid: one.next_run_at for one in due if one.next_run_at is not None})
    for one in due:
        context = FireContext(runtime.settings.env, ran.get(one.uid, frozenset()))
        try:
            if is_missed:
                yield decide_miss_due(one, runs[one.uid], since=since, now=now, context=context, asked=asked)
            else:
                yield decide_fire(one, runs[one.uid], now=now, context=context)
        except Exception as error:  # noqa: BLE001 - a schedule that cannot be evaluated, as in a fire
            yield error


def _row(before: Schedule, decided: Change | Exception, now: datetime) -> HeldSchedule:
    due_at = before.due_at or now
    if isinstance(decided, Exception):
        error = f"{type(decided).__name__}: {decided}"
        return HeldSchedule(before.namespace, before.schedule_id, due_at, [], 0, 0, due_at, error)
    after = decided.after
    return HeldSchedule(
        after.namespace,
        after.schedule_id,
        due_at,
        sorted(run.occurrence_at for run in decided.new_runs if run.occurrence_at is not None),
        after.missed_count - before.missed_count,
        after.skipped_count - before.skipped_count,
        after.due_at,
    )


def _miss_due(runtime: Runtime, context: CommandContext, since: datetime | None) -> list[int]:
    """Record what is due as missed; returns how many occurrences of each schedule.

    Each schedule is a transaction of its own, and has a later next time then.
    """
    counts, now = dict[str, int](), runtime.now()
    while True:
        due = runtime.database.read(lambda connection: schedule_queries.late(connection, None, now, PREVIEWED))
        fresh = [one.uid for one in due if one.uid not in counts]
        if not fresh:
            return [count for count in counts.values() if count]
        counts |= {uid: _miss_due_of(runtime, uid, now, context, since) for uid in fresh}


def _miss_due_of(runtime: Runtime, uid: str, now: datetime, context: CommandContext, since: datetime | None) -> int:
    def decide(connection: Connection, tried: Decided[int] | None) -> Decided[int]:
        schedule = changes.lock_one(connection, uid)
        if tried is not None and tried.is_written(schedule):
            return tried
        if schedule is None or not schedule.is_active or schedule.due_at is None or schedule.due_at > now:
            return Decided([], 0)
        found = _decided(runtime, connection, [schedule], now, since, is_missed=True, asked=context, is_locked=True)
        (decided,) = found
        if isinstance(decided, Exception):  # nor can it fire: its link fails by itself
            what, extra = (schedule.namespace, schedule.schedule_id, decided), {"action": "not_missed"}
            _log.error("what is due of %s/%s cannot be recorded as missed: %s", *what, extra=extra)
            return Decided([], 0)
        return Decided([decided], decided.after.missed_count - schedule.missed_count)

    return change(runtime, decide)


def _cancel_waiting(runtime: Runtime, context: CommandContext) -> int:
    """Cancel every run that waits, also those that wait behind one; returns how many."""
    cancelled, ended = 0, AttemptResult(AttemptOutcome.CANCELLED, reason=context.reason, context=context)
    while found := runtime.database.read(lambda connection: run_queries.waiting(connection, PREVIEWED)):
        done = sum(
            settle_run(runtime, run.uid, ended, fence=lambda run: run.status in _WAITING) is not None
            for _, run in found
        )
        cancelled += done
        if not done:
            break
    return cancelled
