"""What a caller passes to have an operation written in a transaction of its own: `connection=` or `session=`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rqsched.core.option_table import CommonOptions
from rqsched.store.caller_transaction import (
    CallerTransaction,
    ConnectionLike,
    SessionLike,
    caller_transaction,
    is_async,
)

__all__ = [
    "CallerTransaction",
    "ConnectionLike",
    "SessionLike",
    "WritingOptions",
    "caller_transaction",
    "is_async",
    "split_transaction",
]


class WritingOptions(CommonOptions, total=False):
    """The options of a schedule, with which a caller's own transaction can be given."""

    connection: str | ConnectionLike | None
    """A name: the named Redis of its runs. A SQLAlchemy Connection: the transaction in which this is written."""


def split_transaction(
    options: Mapping[str, Any], session: SessionLike | None
) -> tuple[CallerTransaction | None, dict[str, Any]]:
    """Return the caller's transaction, if one is given, and the options without it."""
    given = options.get("connection")
    if given is None or isinstance(given, str):
        return caller_transaction(None, session), dict(options)
    return caller_transaction(given, session), {name: value for name, value in options.items() if name != "connection"}
