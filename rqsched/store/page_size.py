"""Pages bounded in characters as well as in rows: what one request may hold in memory, whatever is stored."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

T = TypeVar("T", bound=tuple[Any, ...])
PAGE_CHARACTERS = 2_000_000
"""The most stored text of one page over HTTP. A larger row makes a page of its own."""


def cut_to_size(connection: Connection, statement: sa.Select[T], most: int | None) -> tuple[sa.Select[T], int | None]:
    """Cut a statement to the rows whose texts fit into so many characters, the first one in any case.

    Asks the database for lengths only; also returns to how many rows it was cut, None when all fit.
    """
    if most is None:
        return statement, None
    texts = tuple(column for column in statement.selected_columns if isinstance(column.type, sa.Text))
    measure = _size(texts, connection.dialect.name == "sqlite")
    sizes = connection.execute(statement.with_only_columns(measure)).scalars()
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if number and total > most:
            return statement.limit(number), number
    return statement, None


@lru_cache(maxsize=64)
def _size(texts: tuple[sa.ColumnElement[Any], ...], is_sqlite: bool) -> sa.ColumnElement[int]:
    """Return how long some texts are together; PostgreSQL knows without reading those it keeps elsewhere."""
    length = sa.func.length if is_sqlite else sa.func.octet_length
    found: sa.ColumnElement[int] = sa.literal(0)
    for text in texts:
        found = found + sa.func.coalesce(length(text), 0)
    return found
