"""What namespaces hold, for their quotas: counted under a lock, so that no two writers see room that only one has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import DEFINITION, Definition
from rqsched.core.quota import COUNTED
from rqsched.store.bulk import is_sqlite
from rqsched.store.changes import given_names, is_named
from rqsched.store.metadata import set_value
from rqsched.store.tables import IS_LIVE, schedules


def lock(connection: Connection, namespace: str) -> None:
    """Hold the quota of a namespace until the transaction ends.

    It writes a row, so that a transaction whose snapshot is older than another's write fails instead of counting
    without it. On SQLite a transaction that writes is alone anyway.
    """
    if not is_sqlite(connection):
        digest = hashlib.blake2b(namespace.encode(), digest_size=24).hexdigest()
        set_value(connection, f"quota:{digest}", "")


def count(connection: Connection, namespace: str, *, with_bytes: bool = True) -> tuple[int, int]:
    """Count the schedules of a namespace that are not deleted, and what they declare in bytes (0 when not asked)."""
    size = sa.func.coalesce(sa.func.sum(_declared(connection)), 0) if with_bytes else sa.literal_column("0")
    statement = sa.select(sa.func.count(), size).select_from(schedules)
    row = connection.execute(statement.where(schedules.c.namespace == namespace, IS_LIVE)).one()
    return int(row[0]), int(row[1])


def count_all(connection: Connection) -> list[tuple[str, int, int]]:
    """Count what each namespace holds: (namespace, schedules, bytes), in the order of their names."""
    size = sa.func.sum(_declared(connection))
    statement = sa.select(schedules.c.namespace, sa.func.count(), size).where(IS_LIVE)
    grouped = statement.group_by(schedules.c.namespace).order_by(schedules.c.namespace)
    return [(row[0], int(row[1]), int(row[2])) for row in connection.execute(grouped)]


def definitions(connection: Connection, namespace: str, schedule_ids: Sequence[str]) -> dict[str, Definition]:
    """Read what the not-deleted schedules of these ids declare, by id, without locking them."""
    columns = [schedules.c[name] for name in DEFINITION]
    named = sa.select(schedules.c.schedule_id, *columns).where(is_named(on_sqlite=is_sqlite(connection)), IS_LIVE)
    given = given_names(connection, namespace, schedule_ids)
    return {row[0]: Definition(*row[1:]) for row in connection.execute(named, given)}


def _declared(connection: Connection) -> sa.ColumnElement[int]:
    """The bytes that one row declares; PostgreSQL knows them without reading what lies outside of the row."""

    def size(column: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
        if is_sqlite(connection):
            return sa.func.coalesce(sa.func.length(sa.cast(column, sa.LargeBinary)), 0)
        return sa.func.coalesce(sa.func.octet_length(column), 0)

    first, *rest = (size(schedules.c[name]) for name in COUNTED)
    for one in rest:
        first = first + one
    return first
