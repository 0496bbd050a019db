"""The differences between SQLite and PostgreSQL in the SQL of this package, named by capability.

Code that builds a statement once for each database takes the dialect as an argument. Code that has a connection calls
`dialect_of(connection)`. Engines and connections are in `database`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from rqsched.kernel.decide.payload import dumps

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


READ_ONLY = "rqsched_read_only"
"""The execution option of a transaction that begins without the writer's lock (SQLite)."""
SESSION = {
    "statement_timeout": "8s",
    "lock_timeout": "4s",
    "idle_in_transaction_session_timeout": "8s",
    "tcp_user_timeout": "8s",
}
"""How long one of our sessions may hold up others (PostgreSQL). A process may stall while it waits for a lock (4 s),
between two statements (8 s), or while it receives rows. In the last case no SQL timeout applies, and only TCP ends the
session (8 s)."""
FORMATS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "standard_conforming_strings": "on",
}
"""The formats of texts in our sessions, whatever the defaults of the database or the role are (PostgreSQL)."""


def settings_of_session(settings: Mapping[str, str], *, is_local: bool) -> str:
    """Return the statement that sets these settings for the session, or only for its transaction (`is_local`)."""
    till = "true" if is_local else "false"
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {till})" for name, value in settings.items())


_IN_TRANSACTION = settings_of_session(SESSION | FORMATS, is_local=True)


