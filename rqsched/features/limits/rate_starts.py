"""The recorded starts of runs and targets whose group has a rate.

A claim writes the start in its transaction, and grants count the starts. If a worker gives a run back because the
worker lacks the code, the run has not started, and its start is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import limit_starts


class Started(Protocol):
    """A claimed run or target."""

    @property
    def uid(self) -> str:
        """Its uid."""
        ...

    @property
    def limit_group(self) -> str | None:
        """Its group."""
        ...

    @property
    def is_rated(self) -> bool:
        """Whether its group had a rate when it got its place."""
        ...


def count_starts(connection: Connection, started: Iterable[tuple[Started, datetime | None]]) -> None:
    """Write the starts of the runs or targets whose group has a rate. Idempotent."""
    if rows := _rows(started):
        connection.execute(dialect_of(connection).insert(limit_starts).on_conflict_do_nothing(), rows)


def take_back(connection: Connection, started: Iterable[tuple[Started, datetime | None]]) -> None:
    """Remove the starts that `count_starts` wrote, for runs or targets that are given back. Idempotent."""
    if rows := _rows(started):
        connection.execute(_TAKE_BACK, [{f"of_{name}": value for name, value in row.items()} for row in rows])


def _rows(started: Iterable[tuple[Started, datetime | None]]) -> list[dict[str, Any]]:
    return [{"limit_group": one.limit_group, "started_at": at, "uid": one.uid} for one, at in started if one.is_rated]


_TAKE_BACK = sa.delete(limit_starts).where(
    *(column == sa.bindparam(f"of_{column.name}", type_=column.type) for column in limit_starts.c)
)
