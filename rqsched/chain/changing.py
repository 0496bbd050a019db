"""Changing a schedule: the one way of an operation. What it locks, reads and decides is its own; the rest is here.

1. The operation locks and reads, and decides. What an earlier attempt wrote, its answer lost, is recognised by the row.
2. The quota is checked, and what was decided is written: in a transaction of ours, in a single statement where that is
   enough, or as a part of the caller's transaction.
3. After the commit Redis follows, and subscribers are told.

An operation draws a uid before its first attempt, and the row keeps the uid of the operation that wrote it last. A
repair draws none: its row is as it wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from rqsched.chain.after_commit import AfterCommit
from rqsched.chain.following import follow_ends
from rqsched.chain.limits import changes_group, require_groups
from rqsched.chain.quotas import require_room_for
from rqsched.chain.runtime import Runtime
from rqsched.core.model import Change, Schedule
from rqsched.store import changes
from rqsched.store.caller_transaction import CallerTransaction, perform
from rqsched.store.database import Connection, ConstraintError

R = TypeVar("R")


class Decided(NamedTuple, Generic[R]):
    """What an operation has decided."""

    changes: Sequence[Change]
    """What is written, and published after the commit."""
    result: R
    """What the operation returns."""
    also: Callable[[Connection], object] | None = None
    """Writes what else belongs to the transaction, before the Changes."""

    def is_written(self, row: Schedule | None) -> bool:
        """Return whether a row is as this wrote it; no longer once another operation or a fire has written it."""
        if row is None:
            return False
        written = [one.after for one in self.changes if one.after is not one.before]
        if row.operation is None:  # a repair's, which draws no uid
            return row in written
        return any((one.uid, one.operation) == (row.uid, row.operation) for one in written)


Decide: TypeAlias = Callable[[Connection, Decided[R] | None], Decided[R]]
"""Locks, reads and decides. Gets what was decided before when it is called again; returns that very object when it
was written."""
DecideAlone: TypeAlias = Callable[[Connection], tuple[Decided[R], str] | None]
"""Decides one Change from what it reads without a lock; returns that with the version of the row, or None where a lock
is needed."""


def change(
    runtime: Runtime,
    decide: Decide[R],
    *,
    alone: DecideAlone[R] | None = None,
    within: CallerTransaction | None = None,
    creates: int = 0,
) -> R:
    """Decide, write and publish: at once in a transaction of ours, else after the caller's commit.

    In the caller's transaction it is done once or not at all; see `perform` for what is raised.
    """
    if within is None:
        decided = commit(runtime, decide, alone=alone, creates=creates)
        runtime.publish(decided.changes)
        for one in decided.changes:
            if one.after.followed_at is not None or one.owed_again is not None:
                follow_ends(runtime, [one])
        return decided.result
    with within.connection() as connection:
        attempts = _Attempts(runtime, decide)
        decided = perform(connection, runtime.ownership.known_database_id(), attempts.under_lock)
        within.when_over(connection, runtime, partial(AfterCommit, runtime)).add(decided.changes)
    return decided.result


def commit(runtime: Runtime, decide: Decide[R], *, alone: DecideAlone[R] | None = None, creates: int = 0) -> Decided[R]:
    """Decide and write in a transaction of ours, and publish nothing.

    It is repeated while failures may pass, and for each of the `creates` schedules that another process may create
    first: that one is found on the next try. On PostgreSQL the `alone` decision is tried before, without a transaction.
    """
    attempts = _Attempts(runtime, decide, alone)
    if alone is not None and runtime.database.takes_single_statements:
        decided = runtime.database.transact_alone(attempts.alone)
        if decided is not None:
            return decided
    for _ in range(creates):
        with suppress(ConstraintError):
            return runtime.database.transact(attempts.under_lock)
    return runtime.database.transact(attempts.under_lock)


def read_in(within: CallerTransaction | None, runtime: Runtime, work: Callable[[Connection], R]) -> R:
    """Read on a snapshot of our own, or in the caller's transaction, which sees what it wrote itself."""
    if within is None:
        return runtime.database.read(work)
    with within.connection() as connection:
        return perform(connection, runtime.ownership.known_database_id(), work, is_writing=False)


class _Attempts(Generic[R]):
    """One operation, which may be tried several times."""

    def __init__(self, runtime: Runtime, decide: Decide[R], alone: DecideAlone[R] | None = None) -> None:
        self._runtime = runtime
        self._decide = decide
        self._decide_alone = alone
        self._tried: Decided[R] | None = None
        """What was decided before and may have been written, its answer lost."""

    def under_lock(self, connection: Connection) -> Decided[R]:
        """Decide under locks and write, unless an earlier attempt was written."""
        decided = self._decide(connection, self._tried)
        if decided is self._tried:
            return decided
        self._tried = decided
        require_room_for(self._runtime, connection, decided.changes)
        require_groups(connection, decided.changes, self._runtime.now())
        if decided.also is not None:
            decided.also(connection)
        # In one order for all, so that two who create the same set wait for each other one way only.
        ordered = sorted(decided.changes, key=lambda change: change.after.schedule_id)
        self._runtime.notifier.write(connection, ordered)
        return decided

    def alone(self, connection: Connection) -> Decided[R] | None:
        """Write in a statement without a lock before; None where that did not happen, or its answer was lost."""
        found = self._decide_alone(connection) if self._decide_alone is not None and self._tried is None else None
        if found is None:
            return None
        decided, version = found
        (change,) = decided.changes
        if self._runtime.notifier.owed([change]) or changes_group(change):
            return None
        self._tried = decided
        if not changes.write_one(connection, change, version=version):
            self._tried = None
        return self._tried
