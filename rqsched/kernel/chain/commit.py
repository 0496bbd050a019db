"""Before a commit, `write` writes Changes to SQL; after the commit, `publish` updates Redis and calls the features.

A Change is all that one decision writes: a schedule, its runs and its audit events. Redis *follows* a Change when it
has the links and jobs that the Change needs. Other code writes Changes, and makes Redis follow them, only through this
module. The caller locks, reads and decides first. `Attempts` combines a decision with `write`. If the answer to a
commit is lost, `Attempts` finds out whether the commit was made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import product
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from redis.exceptions import RedisError

from rqsched.errors import RedisUnavailableError, WrongDatabaseError, error_line
from rqsched.kernel.chain.feature import Feature, Features
from rqsched.kernel.chain.run_log import log_ends
from rqsched.kernel.decide.audit import BUFFERED, DIED, Event
from rqsched.kernel.decide.model import Change, Schedule
from rqsched.kernel.fork_guard import call_in_this_process
from rqsched.kernel.store import changes as store
from rqsched.kernel.store.changes import Seen, Sees
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.breaker import Breakers, RedisAwayError
from rqsched.kernel.transport.refusal import advice_for, is_transient, told
from rqsched.kernel.transport.transport import Transport

_log = logging.getLogger(__name__)

_MOST_OUT_OF_SYNC = 10_000
MANY_WAITING = 2
"""If more than this many runs of a schedule wait for an unfinished run, a warning is logged."""

Subscriber = Callable[[Change, Event], None]
"""Called after commit with each audit event and the Change that recorded it."""

R = TypeVar("R")

NOTHING_SEEN: Seen = {}

_SCHEDULE_ID = attrgetter("after.schedule_id")


class Parts(Protocol):
    """The parts of a process's `Runtime` that `write` and `publish` use."""

    now: Callable[[], datetime]
    """Returns the database's time."""
    transport: Transport
    """Redis, with links and jobs."""
    breakers: Breakers
    """One breaker for each Redis. A worker has no breakers."""
    out_of_sync: set[str]
    """The uids of schedules that Redis does not follow yet because it was away. If there are many, some are missing."""
    subscribers: list[Subscriber]
    """Called with each event after its commit."""
    features: Features
    """The features that take part in a commit."""


def write(parts: Parts, connection: Connection, changes: Sequence[Change]) -> list[Feature]:
    """Write Changes of locked or new schedules, and the features' rows for them, in the open transaction.

    Returns the features that are involved.
    """
    involved = parts.features.involved_in(changes)
    for feature in involved:
        feature.before_write(connection, changes)
    store.write(connection, changes)
    for feature in involved:
        feature.after_write(connection, changes)
    return involved


def publish(
    parts: Parts,
    changes: Sequence[Change],
    *,
    must: bool = False,
    seen: Seen = NOTHING_SEEN,
    decided: Sequence[Change] | None = None,
    involved: Sequence[Feature] | None = None,
    skip_locked: bool = False,
) -> None:
    """Make Redis follow committed Changes and announce them. A repeated call does no harm.

    If Redis does not answer, this is logged, and reconcile adds the links when Redis is back. With `must`,
    RedisUnavailableError is also raised, so that the present link is delivered again. Nothing else is raised.

    Args:
        parts: The process's runtime.
        changes: The committed Changes, or Changes that write nothing and only have the current rows.
        must: Whether to raise an error if Redis does not follow.
        seen: The values of the features' columns (`Sees`), if a single statement wrote the Change.
        decided: The decided Changes, if `changes` only have the current rows. Features enqueue jobs for these Changes.
        involved: The features that are involved in `changes`, if `write` has returned them.
        skip_locked: Whether to leave downstream schedules to reconcile if another process has locked them.
    """
    if involved is None:
        involved = parts.features.involved_in(changes)
    failure = follow(parts, changes, involved, decided=decided)
    announce(parts, changes, involved, seen=seen, skip_locked=skip_locked)
    if failure is not None and must:
        remedy = advice_for(failure, "Start it.")
        raise RedisUnavailableError(f"{told(failure)}. {remedy} Repeat nothing: reconcile adds the links.") from failure


def follow(
    parts: Parts, changes: Sequence[Change], involved: Sequence[Feature], *, decided: Sequence[Change] | None = None
) -> RedisError | None:
    """Make Redis follow committed Changes: the first half of `publish`. Returns the error if Redis is away."""
    failure: RedisError | None = None
    try:
        parts.transport.follow(changes, now=parts.now())
        for feature in involved:
            feature.enqueue(changes if decided is None else decided)
    except WrongDatabaseError as error:
        _log.error("no links and jobs are put into Redis: %s", error, extra={"action": "foreign_server"})
    except RedisError as error:
        _log.warning("links and jobs are not in Redis yet: %s", error, extra={"action": "follow_failed"})
        if is_transient(error):  # after any other error only reconcile tries again
            _keep_out_of_sync(parts, changes, error)
            failure = error
    return failure


