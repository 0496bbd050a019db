"""Find the privileges that the user of the database lacks for the tables of rqsched (PostgreSQL).

One query of the system catalogs covers every table, and does not depend on the language of the server's messages.
SQLite has files instead of users, so no privilege is ever missing there.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.migrations import VERSION_TABLE
from rqsched.kernel.store.tables import audit_events, limit_starts, metadata, uncounted

_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
_NEVER_UPDATED = {audit_events.name, limit_starts.name, uncounted.name}
_NEEDED = [(VERSION_TABLE, "SELECT")] + [
    (name, one) for name in sorted(metadata.tables) for one in _ALL if one != "UPDATE" or name not in _NEVER_UPDATED
]
_ROWS = ", ".join(f"({at}, '{name}', '{one}')" for at, (name, one) in enumerate(_NEEDED))
_TABLES = f"""
FROM (VALUES {_ROWS}) AS needed(at, name, one)
JOIN pg_catalog.pg_class AS found ON found.relname = needed.name AND found.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace AS place ON place.oid = found.relnamespace
"""
_MISSING = f"""
SELECT needed.at, needed.name, needed.one {_TABLES}
WHERE pg_catalog.pg_table_is_visible(found.oid)
AND NOT pg_catalog.has_table_privilege(found.oid, needed.one)
AND (needed.one = 'DELETE' OR EXISTS (
  SELECT FROM pg_catalog.pg_attribute AS part WHERE part.attrelid = found.oid AND part.attnum > 0
  AND NOT part.attisdropped AND NOT pg_catalog.has_column_privilege(found.oid, part.attnum, needed.one)
))
"""  # noqa: S608 - our own names
_CLOSED = f"""
SELECT DISTINCT -1, place.nspname::text, 'USAGE' {_TABLES}
WHERE NOT pg_catalog.has_schema_privilege(place.oid, 'USAGE')
AND place.nspname = ANY (string_to_array(
  replace(replace(replace(current_setting('search_path'), '"$user"', current_user), '"', ''), ' ', ''), ','
))
"""
_USER_AND_MISSING = f"""
SELECT -2, quote_ident(current_user), '' UNION ALL ({_CLOSED}) UNION ALL ({_MISSING}) ORDER BY 1, 2
"""
_SECURED = f"""
SELECT DISTINCT needed.name {_TABLES}
WHERE pg_catalog.pg_table_is_visible(found.oid) AND pg_catalog.row_security_active(found.oid) ORDER BY needed.name
"""


def find_missing(connection: Connection, *, is_read_only: bool = False) -> tuple[tuple[str, ...], str]:
    """Return the privileges that the user lacks, each as a GRANT names it, such as `UPDATE, DELETE ON rqsched_runs`.

    A privilege for every column counts as a privilege for the table. With `is_read_only`, return only the privileges
    for reads. Also return the name of the user whose privileges count, quoted as SQL needs it.
    """
    if not dialect_of(connection).has_server:
        return (), ""
    (_, user, _), *missing = connection.execute(sa.text(_USER_AND_MISSING)).all()
    lacking: dict[str, list[str]] = {}
    for _, name, one in missing:
        if one in {"USAGE", "SELECT"} or not is_read_only:
            lacking.setdefault(f"SCHEMA {name}" if one == "USAGE" else name, []).append(one)
    return tuple(f"{', '.join(ones)} ON {name}" for name, ones in lacking.items()), str(user)


def find_secured(connection: Connection) -> list[str]:
    """Return the tables whose row level security hides rows from the user, or refuses them."""
    return [*connection.execute(sa.text(_SECURED)).scalars()] if dialect_of(connection).has_server else []
