"""Many rows in one statement, as a batch of fires writes them.

PostgreSQL takes the rows of a table as one JSON document and does the work as a set; SQLite, in the same process,
takes them one by one through one prepared statement, which is as fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

Row = Mapping[str, Any]
"""Column names and values."""
DOCUMENT_CHARACTERS = 8 * 1024 * 1024
"""The size of one statement, about: payloads may be large, and a batch is held in memory several times."""


def is_sqlite(connection: Connection) -> bool:
    """Return whether the connection is to SQLite."""
    return connection.dialect.name == "sqlite"


def insert(connection: Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that supports ON CONFLICT, in the database's dialect."""
    return sqlite.insert(table) if is_sqlite(connection) else postgresql.insert(table)


def insert_rows(connection: Connection, table: sa.Table, rows: Sequence[Row], *, or_ignore: bool = False) -> None:
    """Insert rows of the same columns; `or_ignore` skips rows whose unique key exists."""
    if not rows:
        return
    if _is_set(connection, rows):
        for document in _documents(rows):
            connection.execute(_set_insert(table, tuple(rows[0]), or_ignore), {"rows": document})
    elif or_ignore:
        connection.execute(insert(connection, table).on_conflict_do_nothing(), rows)
    else:
        connection.execute(sa.insert(table), rows)


def update_rows(connection: Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Update rows of the same columns, each named by its `uid`; of two rows with one uid the later one wins."""
    if not rows:
        return
    if _is_set(connection, rows):
        latest = {row["uid"]: row for row in rows}
        for document in _documents(latest.values()):
            connection.execute(_set_update(table, tuple(rows[0])), {"rows": document})
    else:
        bound = [{f"b_{name}": value for name, value in row.items()} for row in rows]
        connection.execute(_each_update(table, tuple(rows[0])), bound)


def _is_set(connection: Connection, rows: Sequence[Row]) -> bool:
    return len(rows) > 1 and not is_sqlite(connection)


@lru_cache(maxsize=1024)
def _set_insert(table: sa.Table, names: tuple[str, ...], or_ignore: bool) -> sa.Insert:
    given = _recordset(table, names)
    statement = postgresql.insert(table).from_select(names, sa.select(*(given.c[name] for name in names)))
    return statement.on_conflict_do_nothing() if or_ignore else statement


@lru_cache(maxsize=1024)
def _set_update(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    given = _recordset(table, names)
    values = {name: given.c[name] for name in names if name != "uid"}
    return sa.update(table).where(table.c.uid == given.c.uid).values(values)


@lru_cache(maxsize=1024)
def _each_update(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    values = {name: sa.bindparam(f"b_{name}", type_=table.c[name].type) for name in names if name != "uid"}
    return sa.update(table).where(table.c.uid == sa.bindparam("b_uid")).values(values)


def _recordset(table: sa.Table, names: tuple[str, ...]) -> sa.TableValuedAlias:
    document = sa.cast(sa.bindparam("rows", type_=sa.Text), postgresql.JSON)
    columns = [sa.column(name, table.c[name].type) for name in names]
    return sa.func.json_to_recordset(document).table_valued(*columns, name="given").render_derived(with_types=True)


def _documents(rows: Iterable[Row]) -> Iterator[str]:
    """Yield rows as JSON arrays of at most about DOCUMENT_CHARACTERS; a longer row is an array of its own."""
    part: list[Row] = []
    size = 0
    for row in rows:
        length = sum(len(value) for value in row.values() if type(value) is str)
        if part and size + length > DOCUMENT_CHARACTERS:
            yield _ENCODER.encode(part)
            part, size = [], 0
        part.append(row)
        size += length
    if part:
        yield _ENCODER.encode(part)


def _plain(value: object) -> object:
    """Encode instants and spans, which JSON lacks, as `tables.Instant` and `tables.Span` do."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r} reached the store")
        return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    raise TypeError(f"{type(value).__name__} is not a valid value of a column")


_ENCODER = json.JSONEncoder(default=_plain, separators=(",", ":"), check_circular=False)
