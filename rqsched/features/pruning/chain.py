"""Pruning: delete history beyond the retention of its schedule, in small transactions.

An idle dispatcher makes one step between two checks for due links. `rqsched prune` makes all steps in a row. A step
locks one schedule and deletes at most a few hundred rows; it skips a schedule that is locked already. So a process that
dies or hangs in the middle of a step delays only that schedule, and the next process continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from rqsched.errors import BackendUnavailableError
from rqsched.features.hours import store as run_hours
from rqsched.features.hours.decide import hour_of
from rqsched.features.pruning import store as pruning
from rqsched.features.pruning.decide import (
    Edges,
    RunMark,
    choose_runs,
    edges_of,
    first_kept_event,
    is_beyond,
    pruned_to,
    with_slack,
)
from rqsched.kernel.chain.feature import Feature, Pass, Section, Stage
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import RunStatus, Schedule
from rqsched.kernel.decide.policy import Policies
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.decide.retention import Retention
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport import telemetry

_log = logging.getLogger(__name__)

PAGE = 200
"""The number of schedules that one step reads."""
BATCH = 200
"""The maximum number of runs that one transaction deletes. It may delete five times as many targets or audit events."""
_ROWS = 5 * BATCH
NOT_BEFORE_A_FIRE = timedelta(milliseconds=200)
"""A dispatcher does not prune schedules that are due within this time, because the lock could delay their fires."""


@dataclass(slots=True)
class Pruned:
    """Counts of the rows that were deleted, or that a dry run would delete."""

    schedules: int = 0
    """Schedules looked at."""
    runs: int = 0
    """Runs, with all their attempts."""
    targets: int = 0
    """Targets of fan-outs."""
    events: int = 0
    """Audit events."""
    backfills: int = 0
    """Backfills."""
    deliveries: int = 0
    """Deliveries of audit events."""
    tasks: int = 0
    """Ended tasks of Django, each with its run and its audit events."""
    busy: int = 0
    """Schedules that were locked or failed. The next pruning tries them again."""

    @property
    def deleted(self) -> dict[str, int]:
        """The number of deleted rows of each kind, by the field names."""
        names = ("runs", "targets", "events", "backfills", "deliveries", "tasks")
        return {name: getattr(self, name) for name in names}

    @property
    def rows(self) -> int:
        """The total number of deleted rows."""
        return sum(self.deleted.values())

    def add(self, other: Pruned) -> None:
        """Add the counts of another step."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True)
class Pruning:
    """A request to prune."""

    namespace: str | None = None
    """The namespace to prune. None prunes all, and also fan-outs that were started without a schedule."""
    retention: Retention | None = None
    """A retention that replaces RQSCHED_RETENTION and the schedules' own retentions; None replaces nothing."""
    is_dry: bool = False
    """Count only."""
    events_before: datetime | None = None
    """Also delete all audit events that were recorded before this instant, even within the retention."""
    spare: timedelta | None = None
    """Skip schedules that are due within this time, and schedules that exceed their retention only a little. None skips
    no schedule."""


