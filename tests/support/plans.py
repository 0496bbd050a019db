"""How a database would run the queries of a function.

PostgreSQL is asked for its generic plan, because psycopg prepares repeated statements. A plan without the values
cannot use a partial index whose condition came as a value. Tables are small, so sequential scans are switched off:
the tests prove that the index can serve the query.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import metadata

Ask = Callable[[sa.Connection], object]

_NUMBERED = PGDialect_psycopg(paramstyle="numeric_dollar")
_CONSTRAINTS = {str(constraint.name) for table in metadata.sorted_tables for constraint in table.constraints}


def uses(database: Database, ask: Ask, index: str) -> bool:
    """Whether the database would use the index (or one of several: `a|b`).

    SQLite gives a constraint's index a name of its own.
    """
    found = plan(database, ask)
    if database.dialect.name == "sqlite" and index in _CONSTRAINTS:
        return "sqlite_autoindex_" in found
    assert any(name in found for name in index.split("|")), found
    return True


def plan(database: Database, ask: Ask) -> str:
    """How the database would run the queries that `ask` asks, as text."""
    queries: list[sa.Select[tuple[object]]] = []
    asked: list[tuple[str, tuple[object, ...]]] = []

    def explain(connection: sa.Connection) -> str:
        sa.event.listen(connection, "before_execute", lambda *args: queries.append(args[1]))
        sa.event.listen(connection, "before_cursor_execute", lambda *args: asked.append((args[2], args[3])))
        ask(connection)
        if database.dialect.name == "sqlite":
            return "\n".join(_plan(connection, statement, values) for statement, values in list(asked))
        return "\n".join(_generic_plan(connection, query) for query in list(queries))

    return database.transact(explain)


def _plan(connection: sa.Connection, statement: str, values: tuple[object, ...]) -> str:
    return "\n".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values))


def _generic_plan(connection: sa.Connection, query: sa.Select[tuple[object]]) -> str:
    text = str(query.compile(dialect=_NUMBERED, compile_kwargs={"render_postcompile": True}))
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    explained = f"EXPLAIN (GENERIC_PLAN) {text}".replace("%", "%%")  # which the driver reads as the mark of a value
    return "\n".join(connection.exec_driver_sql(explained).scalars())
