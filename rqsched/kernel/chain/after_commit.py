"""After the caller's commit: publish what operations wrote in the caller's transaction.

The written rows are read again on our own connection. Their present state is published, and not the decided state,
because the transaction or a savepoint in it may have been rolled back. If a row still has the uid of its operation, the
row and its events are as the operation decided. For the rows that only one operation wrote, a single statement checks
this.
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
"""Try once, because the application waits for its commit. Try a second time only if the connection was lost."""


class AfterCommit:
    """The Changes of one scheduler in one transaction of its caller. Call this object after the transaction."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changes: list[Change] = []

    def add(self, changes: Sequence[Change]) -> None:
        """Remember which rows these Changes are about; the decided values themselves are not published."""
        self._changes += changes

    def __call__(self) -> None:
        """Publish the rows as they are now. If this thread runs an event loop, which must not wait, use another thread.

        Nothing is raised, because the caller has committed already. A failure is logged, and reconcile does the rest.
        A later call publishes the Changes that were added since.
        """
        touched, self._changes = self._changes, []
        if not touched:
            return
        try:
            asyncio.get_running_loop().run_in_executor(None, self._publish, touched)
        except RuntimeError:  # no event loop runs, or it takes no more work
            self._publish(touched)

    def _publish(self, touched: Sequence[Change]) -> None:
        runtime = self._runtime
        try:
            found = _as_they_are(runtime.database, touched)
            resumed = {one.after.uid: one.owed_again for one in touched if one.owed_again is not None}
            found = [replace(one, owed_again=resumed.get(one.after.uid)) for one in found] if resumed else found
            publish(runtime, found, decided=touched)
        except Exception:  # noqa: BLE001 - the caller's transaction is over and must not fail here
            _log.exception("links and jobs are not in Redis yet", extra={"action": "follow_failed"})


def _as_they_are(database: Database, touched: Sequence[Change]) -> list[Change]:
    """Read each touched schedule that exists, with its touched runs and the events that were committed."""
    by_uid: dict[str, list[Change]] = {}
    for change in touched:
        by_uid.setdefault(change.after.uid, []).append(change)
    alone = {uid: ones[0] for uid, ones in by_uid.items() if len(ones) == 1 and store.is_one_of_each(ones[0])}
    # Each row by itself shows whether it has changed since the decision, so no transaction is needed.
    look = database.transact_alone if database.takes_single_statements else database.read
    rows = look(lambda connection: store.find_written(connection, alone.values()), patience=_ONCE) if alone else {}
    found = {
        uid: _unchanged(alone[uid], *row)
        for uid, row in rows.items()
        if row[0].operation == (alone[uid].after.operation or "none")  # no row has this operation
    }
    others = {uid: ones for uid, ones in by_uid.items() if uid not in found}
    if others:
        found |= database.read(lambda connection: _standing_of_each(connection, others), patience=_ONCE)
    return [found[uid] for uid in by_uid if uid in found]


def _unchanged(change: Change, schedule: Schedule, run: Run | None) -> Change:
    """Return a Change that writes nothing, for a schedule that is as the given Change left it."""
    pairs = [] if run is None else [_pair(change.new_runs[0], run)]
    return Change(schedule, schedule, changed_runs=tuple(pairs), events=change.events)


def _pair(before: Run, now: Run) -> tuple[Run, Run]:
    """Return a run's states before and after: `now` twice, or `before` and `now` if the run has ended between them."""
    return (before if before.status in OPEN and now.status not in OPEN else now), now


def _standing_of_each(connection: Connection, touched: Mapping[str, Sequence[Change]]) -> dict[str, Change]:
    schedules = {uid: store.find(connection, uid) for uid in touched}
    return {
        uid: _standing(connection, schedule, touched[uid])
        for uid, schedule in schedules.items()
        if schedule is not None
    }


def _standing(connection: Connection, schedule: Schedule, touched: Sequence[Change]) -> Change:
    """Return a Change that writes nothing: it has the schedule, its pending runs and its touched runs as they are."""
    change = restate(connection, schedule)
    read = {run.uid: run for one in touched for run in (*one.new_runs, *(run for run, _ in one.changed_runs))}
    pairs = {run.uid: (run, run) for run, _ in change.changed_runs}
    for uid, before in read.items():
        now = store.find_run(connection, uid)
        if now is not None:
            pairs[uid] = _pair(before, now)
    events = [event for one in touched for event in _committed(connection, one)]
    # The Change has the same object before and after, so publishing it only arms the present link again.
    as_it_is = changed(schedule, updated_at=max(one.after.updated_at for one in touched))
    return Change(as_it_is, as_it_is, changed_runs=tuple(pairs.values()), events=tuple(events))


def _committed(connection: Connection, change: Change) -> list[Event]:
    """Return the events of a Change that are in SQL as the Change recorded them."""
    first = change.after.event_sequence - len(change.events)
    limit = max(len(change.events), 1)
    records = event_queries.history(connection, change.after.uid, limit=limit, after_sequence=first).items
    written = {(one.sequence, one.event_type, dumps(one.payload), one.recorded_at) for one in records}
    return [
        event
        for sequence, event in enumerate(change.events, first + 1)
        if (sequence, event.type, dumps(event.payload), change.after.updated_at) in written
    ]
