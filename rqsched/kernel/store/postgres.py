"""Connections to PostgreSQL that limit how long this process waits for an answer, and how long others wait for its
locks.

Each of our sessions has time limits, so the server ends the transactions of a stalled process. If the server falls
silent, this module notices: it closes a connection after `ANSWER_SECONDS` without an answer, and the transaction is
repeated on another connection. Connections that the application opened are never changed.
"""

from __future__ import annotations

import codecs
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar, TypeVar, cast

import psycopg
import sqlalchemy as sa
from psycopg import _encodings, generators
from psycopg.abc import Buffer, PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.string import StrDumperUnknown
from sqlalchemy.engine import Engine

from rqsched.errors import ConfigError
from rqsched.kernel.store.dialect import FORMATS, SESSION, limit_transaction, settings_of_session
from rqsched.kernel.store.server_identity import ServerIdentity

_log = logging.getLogger(__name__)

T = TypeVar("T")
Examine = Callable[["BoundedConnection"], ServerIdentity]
"""Returns the identity of the server that a new connection reached; raises OperationalError to refuse the server."""
_Open = Callable[..., "BoundedConnection"]
"""Opens a connection for SQLAlchemy's event `do_connect`. `kind` replaces the usual class of the connection."""

CONNECT_SECONDS = 3
"""How many seconds a connection to one address of the server may take to open; the URL may set another limit."""
ANSWER_SECONDS = 10.0
"""After this many seconds without a byte from the server a connection is closed. Every time limit of the server is
shorter, so a server that is alive always answers in time."""
_ASK_SECONDS = 2.0
"""How many seconds the server may take to answer an empty query, which needs no lock and no work.

Processes may wait for each other in a row. For example, a work horse (the process that RQ forks for a job) waits for
its worker. The first process may lose `ANSWER_SECONDS`, and each other process only this time, so that they lose at
most 15 s in all.
"""
_REFUSED = "startup parameter"
_ENCODING = {"client_encoding": FORMATS["client_encoding"]}
"""A start-up option that poolers accept too, unlike `options`."""
_OF_PSYCOPG = {"autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"}
"""The connection options that psycopg reads itself; all others are libpq's."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server does not answer, even if the network reports no error."""

    answer_seconds: float | None = ANSWER_SECONDS
    """How many seconds the server may take to begin an answer, or to continue it; None for no limit."""
    quiet_seconds: float = 2.0
    """After this many seconds without a byte from the server the connection is tested before its next statement."""
    examine: ClassVar[Examine | None] = None
    """Returns the identity of the server, or refuses the server; None to ask nothing."""
    identity: ServerIdentity | None = None
    """The identity of the server; None if there is no `examine`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of psycopg's connection.

        If `examine` raises an OperationalError, psycopg tries the next address of the URL.
        """
        super().__init__(*args, **options)
        self._heard_at = monotonic()
        examine = type(self).examine
        if examine is None:
            return
        try:
            self.identity = examine(self)
        except BaseException:
            self.pgconn.finish()
            raise

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Return a cursor for a statement. A connection that was quiet must first answer an empty query.

        SQLAlchemy handles an error of this method as an error of the statement, and a closed connection as a lost one.
        The test is not in other methods, because SQLAlchemy may call those outside of this handling.
        """
        is_quiet = monotonic() - self._heard_at > self.quiet_seconds
        if is_quiet and self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._require_answer()
        return super().cursor(*args, **options)

    def _require_answer(self) -> None:
        try:
            with self.lock:
                self.pgconn.send_query(b"")
                results = super().wait(self._bounded(generators.execute(self.pgconn), _ASK_SECONDS))
        except BaseException:  # also from a signal handler: the next statement must not get the answer to this one
            self.pgconn.finish()
            raise
        if self.closed:  # the server has sent a reason instead of an answer
            reasons = [result.error_message.decode(errors="replace") for result in results]
            raise psycopg.OperationalError("".join(reasons) or "the server has ended the connection")

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait as psycopg does, but at most `answer_seconds` for each part of the answer."""
        seconds = math.inf if self.answer_seconds is None else self.answer_seconds
        return super().wait(self._bounded(gen, seconds), *args, **options)

    def _bounded(self, gen: PQGen[T], seconds: float) -> PQGen[T]:
        heard_at = monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = self._heard_at = monotonic()
                elif monotonic() - heard_at >= seconds:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer for {seconds:g} s: the connection is closed")
                wanted = gen.send(ready)
        except StopIteration as end:
            return cast("T", end.value)


