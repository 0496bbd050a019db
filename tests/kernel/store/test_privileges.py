"""Missing privileges of the database user are found for each table, named with the GRANT, and refused at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from rqsched.errors import DatabasePrivilegeError, DatabaseReadOnlyError, SchemaError
from rqsched.kernel.store import privileges, schema_version
from rqsched.kernel.store.database import Connection, Database, Patience, is_transient
from rqsched.kernel.store.tables import runs
from tests.support.servers import PostgresServer

RUNS = "rqsched_runs"


@pytest.fixture
def limited(postgres_url: str, postgres_server: PostgresServer) -> Iterator[Database]:
    """The database, over a role that owns nothing and may do everything with its tables."""
    role = f"limited_{postgres_url[-8:]}"
    owned(postgres_url, f"CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    with closing(Database(postgres_url.replace("postgres@", f"{role}@"))) as database:
        yield database
    owned(postgres_url, f"DROP OWNED BY {role}; DROP ROLE {role}")


def owned(url: str, *statements: str) -> None:
    with closing(Database(url.replace(url.partition("//")[2].partition("@")[0], "postgres"))) as database:
        for statement in statements:
            database.transact(partial(sa.Connection.exec_driver_sql, statement=statement))


def role_of(database: Database) -> str:
    return str(database.engine.url.username)


def touch(connection: Connection) -> None:
    connection.execute(sa.update(runs).where(sa.false()).values(status="x"))


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("SELECT 1", []),
        (f"REVOKE UPDATE ON {RUNS} FROM {{role}}", [f"UPDATE ON {RUNS}"]),
        (f"REVOKE ALL ON {RUNS} FROM {{role}}", [f"SELECT, INSERT, UPDATE, DELETE ON {RUNS}"]),
        ("REVOKE INSERT ON rqsched_audit_events FROM {role}", ["INSERT ON rqsched_audit_events"]),
        ("REVOKE UPDATE ON rqsched_audit_events FROM {role}", []),
        ("REVOKE SELECT ON rqsched_alembic_version FROM {role}", ["SELECT ON rqsched_alembic_version"]),
        ("REVOKE USAGE ON SCHEMA public FROM PUBLIC", ["USAGE ON SCHEMA public"]),
        (f"REVOKE UPDATE ON {RUNS} FROM {{role}}; GRANT UPDATE (status) ON {RUNS} TO {{role}}", [f"UPDATE ON {RUNS}"]),
        (f"REVOKE UPDATE ON {RUNS} FROM {{role}}; GRANT UPDATE ({{columns}}) ON {RUNS} TO {{role}}", []),
    ],
)
def test_what_the_user_lacks_is_found_and_what_is_told_to_be_granted_helps(
    limited: Database, postgres_url: str, statement: str, missing: list[str]
) -> None:
    columns = ", ".join(f'"{column.name}"' for column in runs.columns)
    owned(postgres_url, statement.format(role=role_of(limited), columns=columns))

    takes_writes = limited.takes_writes()

    assert [*limited.lacking.privileges] == missing
    assert takes_writes == (not missing)
    if missing:
        owned(postgres_url, limited.lacking.text)
    assert limited.takes_writes()
    schema_version.require_current(limited)


@pytest.mark.postgres
def test_a_write_without_its_privilege_is_refused_at_once_with_the_grant(limited: Database, postgres_url: str) -> None:
    owned(postgres_url, f"REVOKE UPDATE ON {RUNS} FROM {role_of(limited)}")
    attempts = list[int]()

    def work(connection: Connection) -> None:
        attempts.append(1)
        touch(connection)

    for write in (limited.transact, limited.transact_alone):
        with pytest.raises(DatabasePrivilegeError, match=f"GRANT UPDATE ON {RUNS} TO {role_of(limited)};"):
            write(work)

    assert len(attempts) == 2
    assert limited.refuses_writes


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("breaks", "repairs"),
    [
        (f"REVOKE UPDATE ON {RUNS} FROM {{role}}", f"GRANT UPDATE ON {RUNS} TO {{role}}"),
        ("REVOKE USAGE ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA public TO PUBLIC"),
        (f"ALTER TABLE {RUNS} RENAME TO away", f"ALTER TABLE away RENAME TO {RUNS}"),
        (f"ALTER TABLE {RUNS} RENAME status TO away", f"ALTER TABLE {RUNS} RENAME away TO status"),
    ],
    ids=["a privilege", "a schema", "a table", "a column"],
)
def test_what_must_not_be_lost_is_repeated_until_somebody_helps(
    limited: Database, postgres_url: str, breaks: str, repairs: str
) -> None:
    owned(postgres_url, breaks.format(role=role_of(limited)))
    attempts = list[int]()

    def work(connection: Connection) -> None:
        attempts.append(1)
        if len(attempts) == 3:
            owned(postgres_url, repairs.format(role=role_of(limited)))
        touch(connection)

    limited.transact(work, patience=Patience(repeats_refusals=True))

    assert len(attempts) == 3


@pytest.mark.postgres
def test_a_table_that_is_not_there_is_an_error_of_the_schema(limited: Database, postgres_url: str) -> None:
    owned(postgres_url, f"ALTER TABLE {RUNS} RENAME TO away")
    with pytest.raises(SchemaError, match="run `rqsched db upgrade`"):
        limited.transact(touch)


@pytest.mark.postgres
def test_row_level_security_that_hides_rows_is_found(limited: Database, postgres_url: str) -> None:
    owned(postgres_url, f"ALTER TABLE {RUNS} ENABLE ROW LEVEL SECURITY")
    assert limited.read(privileges.find_secured) == [RUNS]
    with closing(Database(postgres_url)) as owner:
        assert owner.read(privileges.find_secured) == []


def test_a_file_of_sqlite_that_is_read_only_refuses_writes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rqsched.db"
    with closing(Database(f"sqlite:///{path}")) as owner:
        schema_version.upgrade(owner)
        attempts = list[int]()

        def work(connection: Connection) -> None:
            attempts.append(1)
            connection.connection.execute("PRAGMA query_only = ON")
            try:
                touch(connection)
            finally:
                connection.connection.execute("PRAGMA query_only = OFF")

        with pytest.raises(DatabaseReadOnlyError, match="let the user of this process write to its file"):
            owner.transact(work)
        assert len(attempts) == 1
        assert owner.refuses_writes
        assert owner.takes_writes()

        with closing(Database(f"sqlite:///file:{path}?mode=ro&uri=true")) as reader:
            assert not reader.takes_writes()
            assert (
                reader.read(
                    lambda connection: connection.execute(sa.select(sa.func.count()).select_from(runs)).scalar()
                )
                == 0
            )


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN_ISDIR])
def test_an_outage_of_sqlite_is_told_by_its_code(code: int) -> None:
    error = sqlite3.OperationalError("no word that is known")
    error.sqlite_errorcode = code
    assert is_transient(sa.exc.OperationalError("", None, error))
