"""Engines and transactions: the differences of SQLite and PostgreSQL, and the failures that are retried.

A transaction is a function of a connection. After a transient failure the whole function is called again. It must
therefore read the state and decide again, and never replay an old decision.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import sqlalchemy as sa
import tenacity
from sqlalchemy.engine import Connection as Connection  # callers annotate with it, and import no SQLAlchemy
from sqlalchemy.engine import Engine as Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from rqsched.errors import (
    BackendUnavailableError,
    ConfigError,
    DatabaseLimitError,
    DatabasePrivilegeError,
    DatabaseReadOnlyError,
    DatabaseUnavailableError,
    SchemaError,
)
from rqsched.kernel.patience import call_patiently
from rqsched.kernel.store.dialect import READ_ONLY, Dialect, dialect_of
from rqsched.kernel.store.server_identity import IdentityReader, ServerIdentity, to_identity
from rqsched.kernel.store.sqlite_file import SqliteFile

T = TypeVar("T")
DatabaseError = SQLAlchemyError
"""Any error of the database that is not translated into an error of rqsched."""
ConstraintError = IntegrityError
"""A constraint refused a row. Usually another transaction wrote the same unique key first."""
UNREACHABLE = (OperationalError, PoolTimeoutError)
"""The errors raised while the database does not answer."""
FAILURES = (BackendUnavailableError, DatabaseLimitError, SchemaError, SQLAlchemyError)
"""The errors of reads and transactions that the database causes, and not the caller."""
_BUSY_TIMEOUT_MS = 15_000
_CONFLICTS = ("40001", "40P01", "55P03")
"""Serialization failure, deadlock, lock not available."""
_OUTAGES = ("08", "25P03", "25P04", "53", "57", "58")
"""Lost connections, transactions that were ended for being idle or too long, insufficient resources (a full disk),
operator intervention (the server stops or starts), system errors (PostgreSQL, Appendix A)."""
_READ_ONLY_SERVER = "25006"
"""A read-only server refused a write: a standby, before or after a failover."""
_TAKES_WRITES = "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'"
_LACKS_PRIVILEGE = "42501"
_LACKS_TABLE = ("42P01", "42703", "3F000")
"""A table, a column or a schema that does not exist or is not visible to the user."""
_PROGRAM_LIMIT = "54000"
"""A limit of the server itself: for example, the server refuses all writes until it is vacuumed."""
_WRITES_NOTHING = "UPDATE rqsched_facts SET value = value WHERE 0"
_ABOUT_THE_STATEMENT = ("53200", "53400", "57014")
"""Out of memory, a configured limit, a cancelled statement: the same statement would fail again."""
_REFUSALS = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "failed to resolve host",
    "Name or service not known",  # psycopg before 3.2.13 repeats the message of the system: Linux, then macOS
    "nodename nor servname provided",
)
"""Parts of messages of libpq and psycopg. They mean that the same URL will be refused again."""
_SQLITE_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SQLITE_OUTAGES = (
    *_SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
)
_SQLITE_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
_NOT_IN_SQLITE = ("no such table", "no such column", "has no column")
"""SQLite has no error code for a missing table or column, but its messages are always in English."""

_IDENTITY = "rqsched_identity"
"""The key in a connection's `info` for the identity of its server."""


