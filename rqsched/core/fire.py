"""What a fire does, as one pure function from a schedule, its open runs and `now` to a Change (design §3, step 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rqsched.core import audit
from rqsched.core.change import ChangeBuilder
from rqsched.core.due import stored_due_of
from rqsched.core.ids import iso_utc
from rqsched.core.model import Change, Run, RunKind, RunStatus, Schedule
from rqsched.core.occurrences import DueOccurrences, Missed, classify_due
from rqsched.core.overlap import StartRequest, StartResult
from rqsched.core.policy import RetryPolicy

FIRE_BACKOFF = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(minutes=5))
"""How a schedule whose fire itself fails is kept from being tried in a tight loop."""


@dataclass(frozen=True, slots=True)
class FireContext:
    """What a fire must know beside the schedule and its open runs."""

    env: str = ""
    """RQSCHED_ENV of the firing process, for `environments`."""
    ran: frozenset[datetime] = frozenset()
    """Occurrences that have a run already: a backfill's, or an earlier incarnation of this decision's."""


def decide_fire(schedule: Schedule, runs: Iterable[Run], *, now: datetime, context: FireContext) -> Change:
    """Fire a due schedule: every passed occurrence gets its outcome and the next time is set.

    The caller has checked that the schedule is active and due; `runs` are its open runs.
    """
    builder = ChangeBuilder(schedule, runs, now=now)
    seen = classify_due(schedule, now)
    builder.record_gaps(seen.last)
    builder.set(evaluated_to=seen.last)
    _record_missed(builder, seen, context)
    last_run = _start(builder, seen, context)
    _advance(builder, seen, last_run)
    builder.set(fire_failures=0)
    return builder.build()


def _record_missed(builder: ChangeBuilder, seen: DueOccurrences, context: FireContext) -> None:
    if (missed := seen.missed) is None:
        return
    count = missed.count - sum(
        _is_counted(builder.schedule, nominal, missed) for nominal in context.ran - {*seen.fires}
    )
    if count <= 0:
        return
    builder.set(missed_count=builder.schedule.missed_count + count)
    builder.record(
        audit.MISSED,
        count=count,
        count_capped=missed.is_capped or None,
        first=missed.first,
        last=missed.last,
        fired=[iso_utc(nominal) for nominal in seen.fires] or None,
        policy=builder.schedule.policies.missed.value,
    )


def _is_counted(schedule: Schedule, nominal: datetime, missed: Missed) -> bool:
    """Tell whether an occurrence is among those missed; before a change of timing only the stored one is."""
    is_known = nominal > schedule.timing_changed_at or nominal == schedule.next_run_at
    return is_known and missed.first <= nominal <= missed.last


def _start(builder: ChangeBuilder, seen: DueOccurrences, context: FireContext) -> str | None:
    """StartRequest each occurrence that fires; returns the uid of the run that a `from_completion` schedule waits for.

    One of them may use up `max_runs` and end the schedule: the later ones were due before that and are skipped.
    """
    awaited: str | None = None
    allowed = builder.schedule.policies.environments
    for nominal in seen.fires:
        if nominal in context.ran:
            continue
        if allowed and context.env not in allowed:
            builder.skip(nominal, "environment")
            continue
        outcome = builder.offer(
            StartRequest(RunKind.SCHEDULED, nominal, due_at=stored_due_of(builder.schedule, nominal))
        )
        awaited = _awaited(builder, outcome)
    return awaited


def _awaited(builder: ChangeBuilder, outcome: StartResult) -> str | None:
    if outcome.run is not None:
        return outcome.run.uid
    in_the_way = builder.unfinished()
    return in_the_way[-1].uid if in_the_way else None


def _advance(builder: ChangeBuilder, seen: DueOccurrences, awaited: str | None) -> None:
    if builder.schedule.spec.is_from_completion:
        if awaited is not None:
            builder.wait_for(awaited)
        else:
            builder.plan(builder.now)
    elif seen.upcoming is not None and builder.schedule.is_active:
        builder.set(next_run_at=seen.upcoming.nominal_at, due_at=seen.upcoming.due_at)
    else:
        builder.plan(seen.last)


def decide_fire_failed(schedule: Schedule, error: str, *, now: datetime) -> Change:
    """Record that evaluating a schedule raised: its occurrence stays due and is tried again after a backoff."""
    builder = ChangeBuilder(schedule, now=now)
    failures = schedule.fire_failures + 1
    retry_at = now + FIRE_BACKOFF.delay(failures, interval=timedelta(seconds=1))
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
    """Make a retrying run pending for its next attempt. Fenced by the caller on (run, attempt, status)."""
    builder = ChangeBuilder(schedule, runs, now=now)
    builder.set_run(
        run.uid,
        status=RunStatus.PENDING,
        attempt=run.attempt + 1,
        delivery=1,
        token=None,
        worker=None,
        retry_at=None,
        queued_at=now,
    )
    return builder.build()


def is_stale(schedule: Schedule | None, n: int) -> bool:
    """Tell whether a link at position `n` has nothing to do any more."""
    return schedule is None or not schedule.is_active or schedule.n != n or schedule.due_at is None
