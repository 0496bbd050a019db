"""SQL helpers of tests: statements, actions of others between two of them, waits, sessions, and lost answers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import CacheStats

from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.store.database import Database, Patience
from tests.support.processes import wait_until

T = TypeVar("T")
NO_PATIENCE = Patience(total=timedelta(0))
OUTAGES = {
    "disk full": "53100",
    "too many connections": "53300",
    "read-only server": "25006",
    "idle transaction ended": "25P03",
    "server stops": "57P01",
    "idle session ended": "57P05",
    "i/o error": "58030",
    "connection failure": "08006",
    "lock not available": "55P03",
}
"""SQLSTATEs of PostgreSQL's temporary outages."""
FAILURES_OF_THE_STATEMENT = {"cancelled": "57014", "out of memory": "53200", "limit exceeded": "53400"}
"""SQLSTATEs of statements that asked too much."""


@contextmanager
def statements(runtime: Runtime, before: Callable[[str], object] = lambda _: None) -> Iterator[list[str]]:
    """Note the first word of each statement inside the block, after a call of `before` with it."""
    found: list[str] = []

    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        word = statement.split(" ", 1)[0]
        before(word)
        found.append(word)

    runtime.now()  # measures the clock first
    with _listening(runtime, "before_cursor_execute", note):
        yield found


@contextmanager
def queries(runtime: Runtime) -> Iterator[list[tuple[str, str]]]:
    """Note each SELECT inside the block, with its values as text."""
    found: list[tuple[str, str]] = []

    def note(_c: object, _u: object, statement: str, values: object, *_: object) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            found.append((statement, str(values)))

    with _listening(runtime, "before_cursor_execute", note):
        yield found


def wait_for_a_lock(database: Database) -> None:
    """Return once a transaction on the server waits for a lock (PostgreSQL)."""
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    wait_until(lambda: database.read(lambda connection: connection.scalar(waiting)), what="somebody at a lock")


def do_not_sync(engine: sa.Engine) -> None:
    """Let SQLite leave the disk to the system: in a test processes crash, not the machine."""
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))


def backend(connection: Connection) -> int:
    """The process of the server that serves a connection (PostgreSQL)."""
    return int(connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one())


class SilentDatabase(Database):
    """A database that commits writes and then loses the answer, as many times as told."""

    silent = 0
    meanwhile: Callable[[], object] = staticmethod(lambda: None)
    """The actions of others before the caller notices."""
    replaced: Database | None = None
    """The database that a runtime had before. Parts of the runtime still read from it, so it has open connections."""

    def close(self) -> None:
        """Close the connections of this database and of the replaced one."""
        super().close()
        if self.replaced is not None:
            self.replaced.close()

    def lose(self, answers: int = 1, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Lose the answers to the next writes. `meanwhile` acts for others before the caller notices."""
        self.silent, self.meanwhile = answers, meanwhile

    def _once(self, work: Callable[[Connection], T], *, is_read_only: bool = False, is_alone: bool = False) -> T:
        result = super()._once(work, is_read_only=is_read_only, is_alone=is_alone)
        if self.silent and not is_read_only:
            self.silent -= 1
            self.meanwhile()
            raise sa.exc.OperationalError("COMMIT", {}, _LOST[self.dialect.name])
        return result


def sqlite_error(text: str, code: int) -> sqlite3.OperationalError:
    """Return the driver's error with a result code."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


_LOST = {
    "sqlite": sqlite_error("database is locked", sqlite3.SQLITE_BUSY),
    "postgresql": psycopg.OperationalError("server closed the connection unexpectedly"),
}


def silent_database(runtime: Runtime) -> SilentDatabase:
    """Give a runtime a database that loses answers when it is told to."""
    database = SilentDatabase(runtime.database.url)
    database.replaced, runtime.database = runtime.database, database
    return database


@contextmanager
def built_anew(runtime: Runtime, but: Sequence[sa.Executable] = ()) -> Iterator[list[sa.Executable]]:
    """Note the statements, as values of SQLAlchemy, that are executed inside the block and are none of `but`."""
    found: list[sa.Executable] = []

    def note(_: object, statement: sa.Executable, *__: object) -> None:
        if not any(statement is one for one in (*but, *found)):
            found.append(statement)

    with _listening(runtime, "before_execute", note):
        yield found


@contextmanager
def compiled_anew(runtime: Runtime) -> Iterator[list[str]]:
    """Note the statements that SQLAlchemy compiles inside the block, as it has compiled none that is alike."""
    found: list[str] = []

    def note(_c: object, _u: object, statement: str, _p: object, context: Any, _m: object) -> None:
        if context.compiled is not None and context.cache_hit is not CacheStats.CACHE_HIT:
            found.append(statement)

    with _listening(runtime, "before_cursor_execute", note):
        yield found


@contextmanager
def _listening(runtime: Runtime, event: str, note: Callable[..., object]) -> Iterator[None]:
    engine = runtime.database.engine
    sa.event.listen(engine, event, note)
    try:
        yield
    finally:
        sa.event.remove(engine, event, note)