def _escape_as_json(error: UnicodeError) -> tuple[str, int]:
    """Use JSON escapes for characters that cannot be encoded, so that a JSON text keeps its meaning."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("rqsched_json", _escape_as_json)


def escape_texts(raw: psycopg.Connection[Any]) -> None:
    """Let a connection escape characters that the encoding of its database cannot store; UTF8 can store all."""
    name = raw.info.parameter_status("server_encoding") or "UTF8"
    if name in {"UTF8", "SQL_ASCII"}:  # SQL_ASCII stores any bytes
        return
    try:
        encoding = _encodings.pg2pyenc(name.encode())
    except psycopg.NotSupportedError:
        encoding = "ascii"

    class Escaped(StrDumperUnknown):
        def dump(self, obj: str) -> Buffer | None:
            return super().dump(obj.encode(encoding, "rqsched_json").decode(encoding))

    raw.adapters.register_dumper(str, Escaped)


class _PooledConnection(BoundedConnection):
    """A connection to a pooler in transaction mode.

    It is never tested, because an empty query would wait for a session.
    """

    quiet_seconds = math.inf


class _Description(Sequence[Any]):
    """The columns of a result. They have only names and types, and are built when they are first read.

    For a statement that is in its cache, SQLAlchemy only asks whether the result has columns.
    """

    def __init__(self, result: PGresult) -> None:
        self._result = result

    def __len__(self) -> int:
        return self._result.nfields

    @cached_property
    def _columns(self) -> list[Any]:
        found = self._result
        names = [(found.fname(at) or b"").decode() for at in range(found.nfields)]
        return [(name, found.ftype(at), None, None, None, None, None) for at, name in enumerate(names)]

    def __getitem__(self, at: Any) -> Any:
        return self._columns[at]


class _PlainCursor(psycopg.Cursor[Any]):
    """A cursor whose `description` has only what SQLAlchemy reads."""

    @property
    def description(self) -> Any:
        """The description of the columns as in DB-API; None without a result."""
        found = self.pgresult
        return _Description(found) if found is not None and found.nfields else super().description


def make_engine(
    url: str,
    *,
    pools_transactions: bool = False,
    named: str = "RQSCHED_DATABASE_URL",
    examine: Examine | None = None,
    newest: Callable[[], ServerIdentity | None] = lambda: None,
) -> Engine:
    """Return an engine of `BoundedConnection`s. It opens no connection before its first use.

    `examine` is called with each new connection. `newest` returns the newest server that is known. `newest` is called
    only if the URL names several hosts. If a connection has reached a server on an earlier timeline than `newest`, it
    is replaced by a connection to a host on a later timeline.

    A pooler in transaction mode (`pools_transactions`) gives each transaction its own session. So the first statement
    of each transaction sets the time limits. No statement is prepared, because the next transaction would look for it
    in another session.

    Raises ConfigError for an option that libpq does not know. `named` is the name of the URL in the message.
    """
    engine = sa.create_engine(
        url, pool_size=5, max_overflow=20, pool_pre_ping=False, pool_recycle=1800, hide_parameters=True,
        use_native_hstore=False,  # otherwise each process asks the server for a type that none of our tables has
    )  # fmt: skip
    _require_known_options(engine, named)
    if pools_transactions:
        sa.event.listen(engine, "begin", limit_transaction)
    kind = _examined_by(examine, _PooledConnection if pools_transactions else BoundedConnection)
    opened = _opener_for_pooler(kind) if pools_transactions else _opener(kind)
    options = engine.dialect.create_connect_args(engine.url)[1]
    if examine is not None and "," in str(options.get("host") or os.environ.get("PGHOST", "")):
        opened = _to_newest(opened, examine, kind, newest)
    sa.event.listen(engine, "do_connect", opened)
    sa.event.listen(engine, "checkin", _ask_for_no_mode)
    return engine


def _ask_for_no_mode(raw: psycopg.Connection[Any] | None, *_: object) -> None:
    """Let the server choose whether the connection's next transaction may write.

    After a snapshot SQLAlchemy sets `read_only` to False, so psycopg would begin the next transaction as READ WRITE. A
    standby refuses that as an unsupported feature, and not as a write to a read-only server.
    """
    if raw is not None and not raw.closed and raw.read_only is not None:
        raw.read_only = None


def _examined_by(examine: Examine | None, kind: type[BoundedConnection]) -> type[BoundedConnection]:
    return type(kind.__name__, (kind,), {"examine": None if examine is None else staticmethod(examine)})


def _to_newest(
    opened: _Open, examine: Examine, kind: type[BoundedConnection], newest: Callable[[], ServerIdentity | None]
) -> _Open:
    """Return a function that opens each connection to the newest server among the URL's hosts."""

    def connect(*asked: Any) -> BoundedConnection:
        found, known = opened(*asked), newest()

        def later_than_found(raw: BoundedConnection) -> ServerIdentity:
            identity = examine(raw)
            if found.identity is None or not found.identity.is_before(identity):
                raise psycopg.OperationalError(f"server {identity} is not newer than {found.identity}")
            return identity

        while found.identity is not None and (known is None or found.identity.is_before(known)):
            try:
                later = opened(*asked, kind=_examined_by(later_than_found, kind))
            except psycopg.OperationalError:
                break  # no other host that answers is newer
            found.close()
            found = later
        return found

    return connect


