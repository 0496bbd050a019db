"""The caller's transaction: an application commits our writes with its own, and our callbacks follow the commit.

We write into the transaction. We never end it, repeat it, or change a setting of its connection. After a rollback the
callbacks are dropped. If the connection is lost, they are called, because the transaction may have been committed. The
callbacks of a Session are called at its event `after_commit`. SQLAlchemy's event `commit` of a Connection comes before
COMMIT is sent. So the callbacks of a Connection are called when it begins its next transaction or returns to the pool.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from rqsched.errors import (
    DatabasePrivilegeError,
    DatabaseUnavailableError,
    InvalidTypeError,
    TransactionConflictError,
    WrongDatabaseError,
)
from rqsched.kernel.decide.options import CommonOptions
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import is_conflict, is_refused, is_transient, reason_of, sqlstate_of
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import database_metadata

if TYPE_CHECKING:  # the import of the ORM takes a tenth of a second; only an application with sessions needs it
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

T = TypeVar("T")
F = TypeVar("F", bound=Callable[[], None])
_KEY = "rqsched_after_commit"
"""The key of the callbacks that wait for a commit, in the `info` of connections and sessions."""
_NO_TABLE, _NO_TABLE_WORDS = "42P01", "no such table"
_NO_TRANSACTION = "25P01"


class Waiting(dict[object, Callable[[], None]]):
    """The callbacks for the end of a Connection's transaction, each under a key."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = weakref.ref(connection)

    def call(self) -> None:
        """Call each callback once. If the Connection was not closed but collected as garbage, use a thread.

        Garbage collection may interrupt this thread anywhere, even while the thread holds locks.
        """
        while self:
            publish = self.popitem()[1]
            if self._connection() is None:
                threading.Thread(target=publish, name="rqsched-after-commit", daemon=True).start()
            else:
                publish()


class CallerTransaction(Protocol):
    """A transaction that the application began and will end."""

    def connection(self) -> AbstractContextManager[Connection]:
        """Lend the connection of the transaction."""

    def when_over(self, connection: Connection, key: object, make: Callable[[], F]) -> F:
        """Return the callback that waits under `key` for the commit. If none waits, add the result of `make`."""


SessionLike: TypeAlias = (
    "Session | scoped_session[Any] | Connection | AsyncSession | AsyncConnection | CallerTransaction"
)
"""The values of `session=`; an AsyncScheduler takes the asynchronous types, a Scheduler the other types."""
ConnectionLike: TypeAlias = "Connection | AsyncConnection"
"""The values of `connection=` besides the name of a Redis."""


class WritingOptions(CommonOptions, total=False):
    """The options of a schedule, among which `connection` may also be the caller's own transaction."""

    connection: str | ConnectionLike | None
    """The name of the Redis of its runs, or a SQLAlchemy Connection, in whose transaction the schedule is written."""


def caller_transaction(connection: object = None, session: object = None) -> CallerTransaction | None:
    """Return the caller's transaction, given as a connection or a session; None if neither is given.

    Raises InvalidTypeError if both are given, or if the value has another type.
    """
    if connection is not None and session is not None:
        raise InvalidTypeError("session", "and connection were both given; give the one that holds your transaction")
    given, field = (session, "session") if connection is None else (connection, "connection")
    if given is None:
        return None
    if is_async(given):
        raise InvalidTypeError(field, f"{type(given).__name__} needs an AsyncScheduler, or its run_sync()")
    if isinstance(given, Connection):
        return _OfConnection(given)
    if _has_methods(given, "connection", "when_over"):
        return cast("CallerTransaction", given)
    if _has_methods(given, "connection", "flush"):
        return _OfSession(cast("Session | scoped_session[Any]", given))
    wanted = "Connection" if field == "connection" else "Session"
    raise InvalidTypeError(field, f"{type(given).__name__} is not a SQLAlchemy {wanted}; give one")


def split_transaction(
    options: Mapping[str, Any], session: SessionLike | None
) -> tuple[CallerTransaction | None, dict[str, Any]]:
    """Return the caller's transaction, if one is given, and the options without it."""
    given = options.get("connection")
    if given is None or isinstance(given, str):
        return caller_transaction(None, session), dict(options)
    return caller_transaction(given, session), {name: value for name, value in options.items() if name != "connection"}


def is_async(given: object) -> bool:
    """Return whether this is an asynchronous connection or session of SQLAlchemy."""
    return _has_methods(given, "run_sync")


def _has_methods(given: object, *names: str) -> bool:
    return all(callable(getattr(given, name, None)) for name in names)


def perform(
    connection: Connection,
    database_id: str,
    work: Callable[[Connection], T],
    *,
    is_writing: bool = True,
    creates: int = 0,
) -> T:
    """Run `work` in the caller's transaction, whole or not at all. A failure leaves no writes behind.

    Raises WrongDatabaseError, before anything is written, if the transaction belongs to another database than
    `database_id`. Raises TransactionConflictError if another transaction wrote first. `creates` is the number of
    schedules that `work` may create. Another transaction may create each of them first. So `work` is repeated up to
    `creates` times, and the next try finds the schedule.
    """
    try:
        if is_writing and dialect_of(connection).has_one_writer:
            _take_write_lock(connection)
        for _ in range(creates):
            with suppress(IntegrityError):
                return _in_savepoint(connection, database_id, work)
        return _in_savepoint(connection, database_id, work)
    except DBAPIError as error:
        _raise_translated(error)
        raise


