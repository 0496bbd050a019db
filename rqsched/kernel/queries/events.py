"""Audit events: the history of one schedule, and the events of all schedules in the order in which they were recorded.

A position is the instant, the schedule and the sequence of an event. Transactions may read the clock in one order and
commit in another. So an event may appear before a position that was already read, but only within `SETTLING`. A
*requested* event records who requested an operation, or why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.kernel.decide.audit import (
    COMPLETED,
    DELETED,
    DIED,
    MISSED,
    PAUSED,
    RUN_RETRY_REQUESTED,
    SKIPPED,
    UPDATED,
    AuditRecord,
)
from rqsched.kernel.decide.ids import is_uid
from rqsched.kernel.decide.model import Run, Schedule
from rqsched.kernel.decide.results import Page
from rqsched.kernel.queries.pages import PAGE_CHARACTERS, bound_to, cut_to_size, page_of
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.tables import (
    IS_ASKED,
    IS_BACKFILLED,
    audit_events,
    incarnations,
    of_schedule,
    runs,
    schedules,
)


def require_sequence(after_sequence: int) -> int:
    """Check where a page of audit events starts; raises InvalidLimitError."""
    if isinstance(after_sequence, bool) or not isinstance(after_sequence, int) or not 0 <= after_sequence < 2**63:
        raise InvalidLimitError("after_sequence", "must be a whole number from 0, such as the last sequence you have")
    return after_sequence


def history(
    connection: Connection, schedule_uid: str, *, limit: int, after_sequence: int, most: int | None = None
) -> Page[AuditRecord]:
    """Read a page of a schedule's events in order, after a sequence, of at most `most` characters (`cut_to_size`)."""
    is_after = audit_events.c.schedule_uid == schedule_uid, audit_events.c.sequence > after_sequence
    statement = sa.select(audit_events).where(*is_after).order_by(audit_events.c.sequence)
    statement, cut = cut_to_size(connection, statement.limit(limit + 1), most)
    found = [to_record(row) for row in connection.execute(statement)]
    return page_of(found, limit, lambda event: str(event.sequence), cut)


def to_record(row: sa.Row[Any]) -> AuditRecord:
    """Read an audit event from a row of its table."""
    return AuditRecord(
        row.schedule_uid,
        row.sequence,
        row.event_type,
        json.loads(row.payload),
        row.workflow_instance_id,
        row.workflow_run_id,
        row.recorded_at,
    )


def newest_events(
    connection: Connection, schedule_uid: str, before: int | None, limit: int, among: int
) -> list[AuditRecord]:
    """Read audit events of a schedule, newest first; with `before`, only events before that sequence.

    Only the newest `among` of these events are searched. Events of backfilled runs are left out.
    """
    statement = _newest_of(schedule_uid)
    if before is not None:
        statement = statement.where(audit_events.c.sequence < before)
    events = statement.limit(among).subquery()
    live = (
        sa.select(events)
        .outerjoin(runs, runs.c.uid == events.c.workflow_run_id)
        .where(runs.c.uid.is_(None) | ~IS_BACKFILLED)
        .order_by(events.c.sequence.desc())
    )
    return [to_record(row) for row in connection.execute(live.limit(limit))]


def newest_stops(connection: Connection, found: Iterable[Schedule], among: int) -> dict[str, AuditRecord]:
    """Read the newest event that paused or ended each schedule, by the schedule's uid.

    Only the newest `among` events of a schedule are searched.
    """
    stops = _newest_of_each(connection, _stops, found, among, {})
    return {one.schedule_uid: one for one in sorted(stops, key=lambda stop: stop.sequence)}


@lru_cache(maxsize=2)
def _stops(dialect: Dialect) -> sa.Select[Any]:
    return _of_ranges(dialect, audit_events.c.event_type.in_([PAUSED, COMPLETED, DIED, DELETED]))


