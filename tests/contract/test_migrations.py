"""The migrated schema is the one `rqsched.kernel.store.tables` declares, on every database."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.migrations import HEAD, VERSION_TABLE
from rqsched.kernel.store.schema_version import alembic_config
from rqsched.kernel.store.tables import metadata

POSTGRES_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid <> 'rqsched_alembic_version'::regclass
"""
POSTGRES_INDEXES = "SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'rqsched%' AND tablename <> :version"
POSTGRES_COLUMNS = """
SELECT table_name, ordinal_position, column_name, data_type, character_maximum_length, column_default, is_nullable
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> :version
"""
SQLITE_OBJECTS = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name <> :version"
PARTIAL_UNIQUE = ("uq_rqsched_schedules_incarnation", "uq_rqsched_runs_occurrence")


def definitions(database: Database) -> set[str]:
    """Everything the database itself says about our tables, order of constraints apart."""
    if database.dialect.name == "sqlite":
        return {part for text in rows(database, SQLITE_OBJECTS) for part in parts_of(text)}
    return {*rows(database, POSTGRES_CONSTRAINTS), *rows(database, POSTGRES_INDEXES), *rows(database, POSTGRES_COLUMNS)}


def parts_of(statement: str) -> list[str]:
    """An index whole; of a table its columns, constraints and the order of the columns: SQLite appends added ones."""
    text = " ".join(statement.replace('"', "").split())
    head, _, body = text.partition("(")
    if not head.startswith("CREATE TABLE"):
        return [text]
    table = head.split()[-1]
    parts, depth, start = [head.strip()], 0, 0
    for at, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if (letter == "," and depth == 0) or depth < 0:
            parts.append(body[start:at].strip())
            start = at + 1
    columns = [
        part for part in parts[1:] if not part.startswith(("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"))
    ]
    return [*parts[:1], *(f"{table} {part}" for part in parts[1:]), f"{table}: {', '.join(columns)} {body[start:]}"]


def rows(database: Database, query: str) -> list[str]:
    statement = sa.text(query)
    values = {"version": VERSION_TABLE} if ":version" in query else {}
    found = database.read(lambda connection: connection.execute(statement, values).all())
    return [re.sub(r"[ \t]+", " ", str(row[0] if len(row) == 1 else tuple(row))) for row in found]


def test_alembic_finds_no_difference_between_the_migrated_schema_and_the_tables(database: Database) -> None:
    def differences(connection: sa.Connection) -> list[object]:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    assert database.transact(differences) == []


def test_migrating_and_creating_give_the_same_definitions(database: Database, empty_database: Database) -> None:
    def create(connection: sa.Connection) -> None:
        metadata.create_all(connection)
        connection.exec_driver_sql(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32))")

    empty_database.transact(create)
    assert definitions(database) == definitions(empty_database)


def test_the_unique_indexes_that_hold_the_invariants_are_partial(database: Database) -> None:
    found = [text for text in definitions(database) if any(name in text for name in PARTIAL_UNIQUE)]
    assert len(found) == len(PARTIAL_UNIQUE)
    assert all("UNIQUE INDEX" in text and "WHERE" in text for text in found), found


def test_head_is_the_newest_revision_and_revisions_sort_by_age(database: Database) -> None:
    with database.engine.connect() as connection:
        script = ScriptDirectory.from_config(alembic_config(connection))
    newest_first = [revision.revision for revision in script.walk_revisions()]
    assert script.get_heads() == [HEAD]
    assert newest_first == sorted(newest_first, reverse=True)  # status() compares them as text


def test_downgrading_removes_every_table_and_upgrading_brings_them_back(database: Database) -> None:
    database.transact(lambda connection: command.downgrade(alembic_config(connection), "base"))
    names = database.read(lambda connection: sa.inspect(connection).get_table_names())
    assert names == [VERSION_TABLE]
    assert schema_version.upgrade(database) == HEAD
