"""Single facts about the database, and the workflows that processes registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.bulk import insert
from rqsched.store.tables import facts, workflows


def fact(connection: Connection, name: str) -> str | None:
    """Read a fact about the database."""
    return connection.execute(sa.select(facts.c.value).where(facts.c.name == name)).scalar_one_or_none()


def claim_fact(connection: Connection, name: str, value: str) -> str:
    """Set a fact unless it is set; returns what holds."""
    connection.execute(insert(connection, facts).values(name=name, value=value).on_conflict_do_nothing())
    return fact(connection, name) or value


def set_fact(connection: Connection, name: str, value: str) -> None:
    """Set a fact."""
    statement = insert(connection, facts).values(name=name, value=value)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def register_workflows(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record the names and defaults a process registered; the newest registration wins."""
    for row in rows:
        statement = insert(connection, workflows).values(**row)
        changes = {name: value for name, value in row.items() if name != "name"}
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=changes))


def find_workflow(connection: Connection, name: str) -> sa.Row[Any] | None:
    """Read a registered workflow's row."""
    return connection.execute(sa.select(workflows).where(workflows.c.name == name)).first()


def all_workflows(connection: Connection) -> dict[str, Mapping[str, Any]]:
    """Read every registered workflow, by name."""
    return {row["name"]: dict(row) for row in connection.execute(sa.select(workflows)).mappings()}
