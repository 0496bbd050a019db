"""The workflows that processes registered. A process that does not import a workflow reads its routing here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.payload import dumps
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import IS_LIVE, schedules, workflows
from rqsched.workflows import ROUTING, Workflow


def row_of(workflow: Workflow, *, registered_at: datetime) -> dict[str, Any]:
    """Return the row of a workflow as this process registered it."""
    routing = {name: workflow.defaults.get(name) for name in ROUTING}
    options = {name: value for name, value in workflow.defaults.items() if name not in ROUTING}
    known = {"name": workflow.name, "path": workflow.path, "registered_at": registered_at, "options": dumps(options)}
    return known | routing


def those_that_differ(
    rows: Iterable[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the rows that differ from the `known` row of the same name. The time of registration does not count."""

    def said(row: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
        return None if row is None else tuple(row[name] for name in ("path", *ROUTING, "options"))

    return [row for row in rows if said(known.get(row["name"])) != said(row)]


def record(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record the workflows that a process registered; the newest registration wins."""
    for row in rows:
        statement = dialect_of(connection).insert(workflows).values(**row)
        changes = {name: value for name, value in row.items() if name != "name"}
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=changes))


def find(connection: Connection, name: str) -> Mapping[str, Any] | None:
    """Return the row of a registered workflow, by column; None if no process registered the name."""
    row = connection.execute(sa.select(workflows).where(workflows.c.name == name)).mappings().first()
    return None if row is None else dict(row)


def read_all(connection: Connection) -> dict[str, Mapping[str, Any]]:
    """Return every registered workflow, by name."""
    return {row["name"]: dict(row) for row in connection.execute(sa.select(workflows)).mappings()}


def names_in_use(connection: Connection, namespace: str) -> frozenset[str]:
    """Return the workflows that the namespace's schedules use, registered or not. Deleted schedules do not count."""
    statement = sa.select(schedules.c.workflow).distinct().where(schedules.c.namespace == namespace, IS_LIVE)
    return frozenset(connection.execute(statement).scalars())
