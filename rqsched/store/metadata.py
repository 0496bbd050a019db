"""Named values about the database as a whole: its id, the tzdata version next times were computed with."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.dialect import dialect_of
from rqsched.store.tables import database_metadata

DATABASE_ID = "database_id"
"""The name of the value that tells this database from every other one."""


def find_value(connection: Connection, name: str) -> str | None:
    """Return the value of a name; None when it was never set."""
    statement = sa.select(database_metadata.c.value).where(database_metadata.c.name == name)
    return connection.execute(statement).scalar_one_or_none()


def claim_value(connection: Connection, name: str, value: str) -> str:
    """Set a value unless the name has one; returns the value it has then."""
    statement = dialect_of(connection).insert(database_metadata).values(name=name, value=value)
    connection.execute(statement.on_conflict_do_nothing())
    return find_value(connection, name) or value


def set_value(connection: Connection, name: str, value: str) -> None:
    """Set a value, whatever it was before."""
    statement = dialect_of(connection).insert(database_metadata).values(name=name, value=value)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))