class Patience(NamedTuple):
    """How long transient failures are retried, with a capped exponential backoff and jitter."""

    total: timedelta = timedelta(seconds=10)
    """After this time no more attempts are made."""
    first: timedelta = timedelta(milliseconds=20)
    """The first wait; each later wait is twice as long as the one before."""
    longest: timedelta = timedelta(seconds=1)
    """The longest wait between two attempts."""
    repeats_refusals: bool = False
    """Whether to repeat statements that the server cancelled for taking too long, and statements that fail because a
    privilege or a table is missing. Use it for a few rows that must not be lost, not for a batch."""
    waits_for_writes: bool = True
    """Whether to wait while the server takes no writes. Otherwise only one more connection is tried."""

    def retrying(self, is_transient: Callable[[BaseException], bool]) -> tenacity.Retrying:
        """Return the tenacity loop; it re-raises the last error when the time is over."""
        return tenacity.Retrying(
            stop=self._is_over,
            wait=tenacity.wait_exponential(multiplier=self.first.total_seconds(), max=self.longest.total_seconds())
            + tenacity.wait_random(0, self.first.total_seconds()),
            retry=tenacity.retry_if_exception(is_transient),
            reraise=True,
        )

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        """Return whether the time is over. After a lost connection there is always one more attempt.

        A process that stalled, or waited for a silent server, notices the loss only after its time is over.
        """
        error = state.outcome and state.outcome.exception()
        was_lost = isinstance(error, DBAPIError) and error.connection_invalidated
        if self.total and was_lost and state.attempt_number == 1:
            return False
        return (state.seconds_since_start or 0.0) >= self.total.total_seconds()


class Lacking(NamedTuple):
    """The privileges that the user of a database lacks."""

    privileges: tuple[str, ...]
    """The privileges as a GRANT names them, such as `UPDATE ON rqsched_runs`."""
    user: str
    """The user's name."""

    @property
    def text(self) -> str:
        """The GRANT statements to run; empty if no privilege is missing."""
        return " ".join(f"GRANT {one} TO {self.user};" for one in self.privileges)


def is_transient(error: BaseException) -> bool:
    """Return whether the same transaction may succeed when it is tried again."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    state = sqlstate_of(error)
    if state:
        passes = state in _CONFLICTS or (state.startswith(_OUTAGES) and state not in _ABOUT_THE_STATEMENT)
        return passes or _is_from_standby(error)
    if _sqlite_code(error) in _SQLITE_OUTAGES:
        return True
    return isinstance(error, OperationalError) and "psycopg" in type(error.orig).__module__


def is_conflict(error: BaseException) -> bool:
    """Return whether another transaction made this one fail: by a lock, a conflicting write, or too long a wait."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    state = sqlstate_of(error)
    return state in {*_CONFLICTS, "57014"} if state else _sqlite_code(error) in _SQLITE_LOCKED


def _sqlite_code(error: BaseException) -> int | None:
    """Return the primary result code of an error of SQLite, or None for any other error."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_from_standby(error: BaseException) -> bool:
    """Return whether a read-only server refused a write, or a BEGIN READ WRITE, which some drivers send."""
    state = sqlstate_of(error)
    if state != "0A000":
        return state == _READ_ONLY_SERVER
    # The name of the server's function is the same in all languages. Before PostgreSQL 16 it was check_XactReadOnly.
    where = getattr(getattr(getattr(error, "orig", None), "diag", None), "source_function", None)
    return where in {"check_transaction_read_only", "check_XactReadOnly"}


def is_refused(error: BaseException) -> bool:
    """Return whether the database refuses until an operator helps: a privilege is missing, or a file is read-only."""
    return sqlstate_of(error) == _LACKS_PRIVILEGE or _sqlite_code(error) in _SQLITE_READ_ONLY


def _lacks_table(error: BaseException) -> bool:
    """Return whether a table or a column does not exist, or the user may not use its schema."""
    if not isinstance(error, DBAPIError):
        return False
    return sqlstate_of(error) in _LACKS_TABLE or (
        _sqlite_code(error) == sqlite3.SQLITE_ERROR and any(words in str(error.orig) for words in _NOT_IN_SQLITE)
    )


def _passes_by_waiting(error: BaseException) -> bool:
    """Return whether the same transaction may succeed when it is tried again, without a promotion of the server."""
    return is_transient(error) and not _is_from_standby(error)


def _on_any_server(attempt: Callable[[], T]) -> T:
    """Make an attempt; if a standby refuses, try once more, because a new connection may reach the primary."""
    try:
        return attempt()
    except DBAPIError as error:
        if not _is_from_standby(error):
            raise
    return attempt()


def _passes_with_help(error: BaseException) -> bool:
    """Return whether the same transaction may succeed later, if necessary after an operator's help."""
    is_stopped = sqlstate_of(error) in {"57014", _PROGRAM_LIMIT}
    return is_transient(error) or is_refused(error) or is_stopped or _lacks_table(error)


