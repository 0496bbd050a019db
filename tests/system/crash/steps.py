"""Steps: every SQL statement, COMMIT and Redis command of one process, counted, and something that happens at one.

This instruments the real drivers and does not replace them: commands go to a real database and a
real Valkey. It is put on in a child process only, after its connections are open.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from redis import Redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from sqlalchemy.engine import Engine
from sqlalchemy.pool import PoolProxiedConnection

from rqsched.kernel.chain.runtime import Runtime
from tests.support.sql import sqlite_error

DIED = 77
"""The exit code of a process that died at its step."""


class Fate(StrEnum):
    """The fate of the process at the step."""

    DIES_BEFORE = "dies before it"
    DIES_AFTER = "dies after it was applied"
    ANSWER_LOST = "loses the answer and goes on"
    NOT_SENT = "loses the connection before it and goes on"
    GOES_ON = "goes on: only others did something meanwhile"


class Kind(StrEnum):
    """The kind of a step."""

    READ = "read"
    """A SELECT, a BEGIN, the COMMIT of a transaction without writes."""
    WRITE = "write"
    COMMIT = "commit"
    REDIS = "redis"
    ASK = "ask"
    """A command that changes nothing in Redis."""

    @property
    def is_read(self) -> bool:
        """Whether SQL and Redis are the same before it and after it."""
        return self in {Kind.READ, Kind.ASK}


FATES = {
    Kind.READ: (Fate.DIES_BEFORE,),
    Kind.WRITE: (Fate.DIES_BEFORE, Fate.NOT_SENT),
    Kind.COMMIT: (Fate.DIES_BEFORE, Fate.NOT_SENT, Fate.DIES_AFTER, Fate.ANSWER_LOST),
    Kind.REDIS: (Fate.DIES_BEFORE, Fate.NOT_SENT, Fate.DIES_AFTER, Fate.ANSWER_LOST),
    Kind.ASK: (Fate.DIES_BEFORE, Fate.NOT_SENT),
}
"""The fates tried at each kind of step. A write without its COMMIT leaves nothing behind, applied or not."""
_ASKING = {
    *("EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HMGET", "LINDEX", "LLEN", "LRANGE", "PING", "PTTL", "SCARD"),
    *("SISMEMBER", "SMEMBERS", "TIME", "TTL", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE", "ZSCORE"),
}


@dataclass(frozen=True)
class Step:
    """One step as it was counted."""

    kind: Kind
    text: str
    logged: int = 0
    """Bytes in the logs of side effects when it was taken."""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"

    @property
    def is_savepoint(self) -> bool:
        """Whether it begins, keeps or undoes a part of a transaction."""
        return "SAVEPOINT" in self.text


def tried_at_the_next(steps: Sequence[Step], at: int) -> set[Fate]:
    """Return the fates that `make test` leaves to the next step, where they have the same result.

    Unless the process does something beside SQL and Redis in between, dying after a step is dying before the next one;
    so is dying before it, when it is a read or a write without its COMMIT, for these leave nothing behind. A connection
    that is lost at the one or at the other of two writes undoes the same transaction.
    """
    if at + 1 == len(steps):
        return set()
    step, following = steps[at : at + 2]
    found = set[Fate]()
    if step.logged == following.logged:
        found.add(Fate.DIES_AFTER)
        if step.kind.is_read or step.kind is Kind.WRITE:
            found.add(Fate.DIES_BEFORE)
    if step.kind is following.kind is Kind.WRITE and not (step.is_savepoint or following.is_savepoint):
        found.add(Fate.NOT_SENT)
    return found


@dataclass
class Steps:
    """The steps of this process so far; at step `at` its `fate` strikes, once."""

    at: int | None = None
    fate: Fate = Fate.DIES_BEFORE
    seen: list[Step] = field(default_factory=list)
    logs: Sequence[Path] = ()
    """The logs of side effects outside SQL and Redis."""
    meanwhile: Callable[[], object] = lambda: None
    """The actions of others just before step `at`."""

    @property
    def was_struck(self) -> bool:
        return self.at is not None and len(self.seen) > self.at

    def strike_nowhere(self) -> None:
        """Let nothing happen at any step from now on."""
        self.at = None

    def take(self, step: Step, apply: Callable[[], Any], fail: Callable[[], None]) -> Any:
        """Count a step and apply it, unless its fate is another; `fail` breaks the connection and raises."""
        number = len(self.seen)
        self.seen.append(replace(step, logged=self._logged()))
        if number != self.at:
            return apply()
        self.meanwhile()
        if self.fate is Fate.GOES_ON:
            return apply()
        if self.fate is Fate.DIES_BEFORE:
            os._exit(DIED)
        if self.fate is Fate.NOT_SENT:
            fail()
        answer = apply()
        if self.fate is Fate.DIES_AFTER:
            os._exit(DIED)
        fail()
        return answer

    def _logged(self) -> int:
        return sum(log.stat().st_size for log in self.logs if log.exists())


def watch(runtime: Runtime, steps: Steps) -> None:
    """Count every step of this process from now on. Connections are opened first, because they are no steps."""
    for redis in (runtime.transport.redis, *runtime.transport.connections.values()):
        _watch_redis(redis, steps)
    runtime.database.read(lambda connection: connection.execute(sa.select(1)))
    watch_sql(runtime.database.engine, steps)


def watch_sql(engine: Engine, steps: Steps) -> None:
    """Count every statement and COMMIT of an engine."""
    transaction = _Transaction()

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        step = transaction.step(statement)
        steps.take(step, lambda: cursor.execute(statement, parameters), lambda: _break(cursor.connection))
        return True  # it is done, SQLAlchemy need not

    def execute_many(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        step = transaction.step(statement, f"{len(parameters)} x ")
        steps.take(step, lambda: cursor.executemany(statement, parameters), lambda: _break(cursor.connection))
        return True

    def execute_plain(cursor: Any, statement: str, context: Any) -> bool:
        return execute(cursor, statement, (), context)

    sa.event.listen(engine, "do_execute", execute)
    sa.event.listen(engine, "do_executemany", execute_many)
    sa.event.listen(engine, "do_execute_no_params", execute_plain)
    commit = engine.dialect.do_commit  # the dialect is this engine's own

    def counted_commit(dbapi_connection: PoolProxiedConnection) -> None:
        steps.take(
            transaction.end(),
            lambda: commit(dbapi_connection),
            lambda: _break(dbapi_connection.dbapi_connection),
        )

    engine.dialect.do_commit = counted_commit  # type: ignore[method-assign]


class _Transaction:
    """Whether the transaction of this process has written yet; it has one at a time."""

    _has_written = False

    def step(self, statement: str, times: str = "") -> Step:
        text = " ".join(statement.split())[:120]
        is_read = text.startswith(("SELECT", "BEGIN"))
        self._has_written = self._has_written or not is_read
        return Step(Kind.READ if is_read else Kind.WRITE, times + text)

    def end(self) -> Step:
        kind = Kind.COMMIT if self._has_written else Kind.READ
        self._has_written = False
        return Step(kind, "COMMIT")


def _break(connection: Any) -> None:
    """Lose the connection as the driver would see it; SQLite has none to lose, its answer is an error of the disk."""
    if isinstance(connection, sqlite3.Connection):
        raise sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR)
    connection.close()
    raise psycopg.OperationalError("server closed the connection unexpectedly")


class _Packed(list[tuple[str, list[bytes]]]):
    """The commands of a pipeline, each with its name and its bytes: they are sent one by one."""


class CountedConnection(Connection):
    """A connection that sends one command at a time and counts it; a pipeline may end after any of its commands."""

    steps: ClassVar[Steps]
    _sock: Any  # redis-py's, where nothing says that it is more than None

    def pack_commands(self, commands: Iterable[Any]) -> Any:
        return _Packed((_name(command), list(self._command_packer.pack(*command))) for command in commands)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not isinstance(command, _Packed):
            super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]
            return
        for index, (name, packed) in enumerate(command):
            self._take(name, packed, unread=index + 1)

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        if self._sock is None or not self._is_ready:
            # The handshake of a new connection.
            super().send_command(*args, **kwargs)  # type: ignore[no-untyped-call]
            return
        self._take(_name(args), list(self._command_packer.pack(*args)), unread=1)

    _is_ready = False

    def on_connect(self) -> None:
        self._is_ready = False
        super().on_connect()  # type: ignore[no-untyped-call]
        self._is_ready = True

    def on_connect_check_health(self, check_health: bool = True) -> None:
        self._is_ready = False
        super().on_connect_check_health(check_health)
        self._is_ready = True

    def _take(self, name: str, packed: list[bytes], *, unread: int) -> None:
        def apply() -> None:
            super(CountedConnection, self).send_packed_command(packed)  # type: ignore[no-untyped-call]
            if len(self.steps.seen) - 1 == self.steps.at and self.steps.fate is not Fate.GOES_ON:
                self._wait_until_applied(unread)

        kind = Kind.ASK if name.split(" ", 1)[0] in _ASKING else Kind.REDIS
        self.steps.take(Step(kind, name), apply, self._lose)

    def _wait_until_applied(self, unread: int) -> None:
        """Read all answers: the server applied a command once it answers. No other code reads these answers."""
        for _ in range(unread):
            try:
                self.read_response()
            except ResponseError:
                continue

    def _lose(self) -> None:
        self.disconnect()  # type: ignore[no-untyped-call]
        raise RedisConnectionError("connection reset by peer")


def _name(command: Any) -> str:
    """Name a command in its first words; the script of an EVALSHA is told by its keys."""
    words = [word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in command]
    return " ".join(words)[:100]


def _watch_redis(redis: Redis, steps: Steps) -> None:
    CountedConnection.steps = Steps()
    redis.connection_pool.connection_class = CountedConnection
    redis.connection_pool.reset()  # the parent's connections are left alone
    redis.ping()
    CountedConnection.steps = steps
