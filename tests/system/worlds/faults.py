"""Faults between two steps: answers get lost, processes die, and others act in between. All come from one seed."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from random import Random
from typing import TypeVar

import sqlalchemy as sa
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from sqlalchemy.engine import Connection

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.store.database import Database
from tests.support.sql import sqlite_error

T = TypeVar("T")
DEEPEST = 2
"""So many operations may be in the middle of something at once, beside the outermost one."""


class Crash(BaseException):
    """The acting process died here; no `except Exception` sees it."""


class Faults:
    """Draws the fault at each point between two steps of an operation."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.is_on = True
        self.interrupt: Callable[[], None] = lambda: None
        """Lets another actor do a whole operation right here."""
        self._depth = 0

    def happens(self, chance: float) -> bool:
        return self.is_on and self.random.random() < chance

    def between_steps(self) -> None:
        """A point where a process may die or be overtaken by another one."""
        if self.happens(0.012):
            raise Crash
        if self._depth < DEEPEST and self.happens(0.03):
            self._depth += 1
            try:
                self.interrupt()
            finally:
                self._depth -= 1

    def sql(self) -> None:
        """A point where the database may not answer."""
        if self.happens(0.012):
            raise sa.exc.OperationalError("COMMIT", {}, sqlite_error("database is locked", sqlite3.SQLITE_BUSY))

    def redis(self) -> None:
        """A point where Redis may not answer."""
        if self.happens(0.02):
            raise RedisConnectionError("the network is gone")


class FaultyDatabase(Database):
    """The real database, reached over a connection that breaks before and after commits."""

    faults: Faults

    def _once(self, work: Callable[[Connection], T], *, is_read_only: bool = False, is_alone: bool = False) -> T:
        self.faults.between_steps()
        self.faults.sql()
        if is_read_only:
            return self._on(self._reader, work)

        def spoilt(connection: Connection) -> T:
            result = work(connection)
            self.faults.sql()
            return result

        result = self._on(self._writer, spoilt)
        self.faults.sql()
        self.faults.between_steps()
        return result

    # One actor acts at a time, and connecting costs as much as what most transactions do.

    @cached_property
    def _reader(self) -> Connection:
        return self.engine.connect().execution_options(**self.dialect.snapshot)

    @cached_property
    def _writer(self) -> Connection:
        return self.engine.connect()

    @staticmethod
    def _on(connection: Connection, work: Callable[[Connection], T]) -> T:
        with connection.begin():
            return work(connection)


class _Listener(logging.Handler):
    """Keeps the errors the package logged and went on from, those of the faulty backends apart."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        logged = record.exc_info[1] if record.exc_info else None
        arguments = record.args if isinstance(record.args, tuple) else ()
        errors = [error for error in (logged, *arguments) if isinstance(error, BaseException)]
        self.errors += [error for error in errors if not isinstance(error, RedisError | BackendUnavailableError)]


@contextmanager
def swallowed_errors() -> Iterator[list[BaseException]]:
    """The errors in the block that are bugs: an `except Exception` that keeps a chain going must not hide them."""
    logger, listener = logging.getLogger("rqsched"), _Listener()
    was_propagating, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield listener.errors
    finally:
        logger.removeHandler(listener)
        logger.propagate = was_propagating