def _connect(kind: type[BoundedConnection], args: Any, **options: Any) -> BoundedConnection:
    raw = kind.connect(*args, **options)
    escape_texts(raw)  # after `connect`, which sets the adapters last
    return raw


def _opener_for_pooler(usual: type[BoundedConnection]) -> _Open:
    def opened(
        dialect: Any, record: Any, args: Any, options: dict[str, Any], *, kind: type[BoundedConnection] = usual
    ) -> BoundedConnection:
        del dialect, record
        return _connect(
            kind, args, **{"connect_timeout": CONNECT_SECONDS, "prepare_threshold": None, **options, **_ENCODING}
        )

    return opened


def _require_known_options(engine: Engine, named: str) -> None:
    options = engine.dialect.create_connect_args(engine.url)[1]
    try:
        make_conninfo("", **{name: value for name, value in options.items() if name not in _OF_PSYCOPG})
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            f"{named} cannot be used: {str(error).strip()}; write the options of libpq behind ?, such as "
            "sslmode=require."
        ) from None


def _opener(usual: type[BoundedConnection]) -> _Open:
    """Return a function that opens an engine's connections. It remembers when a pooler refuses start-up options."""
    is_limited = True

    def opened(
        dialect: Any, record: Any, args: Any, options: dict[str, Any], *, kind: type[BoundedConnection] = usual
    ) -> BoundedConnection:
        nonlocal is_limited
        del dialect, record
        plain = {"connect_timeout": CONNECT_SECONDS, "cursor_factory": _PlainCursor, **options, **_ENCODING}
        if is_limited:
            # A later option wins: the URL or the environment may replace our limits, but not the formats that we parse.
            limits, formats = (
                " ".join(f"-c {name}={value}" for name, value in those.items()) for those in (SESSION, FORMATS)
            )
            others = options.get("options") or os.environ.get("PGOPTIONS", "")
            try:
                own = {**plain, "options": f"{limits} {others} {formats}"}
                return _connect(kind, args, **own)
            except psycopg.OperationalError as error:
                if _REFUSED not in str(error):
                    raise
                is_limited = False
                _log.warning(
                    "a pooler refuses start-up options (%s), so the locks of a stalled process last until it goes on. "
                    "If the pooler pools transactions, set RQSCHED_DATABASE_POOLER=transaction, else %s for the role",
                    str(error).partition("\n")[0],
                    ", ".join(SESSION),
                    extra={"action": "session_unlimited"},
                )
        raw = _connect(kind, args, **plain)
        raw.autocommit = True
        raw.execute(settings_of_session(FORMATS, is_local=False))
        raw.autocommit = False
        return raw

    return opened
