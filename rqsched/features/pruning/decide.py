"""The decision of pruning: which part of a schedule's history is beyond its retention and may be deleted. Pure.

The decision reads the oldest rows only. Run numbers and event sequences have no gaps, so the number of newer rows is
the difference of two numbers, and no rows need to be counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rqsched.kernel.decide.model import OPEN, RunKind, RunStatus, Schedule
from rqsched.kernel.decide.retention import YOUNG, Retention

EVENTS_PER_RUN = 10
"""How many audit events stay for each run that the retention keeps. This also limits the events of a schedule that has
no runs because all its occurrences are skipped."""
SLACK = 20
"""A dispatcher prunes a schedule only when its history exceeds the retention by the fraction 1/SLACK."""
HOURS_KEPT = timedelta(days=400)
"""The hourly counts of runs are kept for this long, even after the runs are pruned, because the charts show a year."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""An edge with this value deletes nothing, because no row is older."""


class Oldest(NamedTuple):
    """The oldest rows of one schedule, which tell whether it may have rows beyond its retention."""

    uid: str
    """The schedule's uid."""
    policies: str
    """Its policies as stored; they may include a retention of its own."""
    run_number: int
    """The number of its newest run."""
    event_sequence: int
    """The sequence of its newest audit event."""
    first_run: int | None
    """The number of its oldest run; None when it has none."""
    run_at: datetime | None
    """When its oldest run was created."""
    first_event: int | None
    """The sequence of its oldest audit event; None when it has none."""
    event_at: datetime | None
    """When its oldest audit event was recorded."""
    other_at: datetime | None
    """When its oldest backfill or delivery was requested; None when it has none."""
    is_task: bool = False
    """Whether it is a schedule of one run (a task of Django), which is deleted as a whole."""
    ended_at: datetime | None = None
    """When it was changed last, if it is done, dead or deleted; its run may still be open."""

    def is_over(self, retention: Retention, now: datetime) -> bool:
        """Return whether a task ended longer ago than its retention. Then it may be deleted unless its run is open."""
        is_old = self.ended_at is not None and retention.age is not None and self.ended_at < now - retention.age
        return self.is_task and is_old

    def may_go(self, retention: Retention, now: datetime) -> bool:
        """Return whether the schedule may have rows beyond the retention. Some of these rows may have to stay."""
        if self.is_task:
            return False
        edges = _edges(self.run_number, self.event_sequence, retention, now=now)
        since = self.run_at if self.first_run is not None and self.first_run > 1 else None

        def is_old(at: datetime | None, *, is_beyond_count: bool = False) -> bool:
            if at is None or at >= edges.young:
                return False
            return at < edges.ended or is_beyond_count or (since is not None and at < since)

        first_run, first_event = self.first_run or 0, self.first_event or 0
        has_old_runs = first_run < self.run_number and is_old(self.run_at, is_beyond_count=first_run < edges.number)
        has_old_events = is_old(self.event_at, is_beyond_count=first_event < edges.sequence)
        return not retention.keeps_all and (has_old_runs or has_old_events or is_old(self.other_at))


class Edges(NamedTuple):
    """The edges of one schedule's retention: rows before an edge may be deleted."""

    ended: datetime
    """Runs that ended before this instant may be deleted, whatever their number."""
    number: int
    """Runs with a lower number may be deleted."""
    young: datetime
    """Runs that ended at or after this instant stay, whatever the other edges are."""
    sequence: int
    """Audit events with a lower sequence may be deleted."""
    other: datetime
    """Audit events, backfills and deliveries that were recorded or ended before this instant may be deleted."""
    hours: datetime
    """Hourly counts from before this instant may be deleted. But counts since the oldest existing run stay."""
    events: datetime = _BEGINNING
    """Audit events that were recorded before this instant are deleted, whatever the other edges are."""