def _in_savepoint(connection: Connection, database_id: str, work: Callable[[Connection], T]) -> T:
    with connection.begin_nested():
        found = metadata.find_value(connection, metadata.DATABASE_ID)
        if found != database_id:
            raise _wrong_database(f"has the id {found}, not {database_id}")
        return work(connection)


def _take_write_lock(connection: Connection) -> None:
    """Make the first statement a write, because SQLite may refuse a write in a transaction that began with a read.

    The write changes no row. Afterwards a transaction must be open; otherwise each statement would be committed by
    itself.
    """
    connection.execute(sa.update(database_metadata).where(sa.false()).values(value=""))
    if not cast("Any", connection.connection.driver_connection).in_transaction:
        raise _autocommit()


def _wrong_database(what: str) -> WrongDatabaseError:
    return WrongDatabaseError(
        f"the connection is to another database than the scheduler's: it {what}. Give one to the database of "
        "RQSCHED_DATABASE_URL (and its schema, where your search_path names another), or call without it: then the "
        "operation is a transaction of its own."
    )


def _autocommit() -> InvalidTypeError:
    return InvalidTypeError(
        "connection", "is in autocommit, so nothing would be rolled back; begin a transaction, or call without it"
    )


def _raise_translated(error: DBAPIError) -> None:
    """Raise rqsched's error for a driver's error; do nothing if rqsched has none."""
    reason, state = reason_of(error), sqlstate_of(error)
    if state == _NO_TRANSACTION:
        raise _autocommit() from error
    if state == _NO_TABLE or reason.startswith(_NO_TABLE_WORDS):
        raise _wrong_database("has no tables of rqsched") from error
    if isinstance(error, IntegrityError) or is_conflict(error):
        raise TransactionConflictError(reason) from error
    if is_refused(error):
        raise DatabasePrivilegeError((), reason) from error
    if is_transient(error):
        raise DatabaseUnavailableError(f"your transaction cannot go on ({reason}); repeat it later.") from error


class _OfConnection:
    """The transaction of a Connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        yield self._connection

    def when_over(self, connection: Connection, key: object, make: Callable[[], F]) -> F:
        return cast("F", _waiting(connection).setdefault(key, make()))


class _OfSession:
    """The transaction of an ORM Session, which may come from a `scoped_session`."""

    def __init__(self, session: Session | scoped_session[Any]) -> None:
        # A listener on a scoped_session would get the events of every session that it ever makes.
        self._session = cast("Session", cast("Any", session)() if hasattr(session, "registry") else session)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        yield self._session.connection()

    def when_over(self, connection: Connection, key: object, make: Callable[[], F]) -> F:
        waiting = _waiting(connection)
        if not sa.event.contains(self._session, "after_commit", _at_session_commit):
            sa.event.listen(self._session, "after_commit", _at_session_commit)
        self._session.info.setdefault(_KEY, weakref.WeakKeyDictionary())[connection] = waiting
        return cast("F", waiting.setdefault(key, make()))


def _waiting(connection: Connection) -> Waiting:
    """Return the callbacks for the end of this connection's transaction, and listen for that end."""
    for name, notice in (("begin", _at_begin), ("rollback", _at_rollback)):
        if not sa.event.contains(connection, name, notice):
            sa.event.listen(connection, name, notice)
    if not sa.event.contains(Pool, "checkin", _at_checkin):  # of every pool, because an engine may replace its pool
        sa.event.listen(Pool, "checkin", _at_checkin)
    waiting = connection.info.get(_KEY)
    if waiting is None:
        waiting = connection.info[_KEY] = Waiting(connection)
    return cast("Waiting", waiting)


def _at_session_commit(session: Session) -> None:
    """Call the waiting callbacks after a COMMIT. The release of a savepoint comes here too, but ends no transaction."""
    for connection, waiting in list(session.info.get(_KEY, {}).items()):
        if not connection.in_transaction():
            waiting.call()


def _at_begin(connection: Connection) -> None:
    """Call the callbacks that wait for the previous transaction, because it is over."""
    if _KEY in connection.info:
        connection.info[_KEY].call()


def _at_rollback(connection: Connection) -> None:
    """Forget the waiting callbacks, because the writes are undone. If the connection was lost, keep the callbacks."""
    if not connection.invalidated:
        connection.info.get(_KEY, {}).clear()


def _at_checkin(_: object, entry: ConnectionPoolEntry) -> None:
    """Call the waiting callbacks. After a rollback none is left, so the transaction was committed or lost."""
    waiting = entry.info.pop(_KEY, None)
    if waiting is not None:
        waiting.call()
