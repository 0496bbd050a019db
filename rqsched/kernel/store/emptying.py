"""Empty or drop the tables in the database of an application's tests."""

from __future__ import annotations

from typing import Any, TypeAlias

from rqsched.errors import ConfigError
from rqsched.kernel.store.database import Connection
from rqsched.kernel.store.migrations import VERSION_TABLE
from rqsched.kernel.store.tables import database_metadata, metadata

Kept: TypeAlias = list[dict[str, Any]]
"""The named values of a database, such as its id."""


def values_of_empty(connection: Connection) -> Kept:
    """Return the named values of an empty database; raises ConfigError if a table of ours has any other rows."""
    for table in metadata.sorted_tables:
        if table is not database_metadata and connection.execute(table.select().limit(1)).first() is not None:
            raise ConfigError(
                f"{table.name} of the test's database holds rows, which a test would delete: give it a database that "
                "holds no schedules. If a test that was killed left them, drop the tables that begin with rqsched_."
            )
    return [dict(row) for row in connection.execute(database_metadata.select()).mappings()]


def empty(connection: Connection, kept: Kept) -> None:
    """Delete all rows of our tables except these named values."""
    for table in reversed(metadata.sorted_tables):
        connection.execute(table.delete())
    if kept:
        connection.execute(database_metadata.insert(), kept)


def drop(connection: Connection) -> None:
    """Drop all our tables with their rows."""
    metadata.drop_all(connection)
    connection.exec_driver_sql(f"DROP TABLE {VERSION_TABLE}")
