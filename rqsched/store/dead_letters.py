"""Dead letters in SQL: failed runs that are kept where they can be listed, the newest first.

Every function works inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import Run, Schedule
from rqsched.core.page import Page
from rqsched.store.dialect import dialect_of
from rqsched.store.pages import read_cursor, write_cursor
from rqsched.store.rows import RUN_COLUMNS, SCHEDULE_COLUMNS, to_run, to_schedule
from rqsched.store.tables import IS_DEAD_LETTER, runs, schedules


class Wanted(NamedTuple):
    """Which dead letters a list shows."""

    namespace: str
    """The namespace of their schedules."""
    queue: str | None
    """The queue they were on; None shows all."""
    default_queue: str
    """The queue of runs that name none."""


def page(
    connection: Connection, wanted: Wanted, *, limit: int, cursor: str | None, offset: int = 0
) -> Page[tuple[Run, Schedule]]:
    """Read a page of dead letters with their schedules."""
    statement = _SELECT.where(*_conditions(wanted))
    if cursor is not None:
        instant, uid = read_cursor(cursor)
        bound = sa.tuple_(sa.literal(instant, runs.c.dead_letter_at.type), sa.literal(uid, runs.c.uid.type))
        statement = statement.where(sa.tuple_(runs.c.dead_letter_at, runs.c.uid) < bound)
    statement = statement.order_by(runs.c.dead_letter_at.desc(), runs.c.uid.desc()).limit(limit + 1).offset(offset)
    rows = connection.execute(statement).all()
    kept = rows[:limit]
    following = write_cursor(kept[-1].dead_letter_at, kept[-1][0]) if len(rows) > limit else None
    return Page([_read(row) for row in kept], following)


def count(connection: Connection, wanted: Wanted) -> int:
    """Count the dead letters that all pages show together."""
    statement = sa.select(sa.func.count()).select_from(_JOINED).where(*_conditions(wanted))
    return connection.execute(statement).scalar_one()


def find(connection: Connection, uid: str, *, namespace: str) -> tuple[Run, Schedule] | None:
    """Read one dead letter with its schedule; None when there is none in the namespace."""
    statement = _SELECT.where(IS_DEAD_LETTER, runs.c.uid == uid, schedules.c.namespace == namespace)
    row = connection.execute(statement).first()
    return None if row is None else _read(row)


def forget(connection: Connection, uid: str, *, namespace: str) -> bool:
    """Take a run off the dead letters; returns whether it was one of the namespace."""
    is_parent = schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
    statement = sa.update(runs).where(
        runs.c.uid == uid, IS_DEAD_LETTER, sa.select(schedules.c.uid).where(*is_parent).exists()
    )
    return connection.execute(statement.values(dead_letter_at=None)).rowcount == 1


def take_off(connection: Connection, uids: Sequence[str]) -> None:
    """Take runs off the dead letters that are run again; their schedule is locked."""
    retried = dialect_of(connection).one_of(runs.c.uid, uids)
    connection.execute(sa.update(runs).where(retried, IS_DEAD_LETTER).values(dead_letter_at=None))


_JOINED = runs.join(schedules, schedules.c.uid == runs.c.schedule_uid)
_SELECT = sa.select(*RUN_COLUMNS, *SCHEDULE_COLUMNS, runs.c.dead_letter_at).select_from(_JOINED)


def _conditions(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    found = [IS_DEAD_LETTER, schedules.c.namespace == wanted.namespace]
    if wanted.queue is not None:
        found.append(sa.func.coalesce(runs.c.queue, wanted.default_queue) == wanted.queue)
    return found


def _read(row: Sequence[Any]) -> tuple[Run, Schedule]:
    split = len(RUN_COLUMNS)
    return to_run(row[:split]), to_schedule(row[split : split + len(SCHEDULE_COLUMNS)])
