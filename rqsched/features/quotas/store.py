"""SQL for quotas: count the declarations of a namespace under a lock, so that two writers cannot use the same room."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.quotas.decide import COUNTED
from rqsched.kernel.decide.model import DEFINITION, Definition
from rqsched.kernel.store.changes import given_names, is_named
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.metadata import lock_of
from rqsched.kernel.store.tables import IS_LIVE, schedules


def lock_quota(connection: Connection, namespace: str) -> None:
    """Lock the quota of a namespace until the transaction ends."""
    lock_of(connection, "quota", namespace)


def count_declared(connection: Connection, namespace: str, *, with_bytes: bool = True) -> tuple[int, int]:
    """Count the not-deleted schedules of a namespace, and the bytes of their declarations (0 without `with_bytes`)."""
    size = sa.func.coalesce(sa.func.sum(_declared(connection)), 0) if with_bytes else sa.literal_column("0")
    statement = sa.select(sa.func.count(), size).select_from(schedules)
    row = connection.execute(statement.where(schedules.c.namespace == namespace, IS_LIVE)).one()
    return int(row[0]), int(row[1])


def count_all_declared(connection: Connection, *, with_bytes: bool = True) -> list[tuple[str, int, int]]:
    """Return (namespace, schedules, bytes) for each namespace, in the order of names (0 bytes without `with_bytes`)."""
    size = sa.func.sum(_declared(connection)) if with_bytes else sa.literal_column("0")
    statement = sa.select(schedules.c.namespace, sa.func.count(), size).where(IS_LIVE)
    grouped = statement.group_by(schedules.c.namespace).order_by(schedules.c.namespace)
    return [(row[0], int(row[1]), int(row[2])) for row in connection.execute(grouped)]


def definitions(connection: Connection, namespace: str, schedule_ids: Sequence[str]) -> dict[str, Definition]:
    """Read the definitions of the not-deleted schedules with these ids, by id, without a lock."""
    columns = [schedules.c[name] for name in DEFINITION]
    named = sa.select(schedules.c.schedule_id, *columns).where(is_named(dialect_of(connection)), IS_LIVE)
    given = given_names(connection, namespace, schedule_ids)
    return {row[0]: Definition(*row[1:]) for row in connection.execute(named, given)}


def _declared(connection: Connection) -> sa.ColumnElement[int]:
    """Return an SQL expression for the bytes of one schedule's declaration."""
    size = dialect_of(connection).byte_size
    found: sa.ColumnElement[int]
    found, *rest = (sa.func.coalesce(size(schedules.c[name]), 0) for name in COUNTED)
    for one in rest:
        found = found + one
    return found
