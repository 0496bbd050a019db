"""The rows of backfills: their requests and their progress. Every function works in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.ids import is_uid
from rqsched.kernel.decide.results import Page
from rqsched.kernel.queries.pages import bind_cursor, malformed_cursor, page_by_uid, unbind_cursor
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import backfills, incarnations, is_outside, schedules


@dataclass(frozen=True, slots=True)
class Backfill:
    """One backfill as stored in its row."""

    uid: str
    """The uid. The caller generates it, so that a repeated request finds the same row."""
    schedule_uid: str
    """The uid of the schedule that it fires."""
    start_at: datetime
    """The start of the range, inclusive."""
    end_at: datetime
    """The end of the range, exclusive, and never after the time of the request."""
    overlap: str
    """The overlap policy of the backfill, or "" for the schedule's policy."""
    bound: int
    """The maximum number of occurrences that the range may have."""
    cursor: datetime
    """The start of the next chunk."""
    status: str
    """`running`, `done` or `stopped`."""
    created_at: datetime
    """When it was requested."""
    updated_at: datetime
    """When the last chunk was committed; reconcile continues a running backfill without recent progress."""
    attempted: int = 0
    """The number of occurrences processed so far."""
    started: int = 0
    """The number of runs that were started."""
    buffered: int = 0
    """The number of runs that were created to wait for another run."""
    skipped: int = 0
    """The number of occurrences that started no run."""
    already_run: int = 0
    """The number of occurrences that had a run before."""
    reason: str | None = None
    """Why the backfill stopped; None if it did not."""
    context: str | None = None
    """The CommandContext as JSON; None if none was given."""
    rerun: str | None = None
    """A `Rerun`, which selects occurrences that already have a run and are run again; None selects none."""

    @property
    def is_done(self) -> bool:
        """Whether the backfill has ended."""
        return self.status != "running"


_COLUMNS = [backfills.c[name] for name in Backfill.__dataclass_fields__]


def add(connection: Connection, backfill: Backfill) -> None:
    """Insert a backfill."""
    connection.execute(sa.insert(backfills).values(_values(backfill)))


def save(connection: Connection, backfill: Backfill) -> None:
    """Write the progress of a backfill whose schedule is locked."""
    connection.execute(sa.update(backfills).where(backfills.c.uid == backfill.uid).values(_values(backfill)))


def find(connection: Connection, uid: str) -> Backfill | None:
    """Read a backfill without locking it; None when there is none."""
    row = connection.execute(sa.select(*_COLUMNS).where(backfills.c.uid == uid)).first()
    return None if row is None else Backfill(*row)


def page(
    connection: Connection,
    namespace: str,
    *,
    schedule_id: str | None,
    status: str | None,
    limit: int,
    cursor: str | None,
) -> Page[Backfill]:
    """Read a page of a namespace's backfills, newest first.

    Their uids give the order, because uids begin with the time.
    """
    statement, of = sa.select(*_COLUMNS), ("backfills", namespace, schedule_id)
    if schedule_id is not None:
        # If only one schedule ever had this id (deleted schedules count), an index has its backfills in order.
        of_id, of_schedule = incarnations(namespace, schedule_id), backfills.c.schedule_uid
        uids = connection.execute(of_id.limit(2)).scalars().all()
        statement = statement.where(of_schedule == uids[0] if len(uids) == 1 else of_schedule.in_(of_id))
    else:
        owner = dialect_of(connection).unindexed(schedules.c.namespace)
        statement = statement.join(schedules, schedules.c.uid == backfills.c.schedule_uid).where(owner == namespace)
    if status is not None:
        statement = statement.where(backfills.c.status == status)
    if (before := unbind_cursor(cursor, *of)) is not None:
        if not is_uid(before):
            raise malformed_cursor()
        statement = statement.where(backfills.c.uid < before)
    found = [Backfill(*row) for row in connection.execute(statement.order_by(backfills.c.uid.desc()).limit(limit + 1))]
    return Page(found[:limit], bind_cursor(found[limit - 1].uid, *of) if len(found) > limit else None)


def interrupted(
    connection: Connection, before: datetime, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[str], str | None]:
    """Read a page of running backfills without progress since `before`, and the cursor of the next page.

    Backfills of `frozen` namespaces are left out.
    """
    is_meant = backfills.c.updated_at <= before, *is_outside(frozen, backfills.c.schedule_uid)
    statement = sa.select(backfills.c.uid).where(backfills.c.status == "running", *is_meant)
    rows, next_after = page_by_uid(connection, statement, backfills.c.uid, after, limit)
    return [row.uid for row in rows], next_after


def _values(backfill: Backfill) -> dict[str, Any]:
    return {name: getattr(backfill, name) for name in Backfill.__dataclass_fields__}
