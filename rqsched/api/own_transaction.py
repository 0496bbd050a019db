"""What a caller passes to have an operation written in a transaction of its own: `connection=` or `session=`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rqsched.core.schedule_options import CommonOptions
from rqsched.store.callers import CallersTransaction, ConnectionLike, SessionLike, callers_transaction, is_async

__all__ = [
    "CallersTransaction",
    "ConnectionLike",
    "SessionLike",
    "WritingOptions",
    "callers_transaction",
    "is_async",
    "told_apart",
]


class WritingOptions(CommonOptions, total=False):
    """The options of a schedule, with which a caller's own transaction can be given."""

    connection: str | ConnectionLike | None
    """A name: the named Redis of its runs. A SQLAlchemy Connection: the transaction in which this is written."""


def told_apart(
    options: Mapping[str, Any], session: SessionLike | None
) -> tuple[CallersTransaction | None, dict[str, Any]]:
    """Return the caller's transaction, if one is given, and the options without it."""
    given = options.get("connection")
    if given is None or isinstance(given, str):
        return callers_transaction(None, session), dict(options)
    return callers_transaction(given, session), {name: value for name, value in options.items() if name != "connection"}
