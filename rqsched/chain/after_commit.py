"""After the caller's commit: what an operation wrote in the caller's transaction is published.

The touched rows are read again, on a connection of ours, and published as they are then, never as they were decided: a
savepoint may have been rolled back since, or the whole transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from rqsched.chain.firing import restate
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import Event
from rqsched.core.model import OPEN, Change, Schedule, changed
from rqsched.core.payload import dumps
from rqsched.store import changes as store
from rqsched.store import event_queries
from rqsched.store.database import Connection, Patience

_log = logging.getLogger(__name__)

_ONCE = Patience(total=timedelta(milliseconds=1))
"""Somebody waits for the answer to a commit: once, and again on another connection when this one was lost."""


class AfterCommit:
    """What one scheduler touched in one transaction of its caller; called once that is over, to publish it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changes: list[Change] = []

    def add(self, changes: Sequence[Change]) -> None:
        """Remember what these Changes are about; none of what they decided is published."""
        self._changes += changes

    def __call__(self) -> None:
        """Publish what SQL says now; in a thread when this one runs an event loop, which must not wait.

        Nothing is raised: the caller's commit is made. What fails is logged, and left to reconcile.
        """
        try:
            asyncio.get_running_loop().run_in_executor(None, self._publish)
        except RuntimeError:  # none runs, or it takes no more work
            self._publish()

    def _publish(self) -> None:
        runtime = self._runtime
        try:
            found = runtime.database.read(self._as_it_is, patience=_ONCE)
            runtime.follow([replace(change, events=()) for change in found])
            runtime.notifier.dispatch(runtime.notifier.owed(self._changes), runtime.now())
            runtime.tell(found)
        except Exception:  # noqa: BLE001 - the caller's transaction is over, and is none of ours
            _log.exception("links and jobs follow later", extra={"action": "follow_failed"})

    def _as_it_is(self, connection: Connection) -> list[Change]:
        """Read each touched schedule that there is, with the runs and those of the events that were committed."""
        by_uid: dict[str, list[Change]] = {}
        for change in self._changes:
            by_uid.setdefault(change.after.uid, []).append(change)
        schedules = {uid: store.find(connection, uid) for uid in by_uid}
        return [
            _standing(connection, schedule, by_uid[uid]) for uid, schedule in schedules.items() if schedule is not None
        ]


def _standing(connection: Connection, schedule: Schedule, touched: Sequence[Change]) -> Change:
    """Return a Change that writes nothing: the schedule as it is, its pending and its touched runs as they are."""
    change = restate(connection, schedule)
    read = {run.uid: run for one in touched for run in (*one.new_runs, *(run for run, _ in one.changed_runs))}
    pairs = {run.uid: (run, run) for run, _ in change.changed_runs}
    for uid, before in read.items():
        now = store.find_run(connection, uid)
        if now is not None:  # of one that has ended since, where its job was
            pairs[uid] = (before if before.status in OPEN and now.status not in OPEN else now), now
    events = [event for one in touched for event in _committed(connection, one)]
    # One object before and after: a Change that moves nothing, and so restates where the link is.
    as_it_is = changed(schedule, updated_at=max(one.after.updated_at for one in touched))
    return Change(as_it_is, as_it_is, changed_runs=tuple(pairs.values()), events=tuple(events))


def _committed(connection: Connection, change: Change) -> list[Event]:
    """Return those events of a Change that SQL holds as they were written."""
    first = change.after.event_sequence - len(change.events)
    limit = max(len(change.events), 1)
    records = event_queries.history(connection, change.after.uid, limit=limit, after_sequence=first).items
    written = {(one.sequence, one.event_type, dumps(one.payload), one.recorded_at) for one in records}
    return [
        event
        for sequence, event in enumerate(change.events, first + 1)
        if (sequence, event.type, dumps(event.payload), change.after.updated_at) in written
    ]
