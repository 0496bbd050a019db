"""Pages bounded in characters as well as in rows: what one request may hold in memory, whatever is stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.bulk import is_sqlite

T = TypeVar("T", bound=tuple[Any, ...])
PAGE_CHARACTERS = 2_000_000
"""The most stored text of one page over HTTP. A larger row makes a page of its own."""


def measuring(statement: sa.Select[T], on_sqlite: bool) -> sa.Select[Any]:
    """Return the statement that reads how large the rows of another one are."""
    texts = tuple(column for column in statement.selected_columns if isinstance(column.type, sa.Text))
    return statement.with_only_columns(_size(texts, on_sqlite))


def cut_to_size(
    connection: Connection,
    statement: sa.Select[T],
    most: int | None,
    sizes: sa.Select[Any] | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[sa.Select[T], int | None]:
    """Cut a statement to the rows whose texts fit into so many characters, the first one in any case.

    Asks the database for lengths only; also returns to how many rows it was cut, None when all fit. `sizes` is what
    `measuring` built of the statement before, and `given` what is bound in it.
    """
    if most is None:
        return statement, None
    sizes = measuring(statement, is_sqlite(connection)) if sizes is None else sizes
    total = 0
    for number, size in enumerate(connection.execute(sizes, given).scalars().all()):
        total += size
        if number and total > most:
            return statement.limit(number), number
    return statement, None


@lru_cache(maxsize=64)
def _size(texts: tuple[sa.ColumnElement[Any], ...], on_sqlite: bool) -> sa.ColumnElement[int]:
    """Return how long some texts are together; PostgreSQL knows without reading those it keeps elsewhere."""
    length = sa.func.length if on_sqlite else sa.func.octet_length
    found: sa.ColumnElement[int] = sa.literal(0)
    for text in texts:
        found = found + sa.func.coalesce(length(text), 0)
    return found
