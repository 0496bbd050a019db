"""Audit events of a namespace in the order they were recorded: pages for surfaces, and what a feed polls.

A position is the instant, the schedule and the sequence of an event. Transactions commit in another order than they
read the clock, so an event may appear behind a position that was read already; it does so within `SETTLING`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.audit import AuditRecord
from rqsched.core.ids import is_uid
from rqsched.core.page import Page
from rqsched.errors import InvalidInputError
from rqsched.store.listing import to_record
from rqsched.store.pages import PAGE_CHARACTERS, cut_to_size, page_of
from rqsched.store.tables import audit_events, schedules

SETTLING = timedelta(seconds=20)
"""A transaction that records events is over before this: see the limits of a session, and SQLite's busy timeout."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = 253_402_300_799_000_000  # the year 9999
_POSITION = audit_events.c.recorded_at, audit_events.c.schedule_uid, audit_events.c.sequence


class Position(NamedTuple):
    """The place of an event among those of all schedules."""

    recorded_at: datetime
    """When it was recorded."""
    schedule_uid: str
    """The incarnation of its schedule; empty is before all of them."""
    sequence: int
    """Its number in the schedule's history."""

    def __str__(self) -> str:
        return f"{(self.recorded_at - _EPOCH) // _MICROSECOND}.{self.schedule_uid}.{self.sequence}"


def read_position(name: str, text: str) -> Position:
    """Read a position that `str` wrote; raises InvalidInputError, which names the parameter."""
    parts = text.split(".")
    if len(parts) == 3:
        instant, uid, sequence = parts
        is_number = all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (instant, sequence))
        if is_number and is_uid(uid) and int(instant) <= _LAST:
            return Position(_EPOCH + int(instant) * _MICROSECOND, uid, int(sequence))
    raise InvalidInputError(name, "is not the id of an event; pass one that an event of this namespace had")


def before(instant: datetime) -> Position:
    """Return the position before all events of an instant."""
    return Position(instant, "", 0)


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An audit event with the names of its schedule."""

    record: AuditRecord
    """The event."""
    schedule_id: str
    """The id of its schedule."""
    namespace: str
    """The namespace of its schedule."""
    size: int = 0
    """How long its payload is, as text."""

    @property
    def key(self) -> tuple[str, int]:
        """Which event it is."""
        return self.record.schedule_uid, self.record.sequence

    @property
    def position(self) -> Position:
        """Its place among those of all schedules."""
        return Position(self.record.recorded_at, self.record.schedule_uid, self.record.sequence)


def read_after(
    connection: Connection,
    namespaces: Sequence[str],
    position: Position,
    *,
    limit: int,
    event_types: Sequence[str] = (),
    until: datetime | None = None,
) -> Page[FoundEvent]:
    """Read a page of events of some namespaces after a position, in the order of their recording (`cut_to_size`)."""
    bound = [sa.literal(value, column.type) for value, column in zip(position, _POSITION, strict=True)]
    statement = (
        sa.select(audit_events, schedules.c.schedule_id, schedules.c.namespace)
        .join(schedules, schedules.c.uid == audit_events.c.schedule_uid)
        .where(schedules.c.namespace.in_(namespaces), sa.tuple_(*_POSITION) > sa.tuple_(*bound))
    )
    if event_types:
        statement = statement.where(audit_events.c.event_type.in_(event_types))
    if until is not None:
        statement = statement.where(audit_events.c.recorded_at < until)
    statement, cut = cut_to_size(connection, statement.order_by(*_POSITION).limit(limit + 1), PAGE_CHARACTERS)
    rows = connection.execute(statement)
    found = [FoundEvent(to_record(row), row.schedule_id, row.namespace, len(row.payload)) for row in rows]
    return page_of(found, limit, lambda event: str(event.position), cut)
