"""Pruning: history beyond the retention of its schedule is deleted, in small transactions.

A dispatcher makes one step between two looks for due links when it has nothing else to do; `rqsched prune` makes them
one after the other. A step locks one schedule, without waiting for it, and deletes some hundred rows at most. So a
pruner that dies or freezes in the middle of a step holds up that schedule only, and the next pruner continues.
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
"""Schedules looked at in one step."""
BATCH = 200
"""The most runs one transaction deletes, and a fifth of the most targets or audit events."""
_ROWS = 5 * BATCH
NOT_BEFORE_A_FIRE = timedelta(milliseconds=200)
"""A dispatcher leaves alone schedules that are due sooner than this: its lock must not make their fires late."""


@dataclass(slots=True)
class Pruned:
    """Counts of the rows that were deleted, or would be."""

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
    """Tasks of Django that ended, each with its run and its audit events."""
    busy: int = 0
    """Schedules that were locked by something else, or failed; the next pruning sees them again."""

    @property
    def deleted(self) -> dict[str, int]:
        """How many rows of each kind were deleted, by the names of these fields."""
        names = ("runs", "targets", "events", "backfills", "deliveries", "tasks")
        return {name: getattr(self, name) for name in names}

    @property
    def rows(self) -> int:
        """How many rows were deleted in all."""
        return sum(self.deleted.values())

    def add(self, other: Pruned) -> None:
        """Add another step's counts."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True)
class Pruning:
    """A request to prune."""

    namespace: str | None = None
    """Only this namespace's schedules; None prunes all, and fan-outs started by hand too."""
    retention: Retention | None = None
    """The retention instead of the setting and of the schedules' own; None keeps those."""
    is_dry: bool = False
    """Count only."""
    events_before: datetime | None = None
    """Delete the audit events recorded before it too, whatever the retention keeps."""
    spare: timedelta | None = None
    """Leave alone schedules that are due within this, or keep hardly more than they may; None leaves none alone."""


class Prunings(Feature):
    """Deletes history beyond its retention."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - it is no part of a pass
        """Prune every schedule, but none that is about to fire."""
        steps = prune(self._runtime, Pruning(spare=NOT_BEFORE_A_FIRE))
        return [Section(Stage.HOUSEKEEPING, (Recovered(checked=step.schedules) for step in steps))]


def iter_prune(runtime: Runtime, wanted: Pruning) -> Iterator[Pruned]:
    """Prune every schedule that keeps too much, step by step; yields the counts of each step.

    Raises BackendUnavailableError when SQL is away. A schedule that fails otherwise is logged and left out.
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
    except Exception:  # noqa: BLE001 - what cannot be read is kept, and one row never starves the others
        return None
    return wanted.retention or Retention.parse(own or runtime.settings.retention)


class _Place(NamedTuple):
    """How far the pruning of one schedule is."""

    run: int | None = 0
    """Runs up to this number have been looked at; None when there are no more to look at."""
    event: int | None = 0
    """Audit events up to this sequence have been looked at; None when there are no more to look at."""


_END = _Place(None, None)
_Step = tuple[Pruned, _Place]


def _prune_schedule(runtime: Runtime, wanted: Pruning, uid: str, retention: Retention) -> Iterator[Pruned]:
    """Prune one schedule step by step; a failure is logged, and the rest left out."""
    place = _Place()
    try:
        while place != _END:
            step = partial(_step, wanted, uid=uid, retention=retention, place=place, clock=runtime.now)
            # Look first, without a lock: most schedules with old rows have only some that always stay.
            done, place = runtime.database.read(partial(step, is_dry=True))
            if done.rows and not wanted.is_dry:
                done, place = runtime.database.transact(partial(step, is_dry=False))
            yield done
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - one schedule never starves the others
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
    """Delete some of one schedule's runs, and of the rest of its history once no run is left to delete."""
    schedule = _lock(connection, uid, is_dry=is_dry)
    if schedule is None:
        return Pruned(busy=1), _END
    edges = _edges(connection, schedule, retention, clock())
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
    """Delete some runs, and return up to which number; runs with too many targets go in a later transaction."""
    if pruning.is_backfilling(connection, schedule.uid):  # what it reports must not change while it fires
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
    """Count runs in their hours before they are deleted; returns the counted runs: all, or for once fewer."""
    count = partial(run_hours.count_some, connection, uid)
    done = count()
    while done is not None and done.is_more and done.number < chosen[-1].number:
        done = count()
    counted = run_hours.are_counted(connection, uid, [run.number for run in chosen])
    return tuple(run for run in chosen if run.number in counted)


def _prune_others(
    connection: Connection, uid: str, edges: Edges, after: int, done: Pruned, *, is_dry: bool
) -> int | None:
    """Delete some audit events, oldest first, backfills and deliveries; returns up to which sequence, None for all."""
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


def _lock(connection: Connection, uid: str, *, is_dry: bool) -> Schedule | None:
    if is_dry:
        return changes.find(connection, uid)
    found = changes.lock(connection, [uid], skip_locked=True)
    return found[0] if found else None


def _edges(connection: Connection, schedule: Schedule, retention: Retention, now: datetime) -> Edges:
    oldest: datetime | None = None
    if retention.runs is not None and schedule.run_number > retention.runs:
        oldest = pruning.created_at(connection, schedule.uid, schedule.run_number - retention.runs + 1)
    return edges_of(schedule, retention, oldest_in_count=oldest, now=now)


def _delete_tasks(runtime: Runtime, uids: list[str], *, is_dry: bool) -> Pruned:
    """Delete tasks that are over, each with its run and all that belongs to it; a failure is logged."""
    work, count = partial(pruning.delete_tasks, uids=uids, is_dry=is_dry), 0
    try:
        count = runtime.database.read(work) if is_dry else runtime.database.transact(work)
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - they never starve the others
        _log.exception("%d tasks cannot be pruned now", len(uids), extra={"action": "prune_failed"})
    return Pruned(tasks=count, busy=len(uids) - count)


def _delete_loose(runtime: Runtime, age: timedelta, connection: Connection) -> int:
    return pruning.delete_loose_targets(connection, before=runtime.now() - age, limit=_ROWS)


def _prune_loose(runtime: Runtime, wanted: Pruning) -> Iterator[Pruned]:
    """Delete targets of fan-outs started by hand, which have no schedule: by age alone."""
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
        count = runtime.database.transact(partial(_delete_loose, runtime, age))
        yield Pruned(targets=count)
        if count < _ROWS:
            return


def prune_all(runtime: Runtime, wanted: Pruning, progress: Callable[[Pruned], None] | None = None) -> Pruned:
    """Prune to the end, in small transactions; returns the counts, of which `progress` gets each step's."""
    total = Pruned()
    for step in prune(runtime, wanted):
        total.add(step)
        if progress is not None:
            progress(step)
    return total


def prune(runtime: Runtime, wanted: Pruning) -> Iterator[Pruned]:
    """Do as `iter_prune`, count what was deleted for metrics, and log it in all."""
    total, is_counted = Pruned(), not wanted.is_dry
    for step in iter_prune(runtime, wanted):
        total.add(step)
        if is_counted and step.rows:
            is_counted = telemetry.record_pruned(runtime.transport.redis, runtime.transport.control.name, step.deleted)
        yield step
    if total.rows and not wanted.is_dry:
        _log.info("pruned %s", asdict(total), extra={"action": "pruned"})
