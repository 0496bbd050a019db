"""Read rows from the tables of other schedulers in their databases, and disable their entries.

Each operation is one transaction, and its waits have time limits. Therefore this code never waits forever for a server
or a lock, and other sessions never wait forever for its locks. This module does not interpret the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, NoSuchTableError, SQLAlchemyError

from rqsched.errors import DatabaseUnavailableError, InvalidInputError
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.store.database import is_conflict, make_engine, reason_of, sqlite_path

T = TypeVar("T")

PERIODIC_TASKS, CHANGES = "django_celery_beat_periodictask", "django_celery_beat_periodictasks"
"""Two tables of django-celery-beat: the tasks, and the time of the last change of all tasks."""
_POSTGRESQL = re.compile(r"^postgres(ql)?://")
_LOCK_SECONDS = 15
"""How many seconds a change waits for another change in SQLite."""
_TIMEOUTS: Mapping[str, Mapping[str, int]] = {
    "psycopg2": {"connect_timeout": 3, "tcp_user_timeout": 8_000},
    "pymysql": {"connect_timeout": 3, "read_timeout": 10, "write_timeout": 10},
    "mysqldb": {"connect_timeout": 3, "read_timeout": 10, "write_timeout": 10},
    "mysqlconnector": {"connection_timeout": 10},
    "pysqlite": {"timeout": _LOCK_SECONDS},
}
"""The timeout options of each driver, in seconds. Only `tcp_user_timeout` is in milliseconds."""
_CHUNK = 500
_TICK = timedelta(microseconds=1)


class ForeignDatabase:
    """The database of another scheduler, given by its SQLAlchemy URL. For PostgreSQL, the driver is psycopg 3.

    The constructor reads the columns of the tables. It raises InvalidInputError or ConfigError for a URL that cannot be
    used, and InvalidInputError for a table that does not exist. Operations raise DatabaseUnavailableError within
    seconds if the database does not answer, or if another session holds a lock that they need.
    """

    def __init__(self, url: str, tables: Sequence[str], schema: str | None = None) -> None:
        try:
            self._engine = _open_engine(_POSTGRESQL.sub("postgresql+psycopg://", url))
            path = sqlite_path(url)
        except (ArgumentError, NoSuchModuleError) as error:
            raise InvalidInputError("SOURCE", f"is not the URL of a database: {error}; write one") from None
        except ValueError:
            raise InvalidInputError("SOURCE", "is not a database's URL: its port is not a number; correct it") from None
        except ModuleNotFoundError as error:
            raise InvalidInputError("SOURCE", f"needs the driver {error.name}; install it here") from None
        if path is not None and not path.is_file():
            raise InvalidInputError("SOURCE", f"names {path}, which is not a file; correct the path")
        self._tables = {name: self._table(name, schema) for name in tables}

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    def rows(self, key: str = "id") -> dict[str, list[dict[str, Any]]]:
        """Read all rows of each table, ordered by a key. If the database supports it, they are one snapshot."""
        return self._transact(lambda connection: {name: self._rows(connection, name, key) for name in self._tables})

    def disable_tasks(self, names: Sequence[str], now: datetime) -> int:
        """Disable tasks of django-celery-beat as its admin page does. Return how many of them were enabled before.

        This also sets the time of the last change, as PeriodicTasks.update_changed() does, so that a running beat reads
        the tasks again. The stored last run of each task stays, because the interval of the imported schedule is
        measured from it.
        """
        tasks = self._tables[PERIODIC_TASKS]

        def disable(connection: Connection) -> int:
            is_enabled = tasks.c.enabled == sa.true()
            count = _update(connection, tasks, tasks.c.name, names, is_enabled, enabled=False)
            self._tell_beat(connection, now)
            return count

        return self._transact(disable)

    def pause_jobs(self, table: str, ids: Sequence[str]) -> int:
        """Pause jobs of APScheduler by setting their next time to NULL. Return how many were not paused before."""
        jobs = self._tables[table]
        has_time = jobs.c.next_run_time.is_not(None)
        return self._transact(
            lambda connection: _update(connection, jobs, jobs.c.id, ids, has_time, next_run_time=None)
        )

    def _table(self, name: str, schema: str | None) -> sa.Table:
        try:
            with _translated():
                return sa.Table(name, sa.MetaData(), schema=schema, autoload_with=self._engine)
        except NoSuchTableError:
            raise InvalidInputError("SOURCE", f"has no table {name}; name the right database") from None

    def _transact(self, work: Callable[[Connection], T]) -> T:
        with _translated(), self._engine.begin() as connection:
            return work(connection)

    def _rows(self, connection: Connection, name: str, key: str) -> list[dict[str, Any]]:
        table = self._tables[name]
        rows = connection.execute(sa.select(table).order_by(table.c.get(key))).mappings()
        return [dict(row) for row in rows]

    def _tell_beat(self, connection: Connection, now: datetime) -> None:
        table = self._tables[CHANGES]
        column = table.c.last_update
        last = connection.execute(sa.select(column).where(table.c.ident == 1)).scalar()
        grown = now if last is None else max(now, aware(last) + _TICK)
        kept = grown if getattr(column.type, "timezone", False) else grown.replace(tzinfo=None)
        statement = table.insert().values(ident=1) if last is None else table.update().where(table.c.ident == 1)
        connection.execute(statement.values(last_update=kept))


def _open_engine(url: str) -> sa.Engine:
    driver = sa.make_url(url).get_driver_name()
    if driver == "psycopg":
        # The server may be a pooler, which refuses time limits when a session connects. Set them in each transaction.
        return make_engine(url, "transaction", named="SOURCE")
    return sa.create_engine(url, connect_args=dict(_TIMEOUTS.get(driver, {})), hide_parameters=True)


def aware(value: datetime) -> datetime:
    """Return an instant in UTC. A naive instant is read as UTC, because databases without zones store UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _update(
    connection: Connection,
    table: sa.Table,
    key: sa.Column[Any],
    keys: Sequence[str],
    chosen: sa.ColumnElement[bool],
    **values: Any,
) -> int:
    updates = (table.update().where(key.in_(chunk), chosen).values(values) for chunk in chunks(keys, _CHUNK))
    return sum(connection.execute(update).rowcount for update in updates)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NoSuchTableError:
        raise
    except SQLAlchemyError as error:
        if is_conflict(error):
            raise DatabaseUnavailableError(
                f"SOURCE is locked by another session ({reason_of(error)}); nothing was changed there: run this again."
            ) from error
        raise DatabaseUnavailableError(
            f"SOURCE does not answer: {reason_of(error)}. Check that it runs and that the URL is right; run this again."
        ) from error
