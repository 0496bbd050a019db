"""Counters that are computed from recorded events. They start at zero with this process's first update and only grow.

Events are read in the order in which they were recorded, with a small overlap, because a slow commit may appear late.
Runs are watched from their start to their end. The cost of an update depends on the events since the previous update,
not on the number of schedules.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

from rqsched.api import events, runs, states
from rqsched.api.events import RecordedEvent
from rqsched.api.runs import EndedRun
from rqsched.api.runtime import Runtime
from rqsched.api.states import OPEN
from rqsched.types import RunKind

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the lateness of fires, in seconds."""
_RUN_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)
"""Upper bounds of the durations, waits and lateness of runs, in seconds."""
MAX_NAMESPACES = 100
"""How many namespaces have their own label."""
MAX_QUEUES, MAX_WORKFLOWS = 50, 50
"""How many queues and workflows have their own label."""
MAX_SERIES = 300
"""The maximum number of combinations of queue, workflow and outcome; further runs are counted under `OTHER`."""
OTHER = "other"
"""The label of all further namespaces, queues and workflows."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_OVERLAP = timedelta(seconds=10)
"""How far back an update reads again, for slow commits."""
_PAGE, _MAX_PAGES = 10_000, 20
"""The maximum number of events of one query, and of queries of one update."""
_CHUNK, _MAX_OPEN = 1_000, 100_000
"""The maximum number of runs of one query, and of runs that are watched at once."""
_FIRES = {states.TRIGGERED: "triggered", states.BUFFERED: "buffered", states.SKIPPED: "skipped"}


Key: TypeAlias = tuple[str, ...]
"""The values of the metric's labels, the namespace first."""


