"""Counters followed from what SQL records, monotonic from this process's first look on.

Events are read as they were recorded, overlapping a little: a slow commit may appear behind a faster one. Runs are
watched from their start to their end. A look costs what happened since the one before, not what there is.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

from rqsched.chain.runtime import Runtime
from rqsched.core import audit
from rqsched.core.model import OPEN, RunKind
from rqsched.store import metrics
from rqsched.store.metrics import RecordedEvent

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of lateness, in seconds."""
MOST_NAMESPACES = 100
OTHER = "other"
"""What namespaces beyond the first hundred are counted as."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_OVERLAP = timedelta(seconds=10)
_PAGE, _MOST_PAGES = 10_000, 20
_CHUNK, _MOST_OPEN = 1_000, 100_000
_FIRES = {audit.TRIGGERED: "triggered", audit.BUFFERED: "buffered", audit.SKIPPED: "skipped"}


Key: TypeAlias = tuple[str, ...]
"""The namespace's label, and the label that matters where there is one."""


@dataclass
class Lateness:
    """A histogram."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one fire."""
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


@dataclass
class Counts:
    """What happened since the first look, by namespace and the label that matters."""

    fires: Counter[Key] = field(default_factory=Counter)
    skips: Counter[Key] = field(default_factory=Counter)
    runs: Counter[Key] = field(default_factory=Counter)
    missed: Counter[Key] = field(default_factory=Counter)
    fire_failures: Counter[Key] = field(default_factory=Counter)
    died: Counter[Key] = field(default_factory=Counter)
    lateness: dict[str, Lateness] = field(default_factory=dict)


class Follower:
    """Follows the events and the runs of one database. One thread at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self.counts = Counts()
        self._runtime = runtime
        self._began_at: datetime | None = None
        self._seen_to = _NEVER
        self._seen: dict[tuple[str, int], datetime] = {}
        self._open: dict[str, str] = {}
        self._namespaces: set[str] = set()

    def label(self, namespace: str) -> str:
        """Give a namespace's label, of which there is a bounded number."""
        if namespace not in self._namespaces and len(self._namespaces) >= MOST_NAMESPACES:
            return OTHER
        self._namespaces.add(namespace)
        return namespace

    def look(self) -> None:
        """Count what was recorded since the last look; the first look counts nothing."""
        if self._began_at is None:
            self._seen_to = self._began_at = self._runtime.now()
            self._open = self._runtime.database.read(lambda connection: metrics.open_runs(connection, _MOST_OPEN))
            return
        for row in self._fresh(max(self._seen_to - _OVERLAP, self._began_at)):
            if row.recorded_at > self._began_at:
                self._count(row)
        self._forget()
        self._settle_runs()

    # ---- events

    def _fresh(self, since: datetime) -> Iterator[RecordedEvent]:
        position = (since, "", 0)
        for _ in range(_MOST_PAGES):
            rows = self._runtime.database.read(partial(metrics.events_after, position=position, limit=_PAGE))
            for row in rows:
                if (row.schedule_uid, row.sequence) not in self._seen:
                    self._seen[row.schedule_uid, row.sequence] = row.recorded_at
                    self._seen_to = max(self._seen_to, row.recorded_at)
                    yield row
            if len(rows) < _PAGE:
                return
            position = rows[-1].position

    def _forget(self) -> None:
        kept_from = self._seen_to - 2 * _OVERLAP
        self._seen = {key: at for key, at in self._seen.items() if at > kept_from}

    def _count(self, row: RecordedEvent) -> None:
        namespace, payload = self.label(row.namespace), json.loads(row.payload)
        if row.workflow_run_id is not None and len(self._open) < _MOST_OPEN:
            self._open.setdefault(row.workflow_run_id, row.namespace)
        if row.event_type in _FIRES and payload.get("outcome") != "drained":
            self.counts.fires[namespace, _FIRES[row.event_type]] += 1
            self._measure(namespace, row)
        if row.event_type == audit.SKIPPED:
            self.counts.skips[namespace, payload["reason"]] += 1
        elif row.event_type == audit.MISSED:
            self.counts.missed[namespace,] += payload["count"]
        elif row.event_type == audit.FIRE_FAILED:
            self.counts.fire_failures[namespace,] += 1
        elif row.event_type == audit.DIED:
            self.counts.died[namespace,] += 1

    def _measure(self, namespace: str, row: RecordedEvent) -> None:
        if row.kind == RunKind.SCHEDULED and row.due_at is not None:
            seconds = max((row.recorded_at - row.due_at).total_seconds(), 0.0)
            self.counts.lateness.setdefault(namespace, Lateness()).add(seconds)

    # ---- runs

    def _settle_runs(self) -> None:
        """Count the watched runs that have ended; one whose schedule was purged is watched no longer."""
        uids = list(self._open)
        for start in range(0, len(uids), _CHUNK):
            chunk = uids[start : start + _CHUNK]
            found = self._runtime.database.read(partial(metrics.run_statuses, uids=chunk))
            for uid in chunk:
                self._settle(uid, found.get(uid))

    def _settle(self, uid: str, status: str | None) -> None:
        if status in OPEN:
            return
        namespace = self.label(self._open.pop(uid))
        if status is not None:
            self.counts.runs[namespace, status] += 1
