"""The two sides of a commit: `write` carries Changes into SQL before it, and `publish` to everybody else after it.

Nothing else writes a Change or lets Redis follow one. The locks, the reads and the decision come before, and belong to
the caller. `Attempts` joins a decision with `write`, and detects that an attempt was committed when its answer is lost.
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
"""When more runs than this wait for the one ahead of them, that is logged as a warning."""

Subscriber = Callable[[Change, Event], None]
"""Called after commit with each audit event and the Change that recorded it."""

R = TypeVar("R")

NOTHING_SEEN: Seen = {}

_SCHEDULE_ID = attrgetter("after.schedule_id")


class Parts(Protocol):
    """The parts of a process's runtime that both sides of a commit use."""

    now: Callable[[], datetime]
    """Returns the database's time."""
    transport: Transport
    """Redis, which follows."""
    breakers: Breakers
    """The breakers of each Redis; none in a worker."""
    out_of_sync: set[str]
    """The uids of schedules that Redis has not followed because it was away; not all of them when they are many."""
    subscribers: list[Subscriber]
    """Called with each event after its commit."""
    features: Features
    """The features that take part in a commit."""


def write(parts: Parts, connection: Connection, changes: Sequence[Change]) -> None:
    """Write Changes of locked (or new) schedules in the caller's transaction, with all that they owe to others."""
    involved = parts.features.involved_in(changes)
    for feature in involved:
        feature.before_write(connection, changes)
    store.write(connection, changes)
    for feature in involved:
        feature.after_write(connection, changes)


def publish(
    parts: Parts,
    changes: Sequence[Change],
    *,
    must: bool = False,
    seen: Seen = NOTHING_SEEN,
    decided: Sequence[Change] | None = None,
    skip_locked: bool = False,
) -> None:
    """Make Redis follow committed Changes and announce them. Repeatable, and nothing is raised but for `must`.

    If Redis is down, this is logged, and the links follow when reconcile finds Redis back. With `must`,
    RedisUnavailableError is raised then, so that the link that asked for it is delivered again.

    Args:
        parts: The process's runtime.
        changes: The committed Changes, or Changes that restate rows as they are now.
        must: Whether Redis must follow.
        seen: What the single statement that wrote a Change saw for features.
        decided: The decided Changes, where `changes` only restate their rows: features wrote more for the decided ones.
        skip_locked: Whether a downstream schedule that another process holds is left to a pass.
    """
    failure = follow(parts, changes, decided=decided)
    announce(parts, changes, seen=seen, skip_locked=skip_locked)
    if failure is not None and must:
        remedy = advice_for(failure, "Start it.")
        raise RedisUnavailableError(f"{told(failure)}. {remedy} Repeat nothing: links follow.") from failure


def follow(parts: Parts, changes: Sequence[Change], *, decided: Sequence[Change] | None = None) -> RedisError | None:
    """Make Redis follow committed Changes: the first half of `publish`. Returns the error of a Redis that is away."""
    failure: RedisError | None = None
    try:
        parts.transport.follow(changes, now=parts.now())
        for feature in parts.features.involved_in(changes):
            feature.enqueue(changes if decided is None else decided)
    except WrongDatabaseError as error:
        _log.error("links and jobs do not follow: %s", error, extra={"action": "foreign_server"})
    except RedisError as error:
        _log.warning("links and jobs follow later: %s", error, extra={"action": "follow_failed"})
        if is_transient(error):  # any other is tried again by reconcile only
            _keep_out_of_sync(parts, changes, error)
            failure = error
    return failure


def announce(parts: Parts, changes: Sequence[Change], *, seen: Seen = NOTHING_SEEN, skip_locked: bool = False) -> None:
    """Let features follow, log what operators must hear of, call subscribers: the second half of `publish`.

    Operators hear of runs that end, of runs that pile up (Open Job Spec: more than two), and of a death.
    """
    involved = parts.features.involved_in(changes)
    _let_follow([one for one in involved if one.follows_first], changes, seen, skip_locked)
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
            except Exception:  # noqa: BLE001 - one that raises harms nothing
                _log.exception("a subscriber failed on %s", event.type, extra={"action": "subscriber_failed"})
    _let_follow([one for one in involved if not one.follows_first], changes, seen, skip_locked)


def _let_follow(involved: Sequence[Feature], changes: Sequence[Change], seen: Seen, skip_locked: bool) -> None:
    for feature in involved:
        try:
            feature.follow(changes, seen=seen, skip_locked=skip_locked)
        except Exception:  # noqa: BLE001 - what was committed stays committed, and a pass repeats this
            _log.exception("%s did not follow", type(feature).__name__, extra={"action": "feature_failed"})


def _keep_out_of_sync(parts: Parts, changes: Sequence[Change], error: RedisError) -> None:
    """Remember schedules to follow when Redis is back; if it is back already, follow now.

    In a process without breakers, reconcile finds them instead.
    """
    if not parts.breakers:
        return
    if len(parts.out_of_sync) < _MOST_OUT_OF_SYNC:
        parts.out_of_sync.update(change.after.uid for change in changes)
    if isinstance(error, RedisAwayError) and not parts.breakers.is_any_open:
        parts.breakers.on_back()  # it came back between the call and this line


class Decided(NamedTuple, Generic[R]):
    """A decision about schedules."""

    changes: Sequence[Change]
    """The Changes to write, and to publish after the commit."""
    result: R
    """The value that the operation returns to its caller."""
    also: Callable[[Connection], object] | None = None
    """Writes what else belongs to the transaction, before the Changes."""
    seen: Seen = NOTHING_SEEN
    """What the single statement that wrote it saw for features; empty if it looked at nothing."""

    def is_written(self, row: Schedule | None) -> bool:
        """Return whether a row is as this decision wrote it; False once another operation or a fire has written it."""
        if row is None:
            return False
        written = [one.after for one in self.changes if one.after is not one.before]
        if row.operation is None:  # a repair's, which draws no uid
            return row in written
        return any((one.uid, one.operation) == (row.uid, row.operation) for one in written)


Decide: TypeAlias = Callable[[Connection, Decided[R] | None], Decided[R]]
"""Locks, reads and decides. A repeated call gets the earlier decision, and returns that very object if it was
written."""
Statement: TypeAlias = Callable[[Connection, Sees], Seen | None]
"""Writes one Change in a single statement, if it may still be written; returns the values of what it sees for features,
None if it wrote nothing."""


class Attempts(Generic[R]):
    """One decision and its `write`, which may be tried several times: for `Database.transact`."""

    def __init__(self, parts: Parts, decide: Decide[R]) -> None:
        self._parts = parts
        self._decide = decide
        self.tried: Decided[R] | None = None
        """The earlier decision, made here or by another process, that may have been written although no answer came."""

    def under_lock(self, connection: Connection) -> Decided[R]:
        """Decide under locks and write, unless an earlier attempt was written."""
        decided = self._decide(connection, self.tried)
        if decided is self.tried:
            return decided
        self.tried = decided
        if decided.also is not None:
            decided.also(connection)
        # In one order for all, so that two processes that create the same set never deadlock.
        write(self._parts, connection, sorted(decided.changes, key=_SCHEDULE_ID))
        return decided

    def alone(self, connection: Connection, decided: Decided[R], statement: Statement) -> Decided[R] | None:
        """Write a decision in one statement, without a lock; None if it takes more than one, or was not written.

        If an earlier attempt may have been written, nothing is written here: `under_lock` detects that attempt.
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
