"""The workflows that processes registered: so that a process which does not import them knows their routing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.dialect import dialect_of
from rqsched.store.tables import IS_LIVE, schedules, workflows


def record(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record the names and defaults a process registered; the newest registration wins."""
    for row in rows:
        statement = dialect_of(connection).insert(workflows).values(**row)
        changes = {name: value for name, value in row.items() if name != "name"}
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=changes))


def find(connection: Connection, name: str) -> Mapping[str, Any] | None:
    """Return a registered workflow by the columns of its row; None when no process registered the name."""
    row = connection.execute(sa.select(workflows).where(workflows.c.name == name)).mappings().first()
    return None if row is None else dict(row)


def read_all(connection: Connection) -> dict[str, Mapping[str, Any]]:
    """Return every registered workflow, by name."""
    return {row["name"]: dict(row) for row in connection.execute(sa.select(workflows)).mappings()}


def names_in_use(connection: Connection, namespace: str) -> frozenset[str]:
    """Return the workflows that schedules of a namespace name, deleted ones left out; registered or not."""
    statement = sa.select(schedules.c.workflow).distinct().where(schedules.c.namespace == namespace, IS_LIVE)
    return frozenset(connection.execute(statement).scalars())