@lru_cache(maxsize=32)
def _retrying(patience: Patience, may_pass: Callable[[BaseException], bool]) -> tenacity.Retrying:
    """Return the retry loop of a patience. The loop keeps no state between two uses."""
    return patience.retrying(may_pass)


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, or None: errors of SQLite have none."""
    if not isinstance(error, DBAPIError):
        return None
    # psycopg and asyncpg call it sqlstate, psycopg2 calls it pgcode.
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return None if state is None else str(state)


def reason_of(error: SQLAlchemyError) -> str:
    """Return the first line of the driver's message. It has no password, because drivers name only host and user."""
    text = str(getattr(error, "orig", None) or error).strip()
    first = text.partition("\n")[0].rstrip(" .:") or type(error).__name__
    return " ".join(first.split())


def with_connect_timeout(url: str, seconds: int) -> str:
    """Return the URL with a timeout for connecting; a URL of SQLite does not change."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        parsed = parsed.update_query_dict({"connect_timeout": str(seconds)})
    return parsed.render_as_string(hide_password=False)


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite database; None for a database with a server."""
    parsed = sa.make_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _create_privately(path: Path, *connecting: object) -> None:
    """Create an empty file that only its owner can read. If the file exists, do nothing.

    SQLite gives its -wal and -shm files the same mode. Special names of SQLite, such as `:memory:`, and missing folders
    are left to SQLite.
    """
    del connecting
    if str(path) in {".", ":memory:"} or str(path).startswith("file:"):
        return
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def make_engine(
    url: str,
    pooler: str | None = None,
    *,
    named: str = "RQSCHED_DATABASE_URL",
    examine: Callable[[Any], ServerIdentity] | None = None,
    newest: Callable[[], ServerIdentity | None] = lambda: None,
) -> Engine:
    """Return an engine. It opens no connection before its first use.

    `pooler` is the setting `database_pooler`. `examine` and `newest` are explained at `postgres.make_engine`. Raises
    ConfigError for an option that libpq does not know. `named` is the name of the URL in the message.
    """
    if sa.make_url(url).get_backend_name() == "sqlite":
        connect_args = {"timeout": _BUSY_TIMEOUT_MS / 1000, "check_same_thread": False}
        engine = prepare_sqlite(sa.create_engine(url, connect_args=connect_args, hide_parameters=True))
        if (path := sqlite_path(url)) is not None:
            sa.event.listen(engine, "do_connect", partial(_create_privately, path))
        return engine
    from rqsched.kernel.store import postgres  # noqa: PLC0415 - its driver is an optional extra

    return postgres.make_engine(url, pools_transactions=pooler is not None, named=named, examine=examine, newest=newest)


@contextmanager
def without_limits(connection: Connection, *, for_at_most: timedelta | None = None) -> Iterator[None]:
    """Let each statement of the open transaction take `for_at_most`; None removes all limits, also those for locks.

    The limits are in `dialect.SESSION`. SQLite has none, so nothing changes there.
    """
    if not dialect_of(connection).has_server:
        yield
        return
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    limit = 0 if for_at_most is None else int(for_at_most.total_seconds() * 1_000)
    for name in names if for_at_most is None else names[:1]:
        connection.exec_driver_sql(f"SET LOCAL {name} = {limit}")
    raw = cast("Any", connection.connection.driver_connection)
    if not hasattr(raw, "answer_seconds"):  # opened by the application's own function
        yield
        return
    usual = raw.answer_seconds
    raw.answer_seconds = None if for_at_most is None else usual + for_at_most.total_seconds()
    try:
        yield
    finally:
        raw.answer_seconds = usual


