"""The schema: create the tables of this version, or upgrade them, even if many processes do so at once.

If the schema is current, this takes two short queries and does not load alembic.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Inspector

from rqsched.clock import SystemClock
from rqsched.errors import DatabasePrivilegeError, SchemaError
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store import migrations
from rqsched.kernel.store.database import Database, Patience, without_limits
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.metadata import DATABASE_ID, claim_value
from rqsched.kernel.store.migrations import FIRST, HEAD, VERSION_TABLE
from rqsched.kernel.store.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = int.from_bytes(b"rqsched", "big")


UTF8 = "UTF8"
"""The encoding that stores every text, as PostgreSQL calls it."""


class SchemaStatus(NamedTuple):
    """The revision of a database, and the revision that this version of rqsched needs."""

    current: str | None
    """The database's revision; None before the first upgrade."""
    head: str
    """The revision that this code was written for."""

    @property
    def is_current(self) -> bool:
        """Whether this code can use the database: its schema is at this code's revision, or one newer (in a rolling
        deploy).

        A migration only adds columns and tables that the release before does not know. A later migration removes the
        columns and tables that are unused.
        """
        return self.current is not None and int(self.current) in {int(self.head), int(self.head) + 1}


def status(database: Database, *, patience: Patience | None = None) -> SchemaStatus:
    """Read which revision the database is at."""
    return SchemaStatus(database.read(_current, is_alone=True, patience=patience), HEAD)


def require_current(database: Database, *, patience: Patience | None = None) -> None:
    """Raise SchemaError unless the database's schema fits this code; see `SchemaStatus.is_current`."""
    found = status(database, patience=patience)
    current = found.current
    if current is None:
        if (lacking := database.find_lacking(is_read_only=True)).privileges:
            raise DatabasePrivilegeError(lacking.privileges, "no table is seen", user=lacking.user)
        raise SchemaError("this database has no rqsched tables yet; run `rqsched db upgrade`.")
    if found.is_current:
        return
    _require_upgradable(current)
    raise SchemaError(f"the database's schema is at {current}, this rqsched needs {HEAD}; run `rqsched db upgrade`.")


def upgrade(database: Database) -> str | None:
    """Bring the database to the newest schema; returns its revision, or None when there was nothing to do.

    Atomic and idempotent. Any number of processes may call it at once. One process upgrades, and the others wait and
    then have nothing to do. Existing tables that match are kept with their rows. Raises SchemaError in four cases, and
    then changes nothing: tables of another application have these names, the schema is newer than this code, it is
    older than release 0.1, or an empty database has an encoding other than UTF8.
    """
    if status(database).is_current:
        return None
    return database.transact(_upgrade)


def _upgrade(connection: Connection) -> str | None:
    from alembic import command  # noqa: PLC0415 - importing alembic takes time, and few processes have to migrate

    with without_limits(connection):
        if not dialect_of(connection).has_one_writer:  # else BEGIN IMMEDIATE has held off other upgrades
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        current = _current(connection)
        if SchemaStatus(current, HEAD).is_current:
            return None
        if current is not None:
            _require_upgradable(current)
        is_made = current is None and _has_matching_tables(connection)
        if current is None and not is_made:
            _require_utf8(connection)
        bring = command.stamp if is_made else command.upgrade
        bring(alembic_config(connection), HEAD)
        claim_value(connection, DATABASE_ID, new_uid(SystemClock().now()))
        return HEAD


def alembic_config(connection: Connection) -> Config:
    """Return the configuration of alembic, without a file; alembic runs in the transaction of `connection`."""
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _current(connection: Connection) -> str | None:
    # Ask first, because on PostgreSQL a query of a missing table would end the transaction. Use plain SQL, because
    # every command asks this, and building a statement would take most of the time.
    if not connection.exec_driver_sql(dialect_of(connection).count_of_tables(VERSION_TABLE)).scalar_one():
        return None
    return connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar_one_or_none()  # noqa: S608


def _require_upgradable(current: str) -> None:
    if current > HEAD:
        raise SchemaError(
            f"the database's schema is at {current}, more than one step newer than this rqsched's {HEAD}; "
            "upgrade the rqsched package."
        )
    if current < FIRST:
        raise SchemaError(
            f"the database's schema is at {current}, which a development build before release 0.1 made; such a "
            "database is not upgraded and must be made anew: drop its tables, or give rqsched an empty database, and "
            "create the schedules again."
        )


def _require_utf8(connection: Connection) -> None:
    """Raise SchemaError if a new database cannot store every text.

    If a database already has tables, it is not refused, and only `doctor` reports this.
    """
    if not dialect_of(connection).has_server:
        return
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != UTF8:
        raise SchemaError(
            f"the database's encoding is {encoding}, which cannot store every text; nothing was changed. Create another"
            " one (CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0) and set RQSCHED_DATABASE_URL to it."
        )


def _has_matching_tables(connection: Connection) -> bool:
    """Return True if all tables exist and match, False if none exists; raises SchemaError in any other case."""
    inspector = sa.inspect(connection)
    existing = [table for table in metadata.sorted_tables if inspector.has_table(table.name)]
    if not existing:
        return False
    faults = [fault for table in existing if (fault := _fault(inspector, table))]
    if not faults and len(existing) == len(metadata.tables):
        return True
    missing = sorted(set(metadata.tables) - {table.name for table in existing})
    told = faults or [f"{existing[0].name} exists, but {_list(missing)} do not"]
    raise SchemaError(
        f"the database holds tables that rqsched did not make: {'; '.join(told)}. Nothing was changed. "
        "Rename or drop them, or give rqsched a database of its own."
    )


def _fault(inspector: Inspector, table: sa.Table) -> str | None:
    columns = {column["name"] for column in inspector.get_columns(table.name)}
    indexes = {index["name"] for index in inspector.get_indexes(table.name)}
    differences = (
        ("lacks the columns", set(table.columns.keys()) - columns),
        ("has the unknown columns", columns - set(table.columns.keys())),
        ("lacks the indexes", {str(index.name) for index in table.indexes} - indexes),
    )
    parts = [f"{what} {_list(names)}" for what, names in differences if names]
    return f"{table.name} {' and '.join(parts)}" if parts else None


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