def with_slack(retention: Retention) -> Retention:
    """Return a retention that is a twentieth longer.

    A dispatcher prunes only schedules with rows beyond this longer retention. Without the slack, the dispatcher would
    need a transaction for each run. With the slack, one transaction deletes many runs.
    """
    age, runs = retention.age, retention.runs
    return Retention(age and age + age / SLACK, runs and runs + runs // SLACK)


def edges_of(schedule: Schedule, retention: Retention, *, oldest_in_count: datetime | None, now: datetime) -> Edges:
    """Return the edges.

    The retention may keep a number of the newest runs; `oldest_in_count` is when the oldest of them was created.
    """
    return _edges(schedule.run_number, schedule.event_sequence, retention, oldest_in_count, now=now)


def _edges(
    run_number: int,
    event_sequence: int,
    retention: Retention,
    oldest_in_count: datetime | None = None,
    *,
    now: datetime,
) -> Edges:
    young, runs = now - YOUNG, retention.runs
    ended = _BEGINNING if retention.age is None else now - retention.age
    return Edges(
        ended=ended,
        number=0 if runs is None else run_number - runs + 1,
        young=young,
        sequence=0 if runs is None else event_sequence - runs * EVENTS_PER_RUN + 1,
        other=min(max(ended, oldest_in_count or _BEGINNING), young),
        hours=now - HOURS_KEPT,
    )


class RunMark(NamedTuple):
    """The facts about a run that the decision reads."""

    uid: str
    """Its uid."""
    number: int
    """Its number within the schedule."""
    kind: RunKind
    """The origin of the run."""
    status: RunStatus
    """The status of the run."""
    occurrence_at: datetime
    """The occurrence of the run."""
    created_at: datetime
    """When the run was created; never later than a run with a higher number."""
    ended_at: datetime | None
    """When it ended; None while it is open."""
    has_targets: bool
    """Whether it is a fan-out with targets."""
    has_open_targets: bool
    """Whether one of its targets has not ended."""


def is_beyond(run: RunMark, edges: Edges) -> bool:
    """Return whether a run may be beyond the retention. If it is not, no later run of the schedule is."""
    return run.created_at < edges.young and (run.number < edges.number or run.created_at < edges.ended)


def choose_runs(
    schedule: Schedule, runs: Sequence[RunMark], edges: Edges, *, succeeded_later: bool
) -> tuple[RunMark, ...]:
    """Return the runs to delete. `runs` are in the order of their numbers.

    The last run and the last success stay. Runs that a decision may still read stay, too: open runs, runs with open
    targets, the run that the schedule waits for, and runs of occurrences that the schedule has not evaluated yet.
    `succeeded_later` tells whether a run with a higher number succeeded.
    """
    successes = [run.uid for run in runs if run.status is RunStatus.SUCCEEDED]
    kept = {schedule.last_run_uid, schedule.awaiting_run_uid, *([] if succeeded_later else successes[-1:])}
    return tuple(
        run
        for run in runs
        if _is_over(run, edges)
        and run.uid not in kept
        and run.number != schedule.run_number
        and (run.kind is RunKind.MANUAL or run.occurrence_at <= schedule.evaluated_to)
    )


def _is_over(run: RunMark, edges: Edges) -> bool:
    if run.status in OPEN or run.ended_at is None or run.has_open_targets or run.ended_at >= edges.young:
        return False
    return run.number < edges.number or run.ended_at < edges.ended


def first_kept_event(events: Sequence[tuple[int, datetime]], edges: Edges) -> int:
    """Return the sequence of the first event that stays. All earlier events are deleted, so that history has no gap."""
    for sequence, recorded_at in events:
        is_old = recorded_at < edges.other or sequence < edges.sequence
        if recorded_at >= edges.events and (recorded_at >= edges.young or not is_old):
            return sequence
    return events[-1][0] + 1 if events else 0


def pruned_to(runs: Sequence[RunMark]) -> datetime | None:
    """Return the newest occurrence among the runs to delete; None if there is none."""
    return max((run.occurrence_at for run in runs if run.kind is not RunKind.MANUAL), default=None)
