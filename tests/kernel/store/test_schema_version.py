"""How a database gets its tables: once, however many processes ask, and never over foreign ones."""

from __future__ import annotations

from contextlib import closing

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from rqsched.errors import SchemaError
from rqsched.kernel.decide.ids import is_uid
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.metadata import DATABASE_ID, find_value
from rqsched.kernel.store.migrations import HEAD, VERSION_TABLE
from rqsched.kernel.store.tables import metadata
from tests.kernel.store.samples import add_schedule, find
from tests.support.children import in_children


def execute(database: Database, *statements: str) -> None:
    def work(connection: sa.Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    database.transact(work)


def table_names(database: Database) -> set[str]:
    return database.read(lambda connection: set(sa.inspect(connection).get_table_names()))


def database_id(database: Database) -> str | None:
    return database.read(lambda connection: find_value(connection, DATABASE_ID))


def test_an_empty_database_gets_every_table_and_an_id_of_its_own(empty_database: Database) -> None:
    assert schema_version.upgrade(empty_database) == HEAD
    assert table_names(empty_database) == {*metadata.tables, VERSION_TABLE}
    assert is_uid(database_id(empty_database) or "")
    assert schema_version.status(empty_database).is_current


def test_a_second_upgrade_has_nothing_to_do_and_keeps_the_id(database: Database) -> None:
    before = database_id(database)
    assert schema_version.upgrade(database) is None
    assert database_id(database) == before


def test_a_current_schema_is_recognised_in_two_short_queries(database: Database) -> None:
    statements: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    schema_version.upgrade(database)
    assert len(statements) <= 3, statements  # SQLite says BEGIN itself


def test_many_processes_may_upgrade_an_empty_database_at_once(empty_database: Database) -> None:
    def upgrade() -> tuple[str | None, str | None]:
        with closing(Database(empty_database.url)) as database:
            return schema_version.upgrade(database), database_id(database)

    answers = in_children(6, upgrade)
    assert sorted(done or "" for done, _ in answers) == ["", "", "", "", "", HEAD]
    assert {identity for _, identity in answers} == {database_id(empty_database)}


def test_matching_tables_made_without_alembic_are_kept_with_their_rows(empty_database: Database) -> None:
    empty_database.transact(metadata.create_all)
    schedule = add_schedule(empty_database)
    assert schema_version.upgrade(empty_database) == HEAD
    assert find(empty_database, schedule.uid) == schedule
    assert schema_version.status(empty_database).is_current
    assert database_id(empty_database)


def test_a_foreign_table_of_our_name_is_refused_by_name_and_columns(empty_database: Database) -> None:
    execute(empty_database, "CREATE TABLE rqsched_facts (name VARCHAR(64) PRIMARY KEY, colour TEXT)")
    with pytest.raises(SchemaError, match=r"rqsched_facts lacks the columns value and has the unknown columns colour"):
        schema_version.upgrade(empty_database)
    assert table_names(empty_database) == {"rqsched_facts"}


def test_some_of_our_tables_without_the_others_are_refused(empty_database: Database) -> None:
    empty_database.transact(metadata.tables["rqsched_facts"].create)
    with pytest.raises(SchemaError, match=r"rqsched_facts exists, but .*rqsched_schedules.* do not"):
        schema_version.upgrade(empty_database)
    assert table_names(empty_database) == {"rqsched_facts"}


def test_our_tables_without_an_index_that_holds_an_invariant_are_refused(empty_database: Database) -> None:
    empty_database.transact(metadata.create_all)
    execute(empty_database, "DROP INDEX uq_rqsched_runs_occurrence")
    with pytest.raises(SchemaError, match="rqsched_runs lacks the indexes uq_rqsched_runs_occurrence"):
        schema_version.upgrade(empty_database)
    assert VERSION_TABLE not in table_names(empty_database)


def test_a_migration_that_fails_halfway_leaves_nothing_behind(empty_database: Database) -> None:
    execute(
        empty_database,
        "CREATE TABLE mine (id INTEGER)",
        "CREATE INDEX ix_rqsched_audit_events_recorded_at ON mine (id)",
    )
    with pytest.raises(DBAPIError, match="ix_rqsched_audit_events_recorded_at"):
        schema_version.upgrade(empty_database)
    assert table_names(empty_database) == {"mine"}
    assert schema_version.status(empty_database).current is None


def test_the_applications_own_alembic_is_not_disturbed(empty_database: Database) -> None:
    execute(
        empty_database,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('theirs')",
    )
    schema_version.upgrade(empty_database)
    read = sa.text("SELECT version_num FROM alembic_version")
    assert empty_database.read(lambda connection: connection.execute(read).scalars().all()) == ["theirs"]


def test_a_database_without_tables_is_refused_with_the_command_that_makes_them(empty_database: Database) -> None:
    with pytest.raises(SchemaError, match="run `rqsched db upgrade`"):
        schema_version.require_current(empty_database)
    assert schema_version.status(empty_database) == schema_version.SchemaStatus(current=None, head=HEAD)


def test_a_schema_from_before_the_first_release_is_refused_and_left_alone(database: Database) -> None:
    execute(database, f"UPDATE {VERSION_TABLE} SET version_num = '0004'")
    for refuse in (schema_version.require_current, schema_version.upgrade):
        with pytest.raises(
            SchemaError, match=r"is at 0004, which a development build before release 0.1 made.* must be made anew"
        ):
            refuse(database)
    assert schema_version.status(database).current == "0004"


def test_a_schema_one_step_newer_is_accepted_and_left_alone(database: Database) -> None:
    newer = f"{int(HEAD) + 1:04}"
    execute(database, f"UPDATE {VERSION_TABLE} SET version_num = '{newer}'")
    schema_version.require_current(database)
    assert schema_version.upgrade(database) is None
    assert schema_version.status(database).current == newer


def test_a_newer_schema_is_refused_and_left_alone(database: Database) -> None:
    execute(database, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    for refuse in (schema_version.require_current, schema_version.upgrade):
        with pytest.raises(SchemaError, match=r"at 9999, more than one step newer than .* upgrade the rqsched package"):
            refuse(database)
    assert schema_version.status(database).current == "9999"


def test_a_current_schema_passes(database: Database) -> None:
    schema_version.require_current(database)