class Prunings(Feature):
    """Delete history beyond its retention."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - it is no part of a pass
        """Prune every schedule that is not about to fire."""
        steps = prune(self._runtime, Pruning(spare=NOT_BEFORE_A_FIRE))
        return [Section(Stage.HOUSEKEEPING, (Recovered(checked=step.schedules) for step in steps))]


def iter_prune(runtime: Runtime, wanted: Pruning) -> Iterator[Pruned]:
    """Prune every schedule with rows beyond its retention, step by step. Yield the counts of each step.

    Raises BackendUnavailableError if the database is unavailable. Any other failure of a schedule is logged, and the
    schedule is skipped.
    """
    cursor: str | None = None
    while True:
        now = runtime.now()
        page = partial(
            pruning.oldest,
            namespace=wanted.namespace,
            after=cursor,
            limit=PAGE,
            unless_due_by=None if wanted.spare is None else now + wanted.spare,
        )
        found, cursor = runtime.database.read(page)
        yield Pruned(schedules=len(found))
        over = []
        for one in found:
            retention = _retention_for(runtime, wanted, one.policies)
            if retention is not None and one.is_over(retention, now):
                over.append(one.uid)
            elif retention is not None and (
                one.may_go(with_slack(retention) if wanted.spare else retention, now)
                or (wanted.events_before and one.event_at and one.event_at < wanted.events_before)
            ):
                yield from _prune_schedule(runtime, wanted, one.uid, retention)
        if over:
            yield _delete_tasks(runtime, over, is_dry=wanted.is_dry)
        if cursor is None:
            break
    if wanted.namespace is None:
        yield from _prune_loose(runtime, wanted)


def _retention_for(runtime: Runtime, wanted: Pruning, policies: str) -> Retention | None:
    try:
        own = Policies.loads(policies).retention
    except Exception:  # noqa: BLE001 - unreadable history is kept, and one bad row must not stop the others
        return None
    return wanted.retention or Retention.parse(own or runtime.settings.retention)


class _Place(NamedTuple):
    """The progress of pruning one schedule."""

    run: int | None = 0
    """Runs up to this number have been processed; None if all have."""
    event: int | None = 0
    """Audit events up to this sequence have been processed; None if all have."""


_END = _Place(None, None)
_Step = tuple[Pruned, _Place]


def _prune_schedule(runtime: Runtime, wanted: Pruning, uid: str, retention: Retention) -> Iterator[Pruned]:
    """Prune one schedule step by step. A failure is logged and ends the pruning of this schedule."""
    place = _Place()
    try:
        while place != _END:
            step = partial(_step, wanted, uid=uid, retention=retention, place=place, clock=runtime.now)
            # Make a dry run first, without a lock, because in most schedules no old row may be deleted.
            done, place = runtime.database.read(partial(step, is_dry=True))
            if done.rows and not wanted.is_dry:
                done, place = runtime.database.transact(partial(step, is_dry=False))
            yield done
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - one failing schedule must not stop the others
        _log.exception("schedule %s cannot be pruned now", uid, extra={"action": "prune_failed"})
        yield Pruned(busy=1)


def _step(
    wanted: Pruning,
    connection: Connection,
    *,
    uid: str,
    retention: Retention,
    place: _Place,
    clock: Callable[[], datetime],
    is_dry: bool,
) -> _Step:
    """Delete some runs of a schedule. If no run is left to delete, delete some other rows of its history."""
    if is_dry:
        schedule = changes.find(connection, uid)
    else:
        schedule = next(iter(changes.lock(connection, [uid], skip_locked=True)), None)
    if schedule is None:
        return Pruned(busy=1), _END
    now, oldest = clock(), None
    if retention.runs is not None and schedule.run_number > retention.runs:
        oldest = pruning.created_at(connection, uid, schedule.run_number - retention.runs + 1)
    edges = edges_of(schedule, retention, oldest_in_count=oldest, now=now)
    if wanted.events_before is not None:
        edges = edges._replace(events=wanted.events_before)
    done = Pruned()
    if place.run is not None:
        following = _prune_runs(connection, schedule, edges, place.run, done, is_dry=is_dry)
        if following is not None:
            return done, _Place(following, place.event)
    return done, _Place(None, _prune_others(connection, uid, edges, place.event or 0, done, is_dry=is_dry))


def _prune_runs(
    connection: Connection, schedule: Schedule, edges: Edges, after: int, done: Pruned, *, is_dry: bool
) -> int | None:
    """Delete some runs. Return the number of the last processed run, or None if all were processed.

    Runs with too many targets are deleted in a later transaction.
    """
    if pruning.is_backfilling(connection, schedule.uid):  # a running backfill reads the runs of past occurrences
        return None
    found = pruning.oldest_runs(connection, schedule.uid, after, BATCH)
    chosen = _choose(connection, schedule, found, edges)
    if chosen and not is_dry:
        chosen = _counted(connection, schedule.uid, chosen)
    following = found[-1].number if len(found) == BATCH and is_beyond(found[-1], edges) else None
    uids, swept = [run.uid for run in chosen], [run.uid for run in chosen if run.has_targets]
    if swept and is_dry:
        done.targets = pruning.count_targets(connection, swept)
    elif swept:
        done.targets = pruning.delete_targets(connection, swept, _ROWS)
        if done.targets == _ROWS:
            return after
    if uids and not is_dry:
        pruning.delete_runs(connection, schedule.uid, uids, pruned_to(chosen))
        oldest = pruning.created_at(connection, schedule.uid, 0)
        run_hours.forget(connection, schedule.uid, hour_of(min(edges.hours, oldest or edges.hours)))
    done.runs = len(uids)
    return following


def _counted(connection: Connection, uid: str, chosen: tuple[RunMark, ...]) -> tuple[RunMark, ...]:
    """Add runs to the hourly counts before the runs are deleted. Return the counted runs, which may be deleted now."""
    count = partial(run_hours.count_some, connection, uid)
    done = count()
    while done is not None and done.is_more and done.number < chosen[-1].number:
        done = count()
    counted = run_hours.are_counted(connection, uid, [run.number for run in chosen])
    return tuple(run for run in chosen if run.number in counted)


def _prune_others(
    connection: Connection, uid: str, edges: Edges, after: int, done: Pruned, *, is_dry: bool
) -> int | None:
    """Delete some audit events, backfills and deliveries, the oldest first.

    Return the sequence of the last event that was processed, or None if all were.
    """
    events = pruning.oldest_events(connection, uid, after, _ROWS)
    below = first_kept_event(events, edges)
    done.events = sum(sequence < below for sequence, _ in events)
    following = below - 1 if done.events == _ROWS else None
    others = pruning.count_others(connection, uid, edges.other) if after == 0 or not is_dry else {}
    done.backfills, done.deliveries = others.get("backfills", 0), others.get("deliveries", 0)
    if is_dry:
        return following
    if done.events:
        pruning.delete_events(connection, uid, below)
    if done.backfills:
        done.backfills = pruning.delete_backfills(connection, uid, edges.other, BATCH)
    if done.deliveries:
        done.deliveries = pruning.delete_deliveries(connection, uid, edges.other, _ROWS)
    if following is None and (done.backfills == BATCH or done.deliveries == _ROWS):
        following = after
    return following


def _choose(connection: Connection, schedule: Schedule, found: list[RunMark], edges: Edges) -> tuple[RunMark, ...]:
    chosen = choose_runs(schedule, found, edges, succeeded_later=True)
    has_success = any(run.status is RunStatus.SUCCEEDED for run in chosen)
    if has_success and not pruning.succeeded_after(connection, schedule.uid, found[-1].number):
        return choose_runs(schedule, found, edges, succeeded_later=False)
    return chosen


def _delete_tasks(runtime: Runtime, uids: list[str], *, is_dry: bool) -> Pruned:
    """Delete ended tasks of Django, each with its run and all other rows; a failure is logged."""
    work, count = partial(pruning.delete_tasks, uids=uids, is_dry=is_dry), 0
    try:
        count = runtime.database.read(work) if is_dry else runtime.database.transact(work)
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - failing tasks must not stop the pruning of others
        _log.exception("%d tasks cannot be pruned now", len(uids), extra={"action": "prune_failed"})
    return Pruned(tasks=count, busy=len(uids) - count)


def _prune_loose(runtime: Runtime, wanted: Pruning) -> Iterator[Pruned]:
    """Delete old targets of fan-outs that have no schedule. Only the age of a retention applies to them."""
    retention = wanted.retention or Retention.parse(runtime.settings.retention)
    age = retention.age
    if age is None:
        return
    if wanted.is_dry:
        before = runtime.now() - age
        count = runtime.database.read(lambda connection: pruning.count_loose_targets(connection, before))
        yield Pruned(targets=count)
        return
    while True:
        count = runtime.database.transact(
            lambda connection: pruning.delete_loose_targets(connection, before=runtime.now() - age, limit=_ROWS)
        )
        yield Pruned(targets=count)
        if count < _ROWS:
            return


def prune_all(runtime: Runtime, wanted: Pruning, progress: Callable[[Pruned], None] | None = None) -> Pruned:
    """Prune everything in small transactions, and return the counts. `progress` is called with each step's counts."""
    total = Pruned()
    for step in prune(runtime, wanted):
        total.add(step)
        if progress is not None:
            progress(step)
    return total


def prune(runtime: Runtime, wanted: Pruning) -> Iterator[Pruned]:
    """Prune as `iter_prune` does. Count the deleted rows for the metrics, and log the totals."""
    total, is_counted = Pruned(), not wanted.is_dry
    for step in iter_prune(runtime, wanted):
        total.add(step)
        if is_counted and step.rows:
            is_counted = telemetry.record_pruned(runtime.transport.redis, runtime.transport.control.name, step.deleted)
        yield step
    if total.rows and not wanted.is_dry:
        _log.info("pruned %s", asdict(total), extra={"action": "pruned"})
