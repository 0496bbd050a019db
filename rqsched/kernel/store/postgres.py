"""Connections to PostgreSQL on which nothing waits for ever: neither this process, nor others for its locks.

The server ends the transactions of a frozen process: each session of ours is opened with limits. A server that has
fallen silent is noticed here: a connection that has brought no answer for `ANSWER_SECONDS` is closed, and its
transaction repeated on another. Connections of an application are never touched.
"""

from __future__ import annotations

import codecs
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
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
"""Returns the identity of the server that a new connection has reached; raises OperationalError to refuse it."""
_Open = Callable[..., "BoundedConnection"]
"""Opens a connection for the event `do_connect` of SQLAlchemy; `kind` may name another class for it."""

CONNECT_SECONDS = 3
"""How long opening a connection may take, for each address of the server; a URL may say otherwise."""
ANSWER_SECONDS = 10.0
"""After so long without a byte from the server a connection is given up. Longer than any limit of the server itself,
so that a server that lives always answers first."""
_ASK_SECONDS = 2.0
"""How long a quiet connection may take to say that it lives: that needs no lock and no work. Processes wait for each
other, who executes for who fires and a horse for its worker: the first may lose `ANSWER_SECONDS`, those after it this,
15 s in all."""
_REFUSED = "startup parameter"
_ENCODING = {"client_encoding": FORMATS["client_encoding"]}
"""An option of its own, which poolers know, too."""
_OF_PSYCOPG = {"autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"}
"""Options of a connection that psycopg takes itself; the others are libpq's."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server does not answer, whatever keeps the network from saying so."""

    answer_seconds: float | None = ANSWER_SECONDS
    """How long one answer may take to come, or to continue; None for ever."""
    quiet_seconds: float = 2.0
    """A connection that has heard nothing for so long is asked whether it lives before it is given a statement."""
    examine: ClassVar[Examine | None] = None
    """Returns the server that it has reached, or refuses that; None to ask nothing."""
    identity: ServerIdentity | None = None
    """The server that it has reached; None where nobody has asked."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what psycopg's connection takes; after an OperationalError psycopg tries the next address of the URL."""
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
        """Return a cursor for a statement; a connection that was quiet has to answer an empty query first.

        SQLAlchemy handles an error here as one of the statement, and a closed connection as a lost one. Other methods
        that wait may be called outside of that handling, such as the setters of psycopg, which send nothing.
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
        except BaseException:  # also one that a signal raises: an answer that nobody reads must not be the next one's
            self.pgconn.finish()
            raise
        if self.closed:  # the server's reason came as the answer
            reasons = [result.error_message.decode(errors="replace") for result in results]
            raise psycopg.OperationalError("".join(reasons) or "the server has ended the connection")

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait as psycopg does, but not for ever."""
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
    """Escape characters as JSON does, so that JSON stays what it was."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("rqsched_json", _escape_as_json)


def escape_texts(raw: psycopg.Connection[Any]) -> None:
    """Let a connection escape what the encoding of its database cannot store; UTF8 stores every text."""
    name = raw.info.parameter_status("server_encoding") or "UTF8"
    if name in {"UTF8", "SQL_ASCII"}:  # the latter stores any bytes
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
    """A connection to a pooler of transactions: whatever it is asked waits for a session that is free, like a lock."""

    quiet_seconds = math.inf


class _Description(Sequence[Any]):
    """Columns of a result by name and type alone, and once they are asked for.

    SQLAlchemy only asks whether there are any when it has met their statement before.
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
    """A cursor that describes its columns no further than SQLAlchemy reads."""

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
    """Open an engine whose connections are bounded; none is made before it is used.

    `examine` is called with each new connection. `newest` returns the newest server that is known, and is called only
    where the URL names several hosts: a connection to an earlier timeline is then replaced by one to another host that
    has a later timeline.

    A pooler that `pools_transactions` gives a session for one transaction only. So the first statement of each
    transaction sets its limits, and no statement is prepared: the next transaction would look for it in another
    session.

    Raises ConfigError for an option with which no connection can be made; its message calls the URL as `named`.
    """
    engine = sa.create_engine(
        url, pool_size=5, max_overflow=20, pool_pre_ping=False, pool_recycle=1800, hide_parameters=True,
        use_native_hstore=False,  # else each process asks the server about a type that no table of ours has
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
    """Let the next transaction be what the server allows.

    After a snapshot SQLAlchemy sets `read_only` to False: psycopg would begin the next one as READ WRITE, which a
    standby refuses as a feature that it lacks, and not as the write that it cannot do.
    """
    if raw is not None and not raw.closed and raw.read_only is not None:
        raw.read_only = None


def _examined_by(examine: Examine | None, kind: type[BoundedConnection]) -> type[BoundedConnection]:
    return type(kind.__name__, (kind,), {"examine": None if examine is None else staticmethod(examine)})


def _to_newest(
    opened: _Open, examine: Examine, kind: type[BoundedConnection], newest: Callable[[], ServerIdentity | None]
) -> _Open:
    """Return what opens each connection to the newest server that the hosts of the URL have."""

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
    escape_texts(raw)  # not before: psycopg gives it its adapters last
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
    """Return what opens the connections of one engine; it remembers that start-up options are refused."""
    is_limited = True

    def opened(
        dialect: Any, record: Any, args: Any, options: dict[str, Any], *, kind: type[BoundedConnection] = usual
    ) -> BoundedConnection:
        nonlocal is_limited
        del dialect, record
        plain = {"connect_timeout": CONNECT_SECONDS, "cursor_factory": _PlainCursor, **options, **_ENCODING}
        if is_limited:
            # Limits of the URL or the environment come last and win; the formats are fixed, as we parse them.
            limits, formats = (_as_options(those) for those in (SESSION, FORMATS))
            others = options.get("options") or os.environ.get("PGOPTIONS", "")
            try:
                own = {**plain, "options": f"{limits} {others} {formats}"}
                return _connect(kind, args, **own)
            except psycopg.OperationalError as error:
                if _REFUSED not in str(error):
                    raise
                is_limited = False
                _log.warning(
                    "a pooler refuses start-up options (%s): set RQSCHED_DATABASE_POOLER=transaction if it pools "
                    "transactions, else %s for the role, or what a frozen process has locked stays locked until it "
                    "wakes",
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


def _as_options(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())
