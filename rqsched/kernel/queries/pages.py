"""Pages of lists: cursors as opaque texts, a limit for the stored text that one request reads, and bounded totals."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeVar, overload

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.errors import InvalidLimitError
from rqsched.kernel.decide.ids import first_uid_at, is_uid
from rqsched.kernel.decide.results import Page
from rqsched.kernel.store.dialect import Dialect, dialect_of

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])
PAGE_CHARACTERS = 2_000_000
"""The maximum number of characters of stored text in one page over HTTP. A larger row is the only row of its page."""


def counting(rows: sa.Select[Any], most: int | sa.ColumnElement[int] | None) -> sa.Select[int]:
    """Return a query that counts the rows of a query, up to `most`; None counts all."""
    return sa.select(sa.func.count()).select_from(rows.limit(most).subquery())


def measuring(statement: sa.Select[Row], dialect: Dialect) -> sa.Select[Any]:
    """Return a statement that reads the sizes of the rows of the given statement."""
    texts = tuple(column for column in statement.selected_columns if isinstance(column.type, sa.Text))
    return statement.with_only_columns(_size(texts, dialect))


def cut_to_size(
    connection: Connection,
    statement: sa.Select[Row],
    most: int | None,
    sizes: sa.Select[Any] | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[sa.Select[Row], int | None]:
    """Cut a statement to the first rows whose texts together fit into `most` characters, but at least to one row.

    Only lengths are read. Also returns how many rows the statement then has, or None if all rows fit. If you have the
    result of `measuring(statement)` already, give it as `sizes`. `given` are the bound parameters of both statements.
    """
    if most is None:
        return statement, None
    sizes = measuring(statement, dialect_of(connection)) if sizes is None else sizes
    total = 0
    for number, size in enumerate(connection.execute(sizes, given).scalars().all()):
        total += size
        if number and total > most:
            return statement.limit(number), number
    return statement, None


@lru_cache(maxsize=64)
def _size(texts: tuple[sa.ColumnElement[Any], ...], dialect: Dialect) -> sa.ColumnElement[int]:
    """Return the total length of some texts."""
    found: sa.ColumnElement[int] = sa.literal(0)
    for text in texts:
        found = found + sa.func.coalesce(dialect.text_size(text), 0)
    return found


def write_cursor(at: datetime | str, uid: str) -> str:
    """Render a position as an opaque text."""
    text = at if isinstance(at, str) else at.isoformat()
    return base64.urlsafe_b64encode(json.dumps([text, uid]).encode()).decode().rstrip("=")


def read_cursor(text: str, *, is_text: bool = False) -> tuple[Any, str]:
    """Read a position that `write_cursor` wrote: an instant or a text, and a uid; raises InvalidLimitError."""
    try:
        at, uid = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        str(at).encode()  # fails for a lone surrogate, which drivers refuse
    except (ValueError, TypeError, RecursionError):
        raise malformed_cursor() from None
    if not is_uid(str(uid)) or "\x00" in str(at):
        raise malformed_cursor()
    return str(at) if is_text else read_instant(at), str(uid)


def read_instant(text: Any) -> datetime:
    """Read the instant of a cursor; raises InvalidLimitError."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        pass
    raise malformed_cursor()


def read_number(text: str) -> int:
    """Read the number of a cursor; raises InvalidLimitError unless it is a whole number from 0."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise malformed_cursor()
    return int(text)


@overload
def bind_cursor(cursor: str, *of: object) -> str: ...
@overload
def bind_cursor(cursor: str | None, *of: object) -> str | None: ...
def bind_cursor(cursor: str | None, *of: object) -> str | None:
    """Return a cursor that only the same list accepts.

    `of` are the values that identify the list, such as its order.
    """
    return None if cursor is None else f"{cursor}~{_digest(of)}"


_OTHER_LIST = "is of another list; pass the next_cursor of the page before, with the same sort and namespace"


@overload
def unbind_cursor(cursor: str, *of: object, other: str = ...) -> str: ...
@overload
def unbind_cursor(cursor: str | None, *of: object, other: str = ...) -> str | None: ...
def unbind_cursor(cursor: str | None, *of: object, other: str = _OTHER_LIST) -> str | None:
    """Return the cursor given to `bind_cursor`; raises InvalidLimitError.

    The error has the text `other` if the cursor is of another list.
    """
    if cursor is None:
        return None
    found, _, digest = cursor.rpartition("~")
    if not digest.isalnum() or len(digest) != 2 * _DIGEST:
        raise malformed_cursor()
    if digest != _digest(of):
        raise InvalidLimitError("cursor", other)
    return found


def unbind_number(cursor: str | None, *of: object) -> int | None:
    """Return the number in the cursor given to `bind_cursor`; raises InvalidLimitError."""
    text = unbind_cursor(cursor, *of)
    return None if text is None else read_number(text)


_DIGEST, _DIGITS = 5, 18


def _digest(of: tuple[object, ...]) -> str:
    return blake2b(repr(of).encode(), digest_size=_DIGEST).hexdigest()


def malformed_cursor() -> InvalidLimitError:
    """Return the error for a cursor that no page has returned."""
    return InvalidLimitError("cursor", "is malformed; pass the next_cursor of the page before")


def page_of(found: list[T], limit: int, cursor_of: Any, cut: int | None = None) -> Page[T]:
    """Return a page. If `cut` is not None, more rows follow after the rows that were read."""
    items = found[:limit]
    return Page(items, cursor_of(items[-1]) if len(found) > limit or cut is not None else None)


def page_by_uid(
    connection: Connection, statement: sa.Select[Any], uid: sa.ColumnElement[str], after: str | None, limit: int
) -> tuple[Sequence[Any], str | None]:
    """Read the rows after a uid, in the order of uids. Also return the cursor of the next page; None after the last.

    The statement selects the uid as `uid`.
    """
    if after is not None:
        statement = statement.where(uid > after)
    rows = connection.execute(statement.order_by(uid).limit(limit)).all()
    return rows, rows[-1].uid if len(rows) == limit else None


def page_by_due_time(
    connection: Connection,
    statement: sa.Select[Any],
    table: sa.Table,
    after: tuple[datetime, str] | None,
    limit: int,
) -> tuple[Sequence[Any], tuple[datetime, str] | None]:
    """Read the rows of a table after a due time and uid, ordered by both. Also return the cursor of the next page.

    The statement selects `due_at` and `uid` under these names.
    """
    key = table.c.due_at, table.c.uid
    if after is not None:
        statement = statement.where(sa.tuple_(*key) > bound_to(key, after))
    rows = connection.execute(statement.order_by(*key).limit(limit)).all()
    return rows, (rows[-1].due_at, rows[-1].uid) if len(rows) == limit else None


def bound_to(columns: Sequence[sa.Column[Any]], values: Sequence[Any]) -> sa.Tuple:
    """Return a tuple of values to compare with the tuple of the columns."""
    return sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(values, columns, strict=True)))


def newest_since(
    connection: Connection, table: sa.Table, start: datetime, most: int
) -> tuple[sa.ColumnElement[bool], datetime]:
    """Return a condition for the newest rows since `start`, at most `most`, and when the oldest of them was created.

    Uids begin with the time, so the primary key is in the order of creation.
    """
    newest = sa.select(table.c.uid, table.c.created_at).where(table.c.uid >= first_uid_at(start))
    first = connection.execute(newest.order_by(table.c.uid.desc()).offset(most - 1).limit(1)).first()
    if first is None:
        return table.c.uid >= first_uid_at(start), start
    return table.c.uid >= first.uid, first.created_at