def prepare_sqlite(engine: Engine) -> Engine:
    """Make an engine's connections wait for locks, and write each commit to the disk."""
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, entry: ConnectionPoolEntry) -> None:
    del entry
    connection.isolation_level = None  # BEGIN is explicit, because a read that turns into a write may fail at once
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    is_read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")


class Database:
    """One SQL database. A process and its forks never share a connection."""

    def __init__(
        self,
        url: str,
        *,
        patience: Patience | None = None,
        open_engine: Callable[[], Engine] | None = None,
        pooler: str | None = None,
    ) -> None:
        """Open an engine for the URL, or take the engine that `open_engine` returns. A forked process keeps the engine.

        `pooler` is the setting `database_pooler`.
        """
        self.url = url
        self.patience = patience or Patience()
        self._pooler = pooler
        self._open_engine = open_engine
        opened = partial(
            make_engine, url, pooler, examine=self._examine, newest=lambda: self.recorded() or self.identity
        )
        self._engine = (open_engine or opened)()
        self.dialect: Dialect = dialect_of(self._engine)
        """The differences between SQLite and PostgreSQL."""
        self._file = None if self.dialect.has_server else SqliteFile(self._engine)
        self.takes_single_statements = open_engine is None and pooler is None and self.dialect.joins_writes
        """Whether a statement without BEGIN and COMMIT is faster than a transaction. It is not faster on SQLite, or if
        each transaction must first set the limits of our sessions."""
        self.refuses_writes: bool | None = None if self.dialect.has_server else False
        """Whether the database refused writes at the last write or check; None before the first."""
        self.lacking = Lacking((), "")
        """The privileges that the user lacked at the last call of `takes_writes`."""
        self._pid = os.getpid()
        self._raw: weakref.WeakSet[Any] = weakref.WeakSet()
        self.identity: ServerIdentity | None = None
        """The identity of the server that the newest connection has reached; None before the first connection, and on
        SQLite."""
        self.on_identity: list[Callable[[ServerIdentity], object]] = []
        """Functions that are called with the identity of each new connection's server."""
        self.recorded: Callable[[], ServerIdentity | None] = lambda: None
        """Returns the server that Redis has recorded for the control queue, or None if it is not known. Called for each
        new connection if the URL names several hosts."""
        self._identities = IdentityReader()
        if self.dialect.has_server:
            sa.event.listen(self._engine, "connect", self._on_connect)
            sa.event.listen(self._engine, "checkout", self._on_checkout)
        self._open = threading.local()
        self._keeper: tuple[int, int] | None = None
        self._kept: Connection | None = None
        _databases.add(self)

    def apart(self) -> Database:
        """Return another Database for the same database, with its own connections."""
        return Database(self.url, open_engine=self._open_engine, pooler=self._pooler)

    @property
    def engine(self) -> Engine:
        """The engine of this process. A fork keeps its parent's engine and compiled statements, but no connections."""
        if self._pid != os.getpid():
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        return self._engine

    def _on_connect(self, raw: Any, entry: ConnectionPoolEntry) -> None:
        self._raw.add(raw)
        found = getattr(raw, "identity", None)
        if found is None:  # opened by the application's own function
            try:
                found = self._examine(raw)
            except BaseException:
                raw.close()
                raise
        self._note(found, entry.info)

    def _examine(self, raw: Any) -> ServerIdentity:
        """Return which server a new connection has reached; raises OperationalError for an old primary."""
        found = self._identities.of_new(raw)
        if self.identity is not None and found.is_before(self.identity):
            raise self._engine.dialect.loaded_dbapi.OperationalError(
                f"an old primary answers: timeline {found.timeline} after {self.identity.timeline}; if it is the right "
                "server (`rqsched db adopt`), start this process again"
            )
        return found

    def _note(self, found: ServerIdentity, info: Any) -> None:
        info[_IDENTITY] = self.identity = found
        for call in self.on_identity:
            call(found)

    def _on_checkout(self, raw: Any, entry: ConnectionPoolEntry, *_: object) -> None:
        """Make the pool replace a connection that is lost, or that leads to another server than the newest connection.

        Otherwise SQLAlchemy would set the isolation level of a lost connection, and would not translate the error that
        psycopg then raises.
        """
        if raw.closed:
            raise sa.exc.DisconnectionError
        if entry.info.get(_IDENTITY) != self.identity and self._has_left(entry.info):
            raise sa.exc.InvalidatePoolError

    def _has_left(self, info: Any) -> bool:
        """Return whether the newest connection has reached another server. A replica may count as the same server."""
        known, newest = info.get(_IDENTITY), self.identity
        return known is None or newest is None or not newest.is_same(known)

    def identify(self, *, patience: Patience | None = None) -> ServerIdentity | None:
        """Read the identity of the server that answers now. Raises the errors of `read`.

        With a pooler an open connection may reach another server than before. A server on an earlier timeline than the
        server of the newest connection is an old primary, and is refused.
        """
        if not self.dialect.has_server:
            return None

        def ask(connection: Connection) -> ServerIdentity:
            found = to_identity(connection.exec_driver_sql(self._identities.query).one())
            self._note(found, connection.info)
            return found

        return self._patiently(partial(self._once, ask, is_alone=True), patience)

    def transact(
        self,
        work: Callable[[Connection], T],
        *,
        alone: Callable[[Connection], T | None] | None = None,
        patience: Patience | None = None,
    ) -> T:
        """Run `work` in one transaction and commit; repeat it whole on transient failures.

        If the server `takes_single_statements`, run `alone` first and return its result unless that is None. Each
        statement of `alone` is its own transaction. `alone` is repeated on transient failures, too.

        Raises DatabaseUnavailableError if the failures last longer than the patience. In this case the commit may have
        happened. Raises DatabaseLimitError if the server stopped a statement that took too long or too much.
        """
        if alone is not None and self.takes_single_statements:
            done = self.transact_alone(alone, patience=patience)
            if done is not None:
                return done
        return self._patiently(partial(self._once, work), patience)

    def transact_alone(self, work: Callable[[Connection], T], *, patience: Patience | None = None) -> T:
        """Run `work` as `transact` does; with `takes_single_statements` each statement is its own transaction.

        Then no BEGIN and no COMMIT are sent, and a process that stalls between two statements holds no lock.
        """
        if self._is_keeper:
            # Try the kept connection first. After a failure use any connection of the pool.
            once_more = partial(self._once, work, is_alone=True)
            return self._patiently(partial(self._once_on_kept, work), patience, again=once_more)
        return self._patiently(partial(self._once, work, is_alone=self.takes_single_statements), patience)

    def keep_connection(self) -> None:
        """Let this thread's `transact_alone` keep one connection instead of taking it from the pool each time.

        For a claim or an end, SQLAlchemy's pool takes as much time as the rest of SQLAlchemy. In a process that forks
        for each run, the pool is half of the memory that a claim writes to, and each fork copies that memory. Other
        calls of the thread first give the connection back to the pool, and then use the pool.
        """
        if self.takes_single_statements:
            self._keeper = (os.getpid(), threading.get_ident())

    @property
    def _is_keeper(self) -> bool:
        return self._keeper is not None and self._keeper == (os.getpid(), threading.get_ident())

    def _once_on_kept(self, work: Callable[[Connection], T]) -> T:
        with self._counted():
            connection = self._kept
            is_newest = connection is None or connection.info.get(_IDENTITY) == self.identity
            if connection is not None and not is_newest and self._has_left(connection.info):
                self._give_back()  # the newest connection is to another server, so the pool replaces this one
                connection = None
            if connection is None:
                connection = self._kept = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                with connection.begin():
                    return work(connection)
            except BaseException as error:
                self._note_standby(connection, error)
                self._give_back()
                raise

    def _give_back(self) -> None:
        """Give the kept connection back to the pool."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def read(self, work: Callable[[Connection], T], *, is_alone: bool = False, patience: Patience | None = None) -> T:
        """Run `work`, which must not write, on one consistent snapshot, unless `is_alone` is set.

        With `is_alone`, each statement may have its own snapshot. If the server `takes_single_statements`, it then gets
        no BEGIN and no COMMIT, which take as long as a short query.
        """
        alone = is_alone and self.takes_single_statements
        attempt = partial(self._once, work, is_read_only=True, is_alone=alone)
        return self._patiently(attempt, patience, is_read_only=True)

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is inside a transaction of this `Database`."""
        return getattr(self._open, "depth", 0) > 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        depth = getattr(self._open, "depth", 0)
        self._open.depth = depth + 1
        try:
            with nullcontext() if self._file is None else self._file.used():
                yield
        finally:
            self._open.depth = depth

    def _once(self, work: Callable[[Connection], T], *, is_read_only: bool = False, is_alone: bool = False) -> T:
        if self._is_keeper:
            self._give_back()
        with self._counted(), self.engine.connect() as connection:
            if is_alone:
                connection.execution_options(isolation_level="AUTOCOMMIT")
            elif is_read_only:
                connection.execution_options(**self.dialect.snapshot)
            try:
                with connection.begin():
                    return work(connection)
            except DBAPIError as error:
                self._note_standby(connection, error)
                raise

    def _note_standby(self, connection: Connection, error: BaseException) -> None:
        """Remember that the database refused a write. If a standby refused it, the next attempt connects again."""
        if _is_from_standby(error):
            connection.invalidate(error)
        if _is_from_standby(error) or is_refused(error) or _lacks_table(error):
            self.refuses_writes = True

    def _patiently(
        self,
        attempt: Callable[[], T],
        own: Patience | None,
        *,
        again: Callable[[], T] | None = None,
        is_read_only: bool = False,
    ) -> T:
        patience = own or self.patience
        may_pass = _passes_with_help if patience.repeats_refusals else is_transient
        try:
            if patience.waits_for_writes:
                return call_patiently(_retrying(patience, may_pass), attempt, again)
            return call_patiently(_retrying(patience, _passes_by_waiting), partial(_on_any_server, attempt), again)
        except SQLAlchemyError as error:
            if _is_from_standby(error):
                raise DatabaseReadOnlyError(
                    f"the database takes no writes ({reason_of(error)}): it is a standby, or read-only. "
                    "Try again after its promotion, or set RQSCHED_DATABASE_URL to the primary."
                ) from error
            if may_pass(error):
                self._raise_refusal(error, is_read_only=is_read_only)
                raise DatabaseUnavailableError(
                    f"the database does not answer ({reason_of(error)}); try again later."
                ) from error
            self._raise_refusal(error, is_read_only=is_read_only)
            if sqlstate_of(error) in _ABOUT_THE_STATEMENT:
                raise DatabaseLimitError(reason_of(error)) from error
            raise

    def _raise_refusal(self, error: SQLAlchemyError, *, is_read_only: bool) -> None:
        """Raise the error that a refusal means: a file is read-only, or a privilege or a table is missing."""
        reason = reason_of(error)
        if _sqlite_code(error) in _SQLITE_READ_ONLY:
            raise DatabaseReadOnlyError(
                f"the database takes no writes ({reason}): let the user of this process write to its file, and to the "
                "folder that it is in."
            ) from error
        if is_refused(error) or _lacks_table(error):
            lacking = self.find_lacking(is_read_only=is_read_only)
            if is_refused(error) or lacking.privileges:
                raise DatabasePrivilegeError(lacking.privileges, reason, user=lacking.user) from error
            raise SchemaError(
                f"the tables of the database are not those of this rqsched ({reason}); run `rqsched db upgrade`."
            ) from error

    def find_lacking(self, *, is_read_only: bool = False) -> Lacking:
        """Return the privileges that the user of the database lacks for reads and writes, or only for reads.

        Returns no privileges if they cannot be read; raises nothing.
        """
        if not self.dialect.has_server:
            return Lacking((), "")
        from rqsched.kernel.store import privileges  # noqa: PLC0415 - needed only after a refusal of the database

        try:
            with self.engine.connect() as connection:
                if self.takes_single_statements:
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                return Lacking(*privileges.find_missing(connection, is_read_only=is_read_only))
        except SQLAlchemyError:
            return Lacking((), "its user")

    def require_accepted(self) -> None:
        """Raise ConfigError if the database refuses this process or its host has no address.

        An outage raises nothing. Call this only when the process starts. Later the same refusal counts as an outage,
        because host names may not resolve during a failover.
        """
        try:
            with self._counted():
                self.engine.connect().close()  # the engine's first connection also sends a few queries
        except DBAPIError as error:
            reason = reason_of(error)
            if any(words in reason for words in _REFUSALS):
                host = self._engine.url.host
                where = f" (host {host})" if host and host not in reason else ""
                raise ConfigError(f"RQSCHED_DATABASE_URL cannot be used: {reason}{where}. Correct it.") from error
            if not is_transient(error):
                raise

    def now(self, host: datetime) -> datetime:
        """Read the database's clock. SQLite has no clock, so return `host`, the time of the host."""
        if not self.dialect.has_server:
            return host
        query = sa.select(sa.func.clock_timestamp(type_=sa.DateTime(timezone=True)))
        value: datetime = self.read(lambda connection: connection.execute(query).scalar_one(), is_alone=True)
        return value.astimezone(UTC)

    def takes_writes(self, *, patience: Patience | None = None) -> bool:
        """Ask whether the database takes writes.

        It takes none if it is a standby, if its transactions or files are read-only, or if its user lacks a privilege.
        After such an answer the next call uses a new connection. Raises the errors of `read`.
        """
        self.lacking = self.find_lacking()
        try:
            if self.dialect.has_server:
                query = sa.text(_TAKES_WRITES)
                found = self.read(lambda c: c.execute(query).scalar_one(), is_alone=True, patience=patience)
                lacks = any(not one.startswith("DELETE ") for one in self.lacking.privileges)
                takes_writes = bool(found) and not lacks  # without DELETE only pruning and deletions fail
            else:
                # BEGIN IMMEDIATE alone is allowed in a file that is read-only.
                self.transact(lambda connection: connection.exec_driver_sql(_WRITES_NOTHING), patience=patience)
                takes_writes = True
        except DatabaseReadOnlyError:
            takes_writes = False
        except SchemaError:
            takes_writes = True  # the check of the schema reports the fault
        self.refuses_writes = not takes_writes
        if not takes_writes:
            self.close()
        return takes_writes

    def ping(self, *, patience: Patience | None = None) -> None:
        """Return once the database has answered. Raises the errors of `read`."""
        self.read(lambda connection: connection.execute(sa.text("SELECT 1")), patience=patience)

    def encoding(self) -> str | None:
        """Return the name of the server's text encoding; None for SQLite, which stores every text."""
        if not self.dialect.has_server:
            return None
        return str(self.read(lambda connection: connection.exec_driver_sql("SHOW server_encoding").scalar_one()))

    def server_version(self) -> str:
        """Return the name and the version of the database server."""
        query = sa.text(self.dialect.version_query)
        return f"{self.dialect.title} {self.read(lambda connection: connection.execute(query).scalar_one())}"

    def leave_to_parent(self) -> None:
        """Close a fork's copies of its parent's connections, so that these connections end with the parent."""
        if self._pid == os.getpid():
            return
        for raw in list(self._raw):
            with suppress(Exception):  # a closed connection has no descriptor
                os.close(raw.fileno())
        self._raw.clear()

    def close(self) -> None:
        """Close the connections that no thread uses. On PostgreSQL, those in use are closed after their use."""
        if self._is_keeper:
            self._give_back()
        if self._pid != os.getpid():
            return
        if self._file is None:
            self._engine.dispose()
        else:
            self._file.close_idle()


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def close_all() -> None:
    """Close the unused connections of every database of this process."""
    for database in list(_databases):
        database.close()