class Dialect(ABC):
    """The capabilities of a database, and the parts of SQL that differ between databases."""

    name: str
    """The name that SQLAlchemy uses."""
    title: str
    """The name that people read."""
    version_query: str
    """The query for the version of the server, or of SQLite's library."""
    has_server: bool
    """Whether the database is a server: it has a clock and limits for sessions, and is reached over a network."""
    has_one_writer: bool
    """Whether only one writing transaction can be open at a time."""
    has_statistics: bool
    """Whether the planner has statistics, and finds a partial index however a condition is written."""
    joins_writes: bool
    """Whether one statement can write several tables, and can return columns of tables that it only reads."""
    takes_arrays: bool
    """Whether a bound value may be an array, which the statement turns into rows."""
    snapshot: Mapping[str, Any]
    """The execution options of a transaction that only reads, and sees all data as of one point in time."""

    @abstractmethod
    def count_of_tables(self, name: str) -> str:
        """Return the text of a query that counts the tables with this name that the session sees."""

    @abstractmethod
    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that supports ON CONFLICT."""

    @abstractmethod
    def listed(self, values: Iterable[str]) -> Any:
        """Return texts as the one value that `among` and `of_each` bind."""

    @abstractmethod
    def one_of(self, column: sa.ColumnElement[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
        """Compare a column with a list. The list is one bound value, so one statement serves lists of any length."""

    @abstractmethod
    def found_by(self, column: sa.ColumnElement[Any], query: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """Compare a column with the texts that a query finds. The query runs once, even if it locks the rows."""

    @abstractmethod
    def among(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Compare a column with a long list, bound as `among`, by a join."""

    @abstractmethod
    def of_each(self, statement: sa.Select[Any], column: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Return a SELECT that looks up each value of a list, bound as `among`, by an index.

        After thousands of runs were opened, the planner's statistics may be out of date. The planner would then expect
        few open runs, and read all of them for each batch.
        """

    @abstractmethod
    def of_ranges(self, statement: sa.Select[Any], uid: sa.Column[Any], number: sa.Column[Any]) -> sa.Select[Any]:
        """Return a SELECT that looks up each range of numbers of `given_ranges` by an index."""

    @abstractmethod
    def given_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
        """Return the values that `of_ranges` binds. A range is a uid, its first number minus 1, and its last number."""

    @abstractmethod
    def seconds(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """Return the whole seconds from 1970 to an instant."""

    @abstractmethod
    def microseconds(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """Return the microseconds from 1970 to an instant."""

    @abstractmethod
    def unindexed(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        """Return a column in a form for which SQLite uses no index.

        Without statistics SQLite would take the wrong index.
        """

    @abstractmethod
    def text_size(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """Return the length of a text, in characters (SQLite) or bytes (PostgreSQL).

        PostgreSQL need not read a text for this if it stores the text outside of the row.
        """

    @abstractmethod
    def byte_size(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """Return how many bytes a text has."""

    @abstractmethod
    def after(
        self, column: sa.Column[Any], instant: sa.ColumnElement[Any], *others: sa.Column[Any]
    ) -> sa.ColumnElement[Any]:
        """Return the latest of `instant`, the columns `others`, and one microsecond after the value of `column`."""

    @abstractmethod
    def text_at(self, column: sa.ColumnElement[Any], *path: str) -> sa.ColumnElement[str]:
        """Return the text at a path of keys in a JSON object, or NULL."""

    @abstractmethod
    def has_member(self, column: sa.Column[str], name: str, value: Any) -> sa.ColumnElement[bool]:
        """Return the condition that a JSON object has the member `name` with this `value`."""


class _Sqlite(Dialect):
    name = "sqlite"
    title = "SQLite"
    version_query = "SELECT sqlite_version()"
    has_server = False
    has_one_writer = True
    has_statistics = False
    joins_writes = False
    takes_arrays = False
    snapshot = MappingProxyType({READ_ONLY: True})

    def count_of_tables(self, name: str) -> str:
        return f"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{name}'"  # noqa: S608 - ours

    def insert(self, table: sa.Table) -> sqlite.Insert:
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415 - a process has one database; dialects are slow to load

        return sqlite.insert(table)

    def listed(self, values: Iterable[str]) -> str:
        return json.dumps(list(values))

    def one_of(self, column: sa.ColumnElement[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
        return self._in(column, sa.literal(self.listed(values), sa.Text()))

    def found_by(self, column: sa.ColumnElement[Any], query: sa.Select[Any]) -> sa.ColumnElement[bool]:
        return column.in_(query.correlate(None))

    def among(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return self._in(column, sa.bindparam("among", type_=sa.Text()))

    def _in(self, column: sa.ColumnElement[Any], document: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return column.in_(sa.select(sa.func.json_each(document).table_valued("value").c.value))

    def of_each(self, statement: sa.Select[Any], column: sa.ColumnElement[Any]) -> sa.Select[Any]:
        return statement.where(self.among(column))

    def of_ranges(self, statement: sa.Select[Any], uid: sa.Column[Any], number: sa.Column[Any]) -> sa.Select[Any]:
        bound = sa.bindparam("ranges", type_=sa.Text())
        given = sa.func.json_each(bound).table_valued("value", name="given")
        of, after, last = (sa.func.json_extract(given.c.value, f"$[{place}]") for place in range(3))
        return statement.join(given, (uid == of) & (number > after) & (number <= last))

    def given_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
        return {"ranges": json.dumps(ranges)}

    def seconds(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        # An instant is stored as text with six decimals. SQLite would round to three, and .9995 to the next second.
        return sa.cast(sa.func.strftime("%s", sa.func.substr(column, 1, 19)), sa.BigInteger)

    def microseconds(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return self.seconds(column) * 1_000_000 + sa.cast(sa.func.substr(column, 21), sa.BigInteger)

    def unindexed(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        return sa.literal_column(f"+{column.table.name}.{column.name}", column.type)

    def text_size(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.func.length(column)

    def byte_size(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.func.length(sa.cast(column, sa.LargeBinary))

    def after(
        self, column: sa.Column[Any], instant: sa.ColumnElement[Any], *others: sa.Column[Any]
    ) -> sa.ColumnElement[Any]:
        # Compare texts, because SQLite computes with three decimals. Its max() is NULL if any value is NULL.
        kept = f"{column.table.name}.{column.name}"
        second, decimals = f"substr({kept}, 1, 19)", f"substr({kept}, 21)"
        carried = f"datetime({second}, '+1 second') || '.000000'"
        following = f"CASE {decimals} WHEN '999999' THEN {carried} ELSE {second} || printf('.%06d', {decimals} + 1) END"
        none = sa.literal_column("''", column.type)
        known = [sa.func.coalesce(one, none) for one in (sa.literal_column(following, column.type), *others)]
        return sa.func.max(instant, *known, type_=column.type)

    def text_at(self, column: sa.ColumnElement[Any], *path: str) -> sa.ColumnElement[str]:
        return sa.func.json_extract(column, f"$.{'.'.join(path)}", type_=sa.Text())

    def has_member(self, column: sa.Column[str], name: str, value: Any) -> sa.ColumnElement[bool]:
        # Read the object as rows: a path cannot name every key.
        member = sa.func.json_each(column).table_valued("key", "value", "type", joins_implicitly=True)
        wanted = sa.func.json_each(dumps([value])).table_valued("value", "type", joins_implicitly=True)
        same = (member.c.value.is_not_distinct_from(wanted.c.value), member.c.type == wanted.c.type)
        is_there = sa.exists(sa.select(1).select_from(member, wanted).where(member.c.key == name, *same))
        return _is_likely(sa.func.instr, column, name, value) & is_there


class _Postgres(Dialect):
    name = "postgresql"
    title = "PostgreSQL"
    version_query = "SHOW server_version"
    has_server = True
    has_one_writer = False
    has_statistics = True
    joins_writes = True
    takes_arrays = True
    snapshot = MappingProxyType({"isolation_level": "REPEATABLE READ", "postgresql_readonly": True})

    def count_of_tables(self, name: str) -> str:
        # Do not use `to_regclass`: its second call in a session misses a table that another session created since the
        # first.
        found = f"SELECT count(*) FROM pg_catalog.pg_class WHERE relname = '{name}'"  # noqa: S608 - ours
        return f"{found} AND pg_catalog.pg_table_is_visible(oid)"

    def insert(self, table: sa.Table) -> postgresql.Insert:
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - as above

        return postgresql.insert(table)

    def listed(self, values: Iterable[str]) -> list[str]:
        return list(values)

    def one_of(self, column: sa.ColumnElement[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
        bound = sa.literal(list(values), sa.ARRAY(sa.Text))
        return column == sa.any_(sa.cast(bound, sa.ARRAY(sa.Text)))

    def found_by(self, column: sa.ColumnElement[Any], query: sa.Select[Any]) -> sa.ColumnElement[bool]:
        # `IN` may be planned as a join that runs the query again for each row of the table.
        found = query.correlate(None).scalar_subquery()
        return column == sa.any_(sa.func.array(found, type_=sa.ARRAY(sa.Text)))

    def among(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        # `= ANY` may search the whole list for each row of the table.
        return column.in_(sa.select(self._given().c.uid))

    def of_each(self, statement: sa.Select[Any], column: sa.ColumnElement[Any]) -> sa.Select[Any]:
        given = self._given()
        one = statement.where(column == given.c.uid).offset(sa.literal_column("0")).lateral("one")
        return sa.select(*one.c).select_from(given.join(one, sa.true()))

    def of_ranges(self, statement: sa.Select[Any], uid: sa.Column[Any], number: sa.Column[Any]) -> sa.Select[Any]:
        bound = (
            sa.bindparam(name, type_=sa.ARRAY(kind))
            for name, kind in (("among", sa.Text()), ("after", sa.BigInteger()), ("last", sa.BigInteger()))
        )
        given = sa.func.unnest(*bound).table_valued("uid", "after", "last", name="given").render_derived()
        is_within = uid == given.c.uid, number > given.c.after, number <= given.c.last
        one = statement.where(*is_within).offset(sa.literal_column("0")).lateral("one")
        return sa.select(*one.c).select_from(given.join(one, sa.true()))

    def given_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
        return {name: [one[place] for one in ranges] for place, name in enumerate(("among", "after", "last"))}

    def seconds(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.cast(sa.func.floor(sa.extract("epoch", column)), sa.BigInteger)

    def microseconds(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.cast(sa.extract("epoch", column) * 1_000_000, sa.BigInteger)

    def _given(self) -> sa.TableValuedAlias:
        bound = sa.bindparam("among", type_=sa.ARRAY(sa.Text))
        return sa.func.unnest(bound).table_valued("uid", name="given").render_derived()

    def unindexed(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        return column

    def text_size(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.func.octet_length(column)

    byte_size = text_size

    def after(
        self, column: sa.Column[Any], instant: sa.ColumnElement[Any], *others: sa.Column[Any]
    ) -> sa.ColumnElement[Any]:
        return sa.func.greatest(instant, column + sa.text("interval '1 microsecond'"), *others)

    def text_at(self, column: sa.ColumnElement[Any], *path: str) -> sa.ColumnElement[str]:
        keys = [sa.cast(key, sa.Text) for key in path]
        return sa.func.json_extract_path_text(sa.cast(column, sa.JSON), *keys, type_=sa.Text())

    def has_member(self, column: sa.Column[str], name: str, value: Any) -> sa.ColumnElement[bool]:
        from sqlalchemy.dialects.postgresql import JSONB  # noqa: PLC0415 - as above

        return _is_likely(sa.func.strpos, column, name, value) & sa.cast(column, JSONB).contains({name: value})


def _is_likely(find: Any, column: sa.Column[str], name: str, value: Any) -> sa.ColumnElement[bool]:
    """Skip most rows without parsing them. Canonical JSON always writes a member with a text value in the same way."""
    found: sa.ColumnElement[int] = find(column, dumps({name: value})[1:-1])
    return found > 0 if isinstance(value, str) else sa.true()


SQLITE, POSTGRES = _Sqlite(), _Postgres()
_DIALECTS: dict[str, Dialect] = {one.name: one for one in (SQLITE, POSTGRES)}


def dialect_of(connection: Connection | Engine) -> Dialect:
    """Return the dialect of a connection's or an engine's database."""
    return _DIALECTS[connection.dialect.name]


def limit_transaction(connection: Connection) -> None:
    """Set SESSION and FORMATS only for the open transaction. A pooler may give the session to another client next."""
    connection.exec_driver_sql(_IN_TRANSACTION)
