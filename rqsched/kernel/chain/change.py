"""Changing a schedule: the steps that all operations share. The operation locks, reads and decides; the rest is here.

1. The operation locks, reads and decides. If the answer to an earlier try was lost, the row shows whether that try was
   committed.
2. Features may refuse the decision. Then the decision is written: in a transaction of ours, in a single statement if
   that is enough, or in the caller's transaction.
3. After the commit the Changes are published (`kernel/chain/commit.py`).

An operation draws a uid before its first try, and the row keeps the uid of the operation that wrote it last. A repair
draws no uid: the values of the row show whether an earlier try of the repair was committed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from rqsched.kernel.chain.after_commit import AfterCommit
from rqsched.kernel.chain.commit import Attempts, Decide, Decided, publish
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.store import changes
from rqsched.kernel.store.caller_transaction import CallerTransaction, perform
from rqsched.kernel.store.changes import Seen, Sees
from rqsched.kernel.store.database import Connection, ConstraintError

R = TypeVar("R")


DecideAlone: TypeAlias = Callable[[Connection], tuple[Decided[R], str] | None]
"""Decides one Change from a read without a lock. Returns the decision and the version of the row, or None if a lock is
needed."""


def change(
    runtime: Runtime,
    decide: Decide[R],
    *,
    alone: DecideAlone[R] | None = None,
    within: CallerTransaction | None = None,
    creates: int = 0,
) -> R:
    """Decide, write and publish. In the caller's transaction, publish only after the caller's commit.

    In the caller's transaction everything is written or nothing. `caller_transaction.perform` lists the errors.
    """
    if within is None:
        decided = commit(runtime, decide, alone=alone, creates=creates)
        publish(runtime, decided.changes)
        return decided.result
    with within.connection() as connection:
        attempts = Attempts(runtime, partial(_decide_allowed, runtime, decide))
        decided = perform(connection, runtime.ownership.known_database_id(), attempts.under_lock, creates=creates)
        within.when_over(connection, runtime, partial(AfterCommit, runtime)).add(decided.changes)
    return decided.result


def commit(runtime: Runtime, decide: Decide[R], *, alone: DecideAlone[R] | None = None, creates: int = 0) -> Decided[R]:
    """Decide and write in a transaction of ours, and publish nothing.

    This is repeated after transient failures. `creates` is the number of schedules that the decision may create. If
    another process creates one of them first, this is also repeated, and the next try finds that schedule. On
    PostgreSQL `alone` is tried first, without BEGIN and COMMIT.
    """
    attempts = Attempts(runtime, partial(_decide_allowed, runtime, decide))
    by_itself = None if alone is None else partial(_alone, attempts, alone)
    for _ in range(creates):
        with suppress(ConstraintError):
            return runtime.database.transact(attempts.under_lock, alone=by_itself)
    return runtime.database.transact(attempts.under_lock, alone=by_itself)


def _decide_allowed(
    runtime: Runtime, decide: Decide[R], connection: Connection, tried: Decided[R] | None
) -> Decided[R]:
    """Decide, and let features refuse the decision, such as one that exceeds the namespace's quota."""
    decided = decide(connection, tried)
    if decided is not tried:
        for feature in runtime.features.involved_in(decided.changes):
            feature.require(connection, decided.changes)
    return decided


def _alone(attempts: Attempts[R], decide: DecideAlone[R], connection: Connection) -> Decided[R] | None:
    """Decide and write without a lock; None if nothing was written, or an earlier answer was lost."""
    if attempts.tried is not None or (found := decide(connection)) is None:
        return None
    decided, version = found
    (one,) = decided.changes

    def write_one(connection: Connection, _: Sees) -> Seen | None:
        return {} if changes.write_one(connection, one, version=version) else None

    return attempts.alone(connection, decided, write_one)


def read_in(within: CallerTransaction | None, runtime: Runtime, work: Callable[[Connection], R]) -> R:
    """Read on a snapshot of our own, or in the caller's transaction, where its uncommitted rows are visible."""
    if within is None:
        return runtime.database.read(work)
    with within.connection() as connection:
        return perform(connection, runtime.ownership.known_database_id(), work, is_writing=False)
