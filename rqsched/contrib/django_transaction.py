"""Schedules in Django's own transaction, on PostgreSQL.

>>> from django.db import transaction  # doctest: +SKIP
>>> with transaction.atomic():  # doctest: +SKIP
...     order.save()
...     scheduler.create(f"order-{order.pk}", "remind", Every("1d"), session=in_atomic())

Schedules are written on Django's own connection, so a rollback of the block removes them. They are published in
`transaction.on_commit`. On SQLite, Django's connection cannot be shared. There, call the scheduler in `on_commit`. See
docs/transactions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from rqsched.errors import ConfigError, InvalidInputError
from rqsched.kernel.store.database import Connection, Engine
from rqsched.kernel.store.existing_connection import engine_over

F = TypeVar("F", bound=Callable[[], None])


class InAtomic:
    """The innermost `atomic()` block on one of Django's databases; see `in_atomic`."""

    def __init__(self, using: str) -> None:
        self._using = using

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend Django's connection. Raises ConfigError if it cannot be shared; InvalidInputError outside `atomic()`."""
        django = connections[self._using]
        if django.vendor != "postgresql":
            raise ConfigError(
                f"Django's connection {django.alias!r} is to {django.display_name}, whose transaction cannot be "
                "shared. Call it after the commit: "
                "transaction.on_commit(lambda: scheduler.create(...)), without session."
            )
        if not django.in_atomic_block:
            raise InvalidInputError(
                "session", "is outside of transaction.atomic(); call it in the block, or without session"
            )
        django.validate_no_broken_transaction()
        with _engine(self._using).connect() as connection:
            yield connection

    def when_over(self, connection: Connection, key: object, make: Callable[[], F]) -> F:
        """Register the function from `make`, so that Django calls it after its commit.

        Writes with the same key share one function. Each write registers the function again, because a rollback to a
        savepoint drops the calls that were registered since the savepoint.
        """
        del connection
        waiting = (call for _, call, *_ in connections[self._using].run_on_commit if isinstance(call, _Call))
        known = next((call for call in waiting if call.key is key), None)
        call = known or _Call(key, make())
        transaction.on_commit(call, using=self._using)
        return cast("F", call.publish)


class _Call(NamedTuple):
    """The function that Django calls after its commit, possibly several times."""

    key: object
    publish: Callable[[], None]

    def __call__(self) -> None:
        self.publish()


def in_atomic(using: str = DEFAULT_DB_ALIAS) -> InAtomic:
    """Return a value for the argument `session`, so that an operation joins the `atomic()` block around the call."""
    return InAtomic(using)


@lru_cache
def _engine(using: str) -> Engine:
    def current() -> Any:
        raw = connections[using].connection
        if not type(raw).__module__.startswith("psycopg.") and type(raw).__module__ != "psycopg":
            raise ConfigError("Django uses psycopg2 here; install psycopg 3, which Django prefers.")
        return raw

    return engine_over(current)