def announce(
    parts: Parts,
    changes: Sequence[Change],
    involved: Sequence[Feature],
    *,
    seen: Seen = NOTHING_SEEN,
    skip_locked: bool = False,
) -> None:
    """Call the features' `follow`, write logs for operators, and call subscribers: the second half of `publish`.

    Logs ended runs, schedules with more than two waiting runs (Open Job Spec asks for this), and schedules that die.
    """
    for feature in involved:
        if feature.follows_first:
            _let_follow(feature, changes, seen, skip_locked)
    for change in changes:
        schedule, events = change.after, {event.type: event for event in change.events}
        if BUFFERED in events and schedule.buffer_depth > MANY_WAITING:
            named = schedule.buffer_depth, schedule.namespace, schedule.schedule_id
            _log.warning("%d runs of %s/%s wait for the one ahead of them", *named, extra={"action": "buffer_growing"})
        log_ends(change)
        if DIED in events:
            error = error_line(events[DIED].payload.get("error"))
            text = "%s/%s is dead and does not fire until it is restarted: %s"
            _log.error(text, schedule.namespace, schedule.schedule_id, error, extra={"action": "schedule_died"})
        for subscriber, event in product(parts.subscribers, change.events):
            try:
                call_in_this_process(subscriber, change, event)
            except Exception:  # noqa: BLE001 - a subscriber that raises harms nothing
                _log.exception("a subscriber failed on %s", event.type, extra={"action": "subscriber_failed"})
    for feature in involved:
        if not feature.follows_first:
            _let_follow(feature, changes, seen, skip_locked)


def _let_follow(feature: Feature, changes: Sequence[Change], seen: Seen, skip_locked: bool) -> None:
    try:
        feature.follow(changes, seen=seen, skip_locked=skip_locked)
    except Exception:  # noqa: BLE001 - the commit stays, and a pass repeats this call
        _log.exception("%s failed after a commit", type(feature).__name__, extra={"action": "feature_failed"})


def _keep_out_of_sync(parts: Parts, changes: Sequence[Change], error: RedisError) -> None:
    """Remember the schedules that Redis must follow when it is back. If Redis is back already, make it follow now.

    In a process without breakers, reconcile finds the schedules instead.
    """
    if not parts.breakers:
        return
    if len(parts.out_of_sync) < _MOST_OUT_OF_SYNC:
        parts.out_of_sync.update(change.after.uid for change in changes)
    if isinstance(error, RedisAwayError) and not parts.breakers.is_any_open:
        parts.breakers.on_back()  # Redis came back between the call and this line


class Decided(NamedTuple, Generic[R]):
    """A decision about schedules."""

    changes: Sequence[Change]
    """The Changes to write, and to publish after the commit."""
    result: R
    """The value that the operation returns to its caller."""
    also: Callable[[Connection], object] | None = None
    """Writes other rows of the transaction, before the Changes."""
    seen: Seen = NOTHING_SEEN
    """The values of the features' columns (`Sees`), if a single statement wrote the decision; else empty."""

    def is_written(self, row: Schedule | None) -> bool:
        """Return whether this decision has written a row, and no operation or fire has written the row since."""
        if row is None:
            return False
        written = [one.after for one in self.changes if one.after is not one.before]
        if row.operation is None:  # a repair draws no uid
            return row in written
        return any((one.uid, one.operation) == (row.uid, row.operation) for one in written)


Decide: TypeAlias = Callable[[Connection, Decided[R] | None], Decided[R]]
"""Locks, reads and decides. A repeated call gets the earlier decision. If that decision was written, the call returns
the same object."""
Statement: TypeAlias = Callable[[Connection, Sees], Seen | None]
"""Writes one Change in a single statement, if the rows have not changed since. Returns the values of the columns that
features asked for, or None if nothing was written."""


class Attempts(Generic[R]):
    """One decision and its `write`, which `Database.transact` may try several times."""

    def __init__(self, parts: Parts, decide: Decide[R]) -> None:
        self._parts = parts
        self._decide = decide
        self.tried: Decided[R] | None = None
        """An earlier decision, of this or another process, that may have been committed although no answer came."""

    def under_lock(self, connection: Connection) -> Decided[R]:
        """Decide under locks and write, unless an earlier try was committed."""
        decided = self._decide(connection, self.tried)
        if decided is self.tried:
            return decided
        self.tried = decided
        if decided.also is not None:
            decided.also(connection)
        # All processes use one order, so that two processes that create the same schedules never deadlock.
        write(self._parts, connection, sorted(decided.changes, key=_SCHEDULE_ID))
        return decided

    def alone(self, connection: Connection, decided: Decided[R], statement: Statement) -> Decided[R] | None:
        """Write a decision in one statement without a lock; None if nothing was written or one statement is not enough.

        If an earlier try may have been committed, this writes nothing and leaves the check to `under_lock`.
        """
        involved = self._parts.features.involved_in(decided.changes)
        if self.tried is not None or any(one.writes_more(change) for one in involved for change in decided.changes):
            return None
        self.tried = decided
        looks = [one.sees(change) for one in involved for change in decided.changes]
        given = {name: value for look in looks for name, value in look.given.items()}
        seen = statement(connection, Sees(tuple(column for look in looks for column in look.columns), given))
        if seen is None:
            self.tried = None
            return None
        return decided._replace(seen=seen)
