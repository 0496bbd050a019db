"""The decision of a fire: pure functions from state and `now` to a Change (docs/architecture.md, "Walk of one fire").

`decide_fire` decides about each passed occurrence: its run starts or waits, or the occurrence is skipped or counted as
missed. If the schedule has not ended with the last run of `max_runs`, `decide_fire` then sets the next time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.delays import FIRE_BACKOFF, backoff
from rqsched.kernel.decide.model import Change, Run, RunKind, Schedule
from rqsched.kernel.decide.moves import note_early
from rqsched.kernel.decide.occurrences import (
    TICK,
    DueOccurrences,
    Missed,
    classify_due,
    leave_out,
    next_occurrence,
    reason_not_to_start,
    record_missed,
    record_skips,
    skip,
    stored_due_of,
)
from rqsched.kernel.decide.overlap import StartRequest, apply_overlap
from rqsched.kernel.decide.policy import KEEPS_ALL, MissedPolicy
from rqsched.kernel.decide.reasons import SkipReason
from rqsched.kernel.decide.schedule_endings import complete_if_over


class FireContext(NamedTuple):
    """The input of a fire besides the schedule and its open runs."""

    env: str = ""
    """RQSCHED_ENVIRONMENT of the firing process. It is compared with the option `environments`."""
    ran: frozenset[datetime] = frozenset()
    """Occurrences that have a run already, from a backfill or from an earlier attempt of this decision."""
    asked: CommandContext | None = None
    """The actor who requested the fire, and the trace span for the new runs; None without an actor and a span."""


def is_stale(schedule: Schedule | None, n: int) -> bool:
    """Return whether a link (the delayed job that fires a schedule) with position `n` is outdated and fires nothing."""
    return schedule is None or not schedule.is_active or schedule.n != n or schedule.due_at is None


def decide_fire(
    schedule: Schedule,
    runs: Iterable[Run],
    *,
    now: datetime,
    context: FireContext,
    missed: MissedPolicy | None = None,
) -> Change:
    """Fire a due schedule: give every passed occurrence an outcome, and set the next time.

    The caller has checked that the schedule is active and due. `runs` are its open runs. If a person requested the
    fire, `missed` may replace the schedule's policy; then no occurrence is too late to fire. If `missed` is `all`, but
    the overlap policy would skip or end some of the runs, only the oldest occurrence fires.
    """
    builder = ChangeBuilder(schedule, runs, now=now, context=context.asked)
    if missed is MissedPolicy.ALL and schedule.policies.overlap not in KEEPS_ALL:
        missed = MissedPolicy.FIRE_ONCE
    _evaluate(builder, classify_due(schedule, now, missed=missed), context, policy=missed)
    complete_if_over(builder)
    if schedule.fire_failures:
        builder.set(fire_failures=0)
    return builder.build()


def decide_miss_due(
    schedule: Schedule,
    runs: Iterable[Run],
    *,
    since: datetime | None,
    now: datetime,
    context: FireContext,
    asked: CommandContext | None = None,
) -> Change:
    """Record due occurrences as missed instead of firing them.

    Occurrences that were due before `since` fire first, by the schedule's policies. The caller has checked that the
    schedule is active and due. `asked` is the actor, which the audit events record.
    """
    builder = ChangeBuilder(schedule, runs, now=now, context=asked)
    if since is not None and schedule.due_at is not None and schedule.due_at < since:
        _evaluate(builder, classify_due(schedule, since - TICK), context)
    rest = builder.schedule
    if rest.is_active and rest.due_at is not None and rest.due_at <= now:
        due = classify_due(rest, now)
        passed = due.missed or Missed(0, False, due.fires[0], due.last)
        first = min(passed.first, *due.fires) if due.fires else passed.first
        missed = replace(passed, count=passed.count + len(due.fires), first=first)
        _evaluate(builder, due._replace(fires=(), missed=missed), context, policy=SkipReason.FROZEN.value)
    complete_if_over(builder)
    if schedule.fire_failures:
        builder.set(fire_failures=0)
    return builder.build()


def _evaluate(builder: ChangeBuilder, due: DueOccurrences, context: FireContext, *, policy: str | None = None) -> None:
    """Give every passed occurrence an outcome, and set the next time.

    The overlap policy decides about each occurrence that fires. If an occurrence uses up `max_runs`, the schedule ends
    and the later occurrences are skipped. A `from_completion` schedule gets no next time until the run that started, or
    that blocked the start, has ended.
    """
    schedule = builder.schedule
    spec = schedule.spec
    leave_out(builder, due.last)
    if schedule.skips is not None:
        record_skips(builder, due.last)
        # `due.missed` does not count skipped occurrences. So do not subtract them, even if a backfill ran them.
        context = context._replace(ran=context.ran - {*schedule.skipped_at})
    nominals = () if schedule.moves is None else schedule.parsed_moves.nominals
    builder.set(evaluated_to=due.last)
    if schedule.moves is not None or spec.is_moving:
        note_early(builder)
    if due.missed is not None:
        _record_missed(builder, due.missed, due.fires, context, policy or schedule.policies.missed.value)
    awaited: str | None = None
    refused = reason_not_to_start(schedule, context.env)
    for nominal in due.fires:
        if nominal in context.ran:
            continue
        if refused is not None:
            skip(builder, nominal, refused)
            continue
        due_at = stored_due_of(builder.schedule, nominal)
        moved = nominals if nominal == schedule.next_run_at else spec.nominals_of(nominal)
        result = apply_overlap(builder, StartRequest(RunKind.SCHEDULED, nominal, due_at=due_at, nominals=moved))
        blocking = builder.unfinished()[-1:] if result.run is None else [result.run]
        awaited = blocking[0].uid if blocking else None
    if not spec.is_from_completion:
        builder.plan(due.upcoming or next_occurrence(schedule, max(due.last, schedule.timing_changed_at)))
    elif awaited is not None:
        builder.wait_for(awaited)
    else:
        builder.plan(next_occurrence(schedule, builder.now))


def _record_missed(
    builder: ChangeBuilder, missed: Missed, fires: tuple[datetime, ...], context: FireContext, policy: str
) -> None:
    """Count the missed occurrences that have no run. An occurrence that a backfill ran is not missed."""
    schedule = builder.schedule
    # If an instant is before the last change of timing, it is an occurrence only if it is the stored next time.
    since, stored = schedule.timing_changed_at, schedule.next_run_at
    ran = [nominal for nominal in context.ran - {*fires} if nominal > since or nominal == stored]
    count = missed.count - sum(missed.first <= nominal <= missed.last for nominal in ran)
    if count > 0:
        record_missed(builder, replace(missed, count=count), fired=fires, policy=policy)


def decide_fire_failed(schedule: Schedule, error: str, *, now: datetime) -> Change:
    """Record that a fire raised an error. The occurrence stays due, and the fire is tried again after a backoff."""
    builder = ChangeBuilder(schedule, now=now)
    failures = schedule.fire_failures + 1
    retry_at = now + backoff(FIRE_BACKOFF, failures, interval=timedelta(seconds=1))
    builder.set(fire_failures=failures, due_at=retry_at, last_error=error)
    builder.record(
        audit.FIRE_FAILED,
        error=error,
        fire_failures=failures,
        retry_at=retry_at,
        occurrence_time=schedule.next_run_at,
    )
    return builder.build()


def decide_retry(schedule: Schedule, runs: Iterable[Run], run: Run, *, now: datetime) -> Change:
    """Make a retrying run pending for its next attempt. The caller has checked run, attempt and status."""
    builder = ChangeBuilder(schedule, runs, now=now)
    builder.queue_run(run, attempt=run.attempt + 1, delivery=1, token=None, worker=None, retry_at=None)
    return builder.build()
