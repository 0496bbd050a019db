"""What a fire does, as one pure function from a schedule, its open runs and `now` to a Change (design §3, step 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rqsched.core import audit
from rqsched.core.draft import Draft
from rqsched.core.due import stored_due_of
from rqsched.core.ids import iso_utc
from rqsched.core.model import Change, Run, RunKind, RunStatus, Schedule
from rqsched.core.occurrences import Missed, Survey, survey
from rqsched.core.overlap import Offer, Outcome
from rqsched.core.policy import RetryPolicy

FIRE_BACKOFF = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(minutes=5))
"""How a schedule whose fire itself fails is kept from being tried in a tight loop."""


@dataclass(frozen=True, slots=True)
class World:
    """What a fire must know beside the schedule and its open runs."""

    env: str = ""
    """RQSCHED_ENV of the firing process, for `environments`."""
    ran: frozenset[datetime] = frozenset()
    """Occurrences that have a run already: a backfill's, or an earlier incarnation of this decision's."""


def decide_fire(schedule: Schedule, runs: Iterable[Run], *, now: datetime, world: World) -> Change:
    """Fire a due schedule: every passed occurrence gets its outcome and the next time is set.

    The caller has checked that the schedule is active and due; `runs` are its open runs.
    """
    draft = Draft(schedule, runs, now=now)
    seen = survey(schedule, now)
    draft.record_gaps(seen.last)
    draft.set(evaluated_to=seen.last)
    _record_missed(draft, seen, world)
    last_run = _start(draft, seen, world)
    _advance(draft, seen, last_run)
    draft.set(fire_failures=0)
    return draft.seal()


def _record_missed(draft: Draft, seen: Survey, world: World) -> None:
    if (missed := seen.missed) is None:
        return
    count = missed.count - sum(_is_counted(draft.schedule, nominal, missed) for nominal in world.ran - {*seen.fires})
    if count <= 0:
        return
    draft.set(missed_count=draft.schedule.missed_count + count)
    draft.record(
        audit.MISSED,
        count=count,
        count_capped=missed.is_capped or None,
        first=missed.first,
        last=missed.last,
        fired=[iso_utc(nominal) for nominal in seen.fires] or None,
        policy=draft.schedule.policies.missed.value,
    )


def _is_counted(schedule: Schedule, nominal: datetime, missed: Missed) -> bool:
    """Tell whether an occurrence is among those missed; before a change of timing only the stored one is."""
    is_known = nominal > schedule.timing_changed_at or nominal == schedule.next_run_at
    return is_known and missed.first <= nominal <= missed.last


def _start(draft: Draft, seen: Survey, world: World) -> str | None:
    """Offer each occurrence that fires; returns the uid of the run that a `from_completion` schedule waits for.

    One of them may use up `max_runs` and end the schedule: the later ones were due before that and are skipped.
    """
    awaited: str | None = None
    allowed = draft.schedule.policies.environments
    for nominal in seen.fires:
        if nominal in world.ran:
            continue
        if allowed and world.env not in allowed:
            draft.skip(nominal, "environment")
            continue
        outcome = draft.offer(Offer(RunKind.SCHEDULED, nominal, due_at=stored_due_of(draft.schedule, nominal)))
        awaited = _awaited(draft, outcome)
    return awaited


def _awaited(draft: Draft, outcome: Outcome) -> str | None:
    if outcome.run is not None:
        return outcome.run.uid
    in_the_way = draft.unfinished()
    return in_the_way[-1].uid if in_the_way else None


def _advance(draft: Draft, seen: Survey, awaited: str | None) -> None:
    if draft.schedule.spec.is_from_completion:
        if awaited is not None:
            draft.wait_for(awaited)
        else:
            draft.plan(draft.now)
    elif seen.upcoming is not None and draft.schedule.is_active:
        draft.set(next_run_at=seen.upcoming.nominal_at, due_at=seen.upcoming.due_at)
    else:
        draft.plan(seen.last)


def decide_fire_failed(schedule: Schedule, error: str, *, now: datetime) -> Change:
    """Record that evaluating a schedule raised: its occurrence stays due and is tried again after a backoff."""
    draft = Draft(schedule, now=now)
    failures = schedule.fire_failures + 1
    retry_at = now + FIRE_BACKOFF.delay(failures, interval=timedelta(seconds=1))
    draft.set(fire_failures=failures, due_at=retry_at, last_error=error)
    draft.record(
        audit.FIRE_FAILED,
        error=error,
        fire_failures=failures,
        retry_at=retry_at,
        occurrence_time=schedule.next_run_at,
    )
    return draft.seal()


def decide_retry(schedule: Schedule, runs: Iterable[Run], run: Run, *, now: datetime) -> Change:
    """Make a retrying run pending for its next attempt. Fenced by the caller on (run, attempt, status)."""
    draft = Draft(schedule, runs, now=now)
    draft.set_run(
        run.uid,
        status=RunStatus.PENDING,
        attempt=run.attempt + 1,
        delivery=1,
        token=None,
        worker=None,
        retry_at=None,
        queued_at=now,
    )
    return draft.seal()


def is_stale(schedule: Schedule | None, n: int) -> bool:
    """Tell whether a link at position `n` has nothing to do any more."""
    return schedule is None or not schedule.is_active or schedule.n != n or schedule.due_at is None
