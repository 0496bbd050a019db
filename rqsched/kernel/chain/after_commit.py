"""After the caller's commit: what an operation wrote in the caller's transaction is published.

The touched rows are read again, on a connection of ours, and published as they are then, never as they were decided: a
savepoint may have been rolled back since, or the whole transaction. If a row still names the operation that wrote it,
the row and its events are as that operation decided: one statement finds this for all rows with one operation each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from rqsched.kernel.chain.commit import publish
from rqsched.kernel.chain.fire import restate
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.model import OPEN, Change, Run, Schedule, changed
from rqsched.kernel.decide.payload import dumps
from rqsched.kernel.queries import events as event_queries
from rqsched.kernel.store import changes as store
from rqsched.kernel.store.database import Connection, Database, Patience

_log = logging.getLogger(__name__)

_ONCE = Patience(total=timedelta(milliseconds=1))
"""Somebody waits for the answer to a commit: once, and again on another connection when this one was lost."""


class AfterCommit:
    """The Changes of one scheduler in one transaction of its caller; called once that is over, to publish them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changes: list[Change] = []

    def add(self, changes: Sequence[Change]) -> None:
        """Remember what these Changes are about; none of what they decided is published."""
        self._changes += changes

    def __call__(self) -> None:
        """Publish what SQL says now; in a thread when this one runs an event loop, which must not wait.

        Nothing is raised: the caller's commit is made. A failure is logged, and the rest left to reconcile. Called
        again, it publishes the Changes added since.
        """
        touched, self._changes = self._changes, []
        if not touched:
            return
        try:
            asyncio.get_running_loop().run_in_executor(None, self._publish, touched)
        except RuntimeError:  # none runs, or it takes no more work
            self._publish(touched)

    def _publish(self, touched: Sequence[Change]) -> None:
        runtime = self._runtime
        try:
            found = _as_they_are(runtime.database, touched)
            resumed = {one.after.uid: one.owed_again for one in touched if one.owed_again is not None}
            found = [replace(one, owed_again=resumed.get(one.after.uid)) for one in found] if resumed else found
            publish(runtime, found, decided=touched)
        except Exception:  # noqa: BLE001 - the caller's transaction is over, and is none of ours
            _log.exception("links and jobs follow later", extra={"action": "follow_failed"})


def _as_they_are(database: Database, touched: Sequence[Change]) -> list[Change]:
    """Read each touched schedule that there is, with the runs and those of the events that were committed."""
    by_uid: dict[str, list[Change]] = {}
    for change in touched:
        by_uid.setdefault(change.after.uid, []).append(change)
    alone = {uid: ones[0] for uid, ones in by_uid.items() if len(ones) == 1 and store.is_one_of_each(ones[0])}
    # Each row says by itself whether it is as it was decided: no transaction is needed to compare them.
    look = database.transact_alone if database.takes_single_statements else database.read
    rows = look(lambda connection: store.find_written(connection, alone.values()), patience=_ONCE) if alone else {}
    found = {
        uid: _unchanged(alone[uid], *row) for uid, row in rows.items() if row[0].operation == _operation(alone[uid])
    }
    others = {uid: ones for uid, ones in by_uid.items() if uid not in found}
    if others:
        found |= database.read(lambda connection: _standing_of_each(connection, others), patience=_ONCE)
    return [found[uid] for uid in by_uid if uid in found]


def _operation(change: Change) -> str:
    """Return the uid of the operation that decided a Change; without one, a word that no row has as its operation."""
    return change.after.operation or "none"


def _unchanged(change: Change, schedule: Schedule, run: Run | None) -> Change:
    """Return a Change that writes nothing, of a schedule that is as another Change has left it."""
    pairs = [] if run is None else [_pair(change.new_runs[0], run)]
    return Change(schedule, schedule, changed_runs=tuple(pairs), events=change.events)


def _pair(before: Run, now: Run) -> tuple[Run, Run]:
    """Return a run as it is now, twice; if it has ended since, first as it was then, which says where its job is."""
    return (before if before.status in OPEN and now.status not in OPEN else now), now


def _standing_of_each(connection: Connection, touched: Mapping[str, Sequence[Change]]) -> dict[str, Change]:
    schedules = {uid: store.find(connection, uid) for uid in touched}
    return {
        uid: _standing(connection, schedule, touched[uid])
        for uid, schedule in schedules.items()
        if schedule is not None
    }


def _standing(connection: Connection, schedule: Schedule, touched: Sequence[Change]) -> Change:
    """Return a Change that writes nothing: the schedule as it is, its pending and its touched runs as they are."""
    change = restate(connection, schedule)
    read = {run.uid: run for one in touched for run in (*one.new_runs, *(run for run, _ in one.changed_runs))}
    pairs = {run.uid: (run, run) for run, _ in change.changed_runs}
    for uid, before in read.items():
        now = store.find_run(connection, uid)
        if now is not None:
            pairs[uid] = _pair(before, now)
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