def _of_ranges(dialect: Dialect, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select the events in the ranges of sequences that `given_ranges` binds."""
    statement = sa.select(audit_events).where(*conditions)
    return dialect.of_ranges(statement, audit_events.c.schedule_uid, audit_events.c.sequence)


def _newest_of_each(
    connection: Connection,
    select: Callable[[Dialect], sa.Select[Any]],
    found: Iterable[Schedule],
    count: int,
    given: Mapping[str, Any],
) -> list[AuditRecord]:
    """Read events among the `count` newest of each schedule. The number of its newest event is in the schedule."""
    dialect = dialect_of(connection)
    ranges = [(one.uid, one.event_sequence - count, one.event_sequence) for one in found]
    rows = connection.execute(select(dialect), {**dialect.given_ranges(ranges), **given}) if ranges else ()
    return [to_record(row) for row in rows]


def events_of_run(connection: Connection, schedule_uid: str, run_uid: str, limit: int) -> list[AuditRecord]:
    """Read the audit events of a schedule that are about one run, in order."""
    columns = audit_events.c
    statement = (
        sa.select(audit_events)
        .where(columns.schedule_uid == schedule_uid, columns.workflow_run_id == run_uid)
        .order_by(columns.sequence)
        .limit(limit)
    )
    return [to_record(row) for row in connection.execute(statement)]


def retried_since(connection: Connection, found: Sequence[Run], start: datetime) -> set[str]:
    """Return the uids of those runs for which somebody requested a retry at `start` or later.

    The events are read along the index of times from `start` on. A database that uses the index of schedule uids would
    read the whole history of the schedules. The concatenation prevents the use of this index.
    """
    columns = audit_events.c
    statement = sa.select(columns.workflow_run_id).where(
        columns.schedule_uid.concat("").in_({run.schedule_uid for run in found}),
        columns.workflow_run_id.in_([run.uid for run in found]),
        columns.event_type == RUN_RETRY_REQUESTED,
        columns.recorded_at >= start,
    )
    return {*connection.execute(statement).scalars()} if found else set()


def sequence_at(connection: Connection, schedule_uid: str, instant: datetime, *, newest: int) -> int:
    """Return the sequence of a schedule's newest event that was recorded by an instant; 0 if there is none.

    `newest` is the sequence of the schedule's newest event. This is a binary search, so it reads few rows even in a
    long history.
    """
    low, high = 0, newest
    columns = sa.select(audit_events.c.sequence, audit_events.c.recorded_at)
    while low < high:
        middle = (low + high + 1) // 2
        is_kept = audit_events.c.schedule_uid == schedule_uid, audit_events.c.sequence >= middle
        row = connection.execute(columns.where(*is_kept).order_by(audit_events.c.sequence).limit(1)).first()
        if row is not None and row.recorded_at <= instant:
            low = row.sequence
        else:
            high = middle - 1
    return low


def newest_of_types(
    connection: Connection, schedule_uid: str, types: Sequence[str], up_to: int, count: int
) -> AuditRecord | None:
    """Read a schedule's newest event of some types, among the `count` newest events up to the sequence `up_to`."""
    among = _newest_of(schedule_uid).where(audit_events.c.sequence <= up_to).limit(count).subquery()
    found = sa.select(among).where(among.c.event_type.in_(types)).order_by(among.c.sequence.desc()).limit(1)
    row = connection.execute(found).first()
    return None if row is None else to_record(row)


def next_of_types(
    connection: Connection, schedule_uid: str, types: Sequence[str], after: int, count: int
) -> list[AuditRecord]:
    """Read the events of some types among the `count` events after a sequence, in order."""
    mine = audit_events.c.schedule_uid == schedule_uid, audit_events.c.sequence > after
    among = sa.select(audit_events).where(*mine).order_by(audit_events.c.sequence).limit(count).subquery()
    found = sa.select(among).where(among.c.event_type.in_(types)).order_by(among.c.sequence)
    return [to_record(row) for row in connection.execute(found)]


def edits_after(connection: Connection, schedule_uid: str, sequence: int, count: int) -> list[AuditRecord]:
    """Read the edits among the `count` events of a schedule after a sequence number, in order."""
    return next_of_types(connection, schedule_uid, (UPDATED,), sequence, count)


def oldest_event(connection: Connection, schedule_uid: str) -> AuditRecord | None:
    """Read a schedule's oldest event that is still stored."""
    return next(iter(history(connection, schedule_uid, limit=1, after_sequence=0).items), None)


def skips_since(connection: Connection, found: Iterable[Schedule], start: datetime, count: int) -> list[AuditRecord]:
    """Read the skips and misses since `start`, those of a schedule newest first.

    Only the `count` newest events of each schedule are searched.
    """
    skips = _newest_of_each(connection, _skips, found, count, {"since": start})
    return sorted(skips, key=lambda skip: skip.sequence, reverse=True)


@lru_cache(maxsize=2)
def _skips(dialect: Dialect) -> sa.Select[Any]:
    since = audit_events.c.recorded_at >= sa.bindparam("since", type_=audit_events.c.recorded_at.type)
    return _of_ranges(dialect, audit_events.c.event_type.in_([SKIPPED, MISSED]), since)


def newest_skips(connection: Connection, schedule_uid: str, count: int, limit: int) -> list[AuditRecord]:
    """Read the skips and misses of a schedule, newest first. Only its `count` newest events are searched."""
    among = _newest_of(schedule_uid).limit(count).subquery()
    statement = sa.select(among).where(among.c.event_type.in_([SKIPPED, MISSED])).order_by(among.c.sequence.desc())
    return [to_record(row) for row in connection.execute(statement.limit(limit))]


def _newest_of(uid: str) -> sa.Select[Any]:
    columns = audit_events.c
    return sa.select(audit_events).where(columns.schedule_uid == uid).order_by(columns.sequence.desc())


SETTLING = timedelta(seconds=20)
"""A transaction that records events takes at most this long. The limits are the timeouts of our sessions, and SQLite's
busy timeout."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = 253_402_300_799_000_000  # the year 9999
_POSITION = audit_events.c.recorded_at, audit_events.c.schedule_uid, audit_events.c.sequence


class Position(NamedTuple):
    """The place of an event among the events of all schedules."""

    recorded_at: datetime
    """When the event was recorded."""
    schedule_uid: str
    """The uid of the event's schedule. An empty uid is a place before all schedules."""
    sequence: int
    """The number of the event in the schedule's history."""

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


def position_before(instant: datetime) -> Position:
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
    """The length of its payload as text."""

    @property
    def key(self) -> tuple[str, int]:
        """The key of the event: its schedule's uid and its sequence."""
        return self.record.schedule_uid, self.record.sequence

    @property
    def position(self) -> Position:
        """Its place among the events of all schedules."""
        return Position(self.record.recorded_at, self.record.schedule_uid, self.record.sequence)


def read_after(
    connection: Connection,
    namespaces: Sequence[str],
    position: Position,
    *,
    limit: int,
    event_types: Sequence[str] = (),
    until: datetime | None = None,
    principal: str | None = None,
) -> Page[FoundEvent]:
    """Read a page of events of some namespaces after a position, in the order of their recording (`cut_to_size`).

    `principal` is a part of the actor's name. If it is given, a page searches at most MOST_LOOKED_AT requested events.
    Then a page may be short or empty although another page follows.
    """
    namespace = dialect_of(connection).unindexed(schedules.c.namespace)  # otherwise SQLite begins with all schedules
    statement = (
        sa.select(audit_events, schedules.c.schedule_id, schedules.c.namespace)
        .join(schedules, schedules.c.uid == audit_events.c.schedule_uid)
        .where(namespace.in_(namespaces), sa.tuple_(*_POSITION) > bound_to(_POSITION, position))
    )
    if event_types:
        statement = statement.where(audit_events.c.event_type.in_(event_types))
    if until is not None:
        statement = statement.where(audit_events.c.recorded_at < until)
    last = None
    if principal is not None:
        among = IS_ASKED, sa.tuple_(*_POSITION) > bound_to(_POSITION, position)
        looked_at = sa.select(*_POSITION).where(*among).order_by(*_POSITION).offset(MOST_LOOKED_AT - 1).limit(1)
        last = connection.execute(looked_at).first()
        statement = statement.where(IS_ASKED, _is_of(dialect_of(connection), principal))
        statement = statement if last is None else statement.where(sa.tuple_(*_POSITION) <= bound_to(_POSITION, last))
    statement, cut = cut_to_size(connection, statement.order_by(*_POSITION).limit(limit + 1), PAGE_CHARACTERS)
    rows = connection.execute(statement)
    found = [FoundEvent(to_record(row), row.schedule_id, row.namespace, len(row.payload)) for row in rows]
    page = page_of(found, limit, lambda event: str(event.position), cut)
    return page if page.next_cursor is not None or last is None else Page(page.items, str(Position(*last)))


def _is_of(dialect: Dialect, principal: str) -> sa.ColumnElement[bool]:
    """Return the condition that the name of the principal contains the given text, in upper or lower case."""
    payload = audit_events.c.payload
    is_named = dialect.text_at(payload, "command_context", "principal").icontains(principal, autoescape=True)
    if not (principal.isascii() and principal.isprintable()) or {'"', "\\"} & {*principal}:
        return is_named
    return payload.icontains(principal, autoescape=True) & is_named  # compare texts first, to parse few payloads


MOST_LOOKED_AT = 5_000
"""How many events one page searches at most."""


class AskedFilters(NamedTuple):
    """The filters of a list of requested events; an event must match each filter that is given."""

    namespace: str
    """The namespace of their schedules."""
    principal: str | None = None
    """A part of the actor's name, in upper or lower case; None for any actor."""
    event_type: str | None = None
    """The type of the event; None for any."""
    schedule_id: str | None = None
    """The id of the schedules, deleted ones included; None for any."""
    since: datetime | None = None
    """Recorded at this instant or later; None for any time."""
    until: datetime | None = None
    """Recorded before this instant; None for any time."""


class FoundEvents(NamedTuple):
    """A page of events, newest first."""

    items: list[FoundEvent]
    """The events."""
    following: Position | None
    """The place before which the next page begins; None after the last page."""
    is_cut: bool
    """Whether the page ended because it has searched as many events as it may. Such a page may be short or empty."""


def search_asked(
    connection: Connection,
    filters: AskedFilters,
    *,
    before: Position | None,
    limit: int,
    most_looked_at: int = MOST_LOOKED_AT,
) -> FoundEvents:
    """Read a page of requested events, newest first. An index has only such events."""
    events = audit_events.c
    within: list[sa.ColumnElement[bool]] = [IS_ASKED]
    within += [] if filters.since is None else [events.recorded_at >= filters.since]
    within += [] if filters.until is None else [events.recorded_at < filters.until]
    within += [] if before is None else [sa.tuple_(*_POSITION) < bound_to(_POSITION, before)]
    order = [column.desc() for column in _POSITION]
    looked_at = sa.select(*_POSITION).where(*within).order_by(*order).offset(most_looked_at - 1).limit(1)
    last = connection.execute(looked_at).first()
    if last is not None:
        within.append(sa.tuple_(*_POSITION) >= bound_to(_POSITION, last))
    wanted = [of_schedule(schedules.c.namespace, audit_events) == filters.namespace]
    # The condition of the index also finds arguments of an application that have the key.
    wanted.append(dialect_of(connection).text_at(events.payload, "command_context").is_not(None))
    if filters.principal is not None:
        wanted.append(_is_of(dialect_of(connection), filters.principal))
    if filters.event_type is not None:
        wanted.append(events.event_type == filters.event_type)
    if filters.schedule_id is not None:
        # Read the schedules' uids first, and compare them without an index. Along the index of uids, the database would
        # also read the events of all fires.
        uids = [*connection.execute(incarnations(filters.namespace, filters.schedule_id)).scalars()]
        wanted = [dialect_of(connection).one_of(events.schedule_uid.concat(""), uids), *wanted[1:]]
    columns = sa.select(audit_events, of_schedule(schedules.c.schedule_id, audit_events).label("schedule_id"))
    statement = columns.where(*within, *wanted).order_by(*order).limit(limit + 1)
    found = [FoundEvent(to_record(row), row.schedule_id, filters.namespace) for row in connection.execute(statement)]
    if len(found) > limit:
        return FoundEvents(found[:limit], found[limit - 1].position, is_cut=False)
    return FoundEvents(found, None if last is None else Position(*last), is_cut=last is not None)


class RecordedEvent(NamedTuple):
    """One audit event, with the values of its schedule and its run that metrics need."""

    recorded_at: datetime
    """When the event was recorded."""
    schedule_uid: str
    """The uid of the event's schedule."""
    sequence: int
    """The number of the event in the schedule's history."""
    event_type: str
    """The type of the event."""
    payload: str
    """The payload, as JSON."""
    workflow_run_id: str | None
    """The uid of the run that the event is about; None if it is about no run."""
    namespace: str
    """The schedule's namespace."""
    kind: str | None
    """The kind of that run; None without a run."""
    due_at: datetime | None
    """When that run was due; None without a run."""

    @property
    def position(self) -> Position:
        """The start of the page after this event."""
        return Position(self.recorded_at, self.schedule_uid, self.sequence)


def read_recorded(connection: Connection, position: Position, limit: int) -> list[RecordedEvent]:
    """Read a page of audit events in the order they were recorded."""
    columns = audit_events.c
    joined = audit_events.join(schedules, schedules.c.uid == columns.schedule_uid).outerjoin(
        runs, runs.c.uid == columns.workflow_run_id
    )
    statement = (
        sa.select(*_POSITION, columns.event_type, columns.payload, columns.workflow_run_id)
        .add_columns(schedules.c.namespace, runs.c.kind, runs.c.due_at)
        .select_from(joined)
        .where(sa.tuple_(*_POSITION) > bound_to(_POSITION, position))
        .order_by(*_POSITION)
        .limit(limit)
    )
    return [RecordedEvent(*row) for row in connection.execute(statement)]