class Histogram:
    """Spans in seconds, counted by buckets. No span is ever removed, so each count only grows."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """The upper bounds of the buckets; the last bucket has none."""
        self.buckets = [0] * (len(bounds) + 1)
        """Spans per bucket."""
        self.total = 0.0
        """The sum of all spans."""

    def add(self, span: timedelta) -> None:
        """Count one span. A negative span, which occurs when a clock is set back, counts as zero."""
        seconds = max(span.total_seconds(), 0.0)
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Labels:
    """Labels for user-chosen names: the first names have a label each, and all further names share `OTHER`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the label of a name."""
        if name not in self._known and len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


@dataclass
class Counts:
    """Counters since the first update, by label values."""

    fires: Counter[Key] = field(default_factory=Counter)
    """Occurrences and triggers, by outcome."""
    skips: Counter[Key] = field(default_factory=Counter)
    """Occurrences and triggers that started nothing, by reason."""
    runs: Counter[Key] = field(default_factory=Counter)
    """Runs that ended, by status."""
    missed: Counter[Key] = field(default_factory=Counter)
    """Occurrences that passed without a fire."""
    fire_failures: Counter[Key] = field(default_factory=Counter)
    """Fires that failed and were postponed."""
    targets: Counter[Key] = field(default_factory=Counter)
    """Targets of fan-outs that have ended entirely, by status."""
    expired: Counter[Key] = field(default_factory=Counter)
    """Runs that were not started in time."""
    died: Counter[Key] = field(default_factory=Counter)
    """Schedules that became dead."""
    lateness: defaultdict[Key, Histogram] = field(default_factory=lambda: defaultdict(partial(Histogram, _BUCKETS)))
    """The lateness of scheduled occurrences, by namespace."""
    durations: defaultdict[Key, Histogram] = field(
        default_factory=lambda: defaultdict(partial(Histogram, _RUN_BUCKETS))
    )
    """How long the last attempt of ended runs took, by namespace, queue, workflow and outcome."""
    waits: defaultdict[Key, Histogram] = field(default_factory=lambda: defaultdict(partial(Histogram, _RUN_BUCKETS)))
    """How long the last attempt of ended runs waited for a worker, by the same labels."""
    run_lateness: defaultdict[Key, Histogram] = field(
        default_factory=lambda: defaultdict(partial(Histogram, _RUN_BUCKETS))
    )
    """How long after its due time a run of one attempt began, by the same labels; backfills are not counted."""


class Follower:
    """Follows the events and the runs of one database. One thread at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self.counts = Counts()
        self._runtime = runtime
        self._started_at: datetime | None = None
        self._read_until = _NEVER
        self._seen: dict[tuple[str, int], datetime] = {}
        self._open: dict[str, str] = {}
        self.label = Labels(MAX_NAMESPACES)
        """Returns the label of a namespace."""
        self.queue_label = Labels(MAX_QUEUES)
        """Returns the label of a queue."""
        self._workflow_label = Labels(MAX_WORKFLOWS)

    def update(self) -> None:
        """Count what was recorded since the last update; the first update counts nothing."""
        if self._started_at is None:
            self._read_until = self._started_at = self._runtime.now()
            self._open = self._runtime.database.read(
                lambda connection: runs.namespaces_of_open_runs(connection, _MAX_OPEN)
            )
            return
        for row in self._new_events(max(self._read_until - _OVERLAP, self._started_at)):
            if row.recorded_at > self._started_at:
                self._count(row)
        kept_from = self._read_until - 2 * _OVERLAP
        self._seen = {key: at for key, at in self._seen.items() if at > kept_from}
        self._count_ended_runs()

    def _new_events(self, since: datetime) -> Iterator[RecordedEvent]:
        position = events.position_before(since)
        for _ in range(_MAX_PAGES):
            rows = self._runtime.database.read(partial(events.read_recorded, position=position, limit=_PAGE))
            for row in rows:
                if (row.schedule_uid, row.sequence) not in self._seen:
                    self._seen[row.schedule_uid, row.sequence] = row.recorded_at
                    self._read_until = max(self._read_until, row.recorded_at)
                    yield row
            if len(rows) < _PAGE:
                return
            position = rows[-1].position

    def _count(self, row: RecordedEvent) -> None:
        namespace, payload = self.label(row.namespace), json.loads(row.payload)
        if row.workflow_run_id is not None and len(self._open) < _MAX_OPEN:
            self._open.setdefault(row.workflow_run_id, row.namespace)
        if row.event_type in _FIRES and payload.get("outcome") != "drained":
            self.counts.fires[namespace, _FIRES[row.event_type]] += 1
            self._measure(namespace, row)
        if row.event_type == states.SKIPPED:
            self.counts.skips[namespace, payload["reason"]] += 1
        elif row.event_type == states.MISSED:
            self.counts.missed[namespace,] += payload["count"]
        elif row.event_type == states.FIRE_FAILED:
            self.counts.fire_failures[namespace,] += 1
        elif row.event_type == states.FAN_OUT_ENDED:
            for status, count in payload["targets"].items():
                self.counts.targets[namespace, status] += count
        elif row.event_type == states.RUN_EXPIRED:
            self.counts.expired[namespace,] += 1
        elif row.event_type == states.DIED:
            self.counts.died[namespace,] += 1

    def _measure(self, namespace: str, row: RecordedEvent) -> None:
        if row.kind == RunKind.SCHEDULED and row.due_at is not None:
            self.counts.lateness[namespace,].add(row.recorded_at - row.due_at)

    def _count_ended_runs(self) -> None:
        """Count the watched runs that have ended; a purged run is no longer watched."""
        watched = list(self._open)
        for chunk in (watched[start : start + _CHUNK] for start in range(0, len(watched), _CHUNK)):
            found = self._runtime.database.read(partial(runs.statuses_of_runs, uids=chunk))
            over = [uid for uid in chunk if found.get(uid) not in OPEN]
            ended = [uid for uid in over if uid in found]
            read = partial(runs.ended_runs, uids=ended)
            for run in self._runtime.database.read(read) if ended else ():
                self._count_ended(self.label(self._open[run.uid]), run)
            for uid in over:
                del self._open[uid]

    def _count_ended(self, namespace: str, run: EndedRun) -> None:
        counts = self.counts
        counts.runs[namespace, run.status] += 1
        if run.started_at is None or run.ended_at is None:
            return
        queue = self.queue_label(run.queue or self._runtime.settings.default_queue)
        key = namespace, queue, self._workflow_label(run.workflow), run.status
        if key not in counts.durations and len(counts.durations) >= MAX_SERIES:
            key = namespace, OTHER, OTHER, run.status
        counts.durations[key].add(run.ended_at - run.started_at)
        if run.queued_at is not None:
            counts.waits[key].add(run.started_at - run.queued_at)
        # A retry has a due time of its own, and a backfill's run is late by intention.
        if run.attempt == 1 and run.due_at is not None and run.kind != RunKind.BACKFILL:
            counts.run_lateness[key].add(run.started_at - run.due_at)
