"""SQL that changes calendars and finds schedules to plan again; `named_calendars` reads the calendars of schedules."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import ScheduleStatus, dumps, parse_spec
from rqsched.kernel.queries.pages import page_by_uid
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.metadata import lock_of
from rqsched.kernel.store.named_calendars import CALENDAR_COLUMNS, SHARED, named, to_calendar
from rqsched.kernel.store.tables import IS_LIVE, NAMES_CALENDARS, calendars, constant, schedules
from rqsched.when.calendars import Calendar

MAX_CHANGES = 50
"""How many of its newest changes a calendar stores."""
_IS_PLANNED = schedules.c.status.in_([constant(ScheduleStatus.ACTIVE), constant(ScheduleStatus.PAUSED)])


def find(connection: Connection, namespace: str | None, name: str, *, locks: bool = False) -> Calendar | None:
    """Read a calendar of a namespace, or a shared calendar (None). `locks` locks its row."""
    statement = sa.select(*CALENDAR_COLUMNS).where(*_is(namespace, name))
    row = connection.execute(statement.with_for_update() if locks else statement).first()
    return None if row is None else to_calendar(row)


def find_twin(connection: Connection, namespace: str | None, name: str) -> Calendar | None:
    """Read a calendar with the same name that a schedule could mean, too.

    For a calendar of a namespace this is the shared calendar, and for a shared calendar (None) a calendar of any
    namespace.
    """
    of = calendars.c.namespace == SHARED if namespace is not None else calendars.c.namespace != SHARED
    row = connection.execute(sa.select(*CALENDAR_COLUMNS).where(calendars.c.name == name, of).limit(1)).first()
    return None if row is None else to_calendar(row)


def find_all(connection: Connection, namespace: str | None, limit: int) -> list[Calendar]:
    """Read the calendars that schedules of a namespace may name, or all calendars (None), sorted by name."""
    statement = sa.select(*CALENDAR_COLUMNS).order_by(calendars.c.name, calendars.c.namespace).limit(limit)
    if namespace is not None:
        statement = statement.where(calendars.c.namespace.in_([namespace, SHARED]))
    return [to_calendar(row) for row in connection.execute(statement)]


def ending(connection: Connection, namespace: str | None, until: date, limit: int) -> list[Calendar]:
    """Read the used calendars that cover no day after `until`: of a namespace, with shared calendars, or all (None)."""
    statement = sa.select(*CALENDAR_COLUMNS).where(calendars.c.reaches <= until.isoformat())
    if namespace is not None:
        statement = statement.where(calendars.c.namespace.in_([namespace, SHARED]))
    found = map(to_calendar, connection.execute(statement.order_by(calendars.c.reaches, calendars.c.name)).all())
    return [one for one in found if users(connection, one.namespace, one.name, 1)][:limit]


def count(connection: Connection, namespace: str | None) -> int:
    """Count the calendars of a namespace, or the shared calendars (None)."""
    of = calendars.c.namespace == (namespace or SHARED)
    return connection.execute(sa.select(sa.func.count()).select_from(calendars).where(of)).scalar_one()


def changes_of(connection: Connection, namespace: str | None, name: str) -> list[dict[str, Any]]:
    """Read the newest changes of a calendar, newest first: revision, time, actor, reason and changed entries."""
    text = connection.execute(sa.select(calendars.c.changes).where(*_is(namespace, name))).scalar_one_or_none()
    return [] if text is None else json.loads(text)[::-1]


def as_of(connection: Connection, namespace: str, names: Sequence[str], at: datetime) -> tuple[Calendar, ...]:
    """Return these calendars of a namespace as they were at an instant. Calendars that do not exist are left out.

    If the instant is before the oldest stored change of a calendar, the calendar is returned as before that change.
    """
    found = named(connection, namespace, names)
    return tuple(_undone(one, changes_of(connection, one.namespace, one.name), at) for one in found)


def _undone(calendar: Calendar, told: Iterable[Mapping[str, Any]], at: datetime) -> Calendar:
    held = {*calendar.exclude}
    for change in told:
        if datetime.fromisoformat(change["at"]) <= at:
            break
        held = held - {*change["added"]} | {*change["removed"]}
    return replace(calendar, exclude=tuple(sorted(held)))


def write(connection: Connection, wanted: Calendar, before: Calendar | None, change: Mapping[str, Any]) -> bool:
    """Write a locked or a new calendar. Return False if another transaction created it first.

    `since` becomes the time of the change. If some schedule is not yet planned with an earlier change, `since` stays.
    """
    now = wanted.changed_at
    values = {
        "revision": wanted.revision,
        "edit": wanted.edit,
        "exclude": dumps(list(wanted.exclude)),
        "is_planned": False,
        "reaches": wanted.reaches and wanted.reaches.isoformat(),
        "source": wanted.source,
        "description": wanted.description,
        "changed_at": now,
        "changed_by": wanted.changed_by,
    }
    if before is None:
        values |= {"namespace": wanted.namespace or SHARED, "name": wanted.name, "created_at": now, "since": now}
        insert = dialect_of(connection).insert(calendars).values(**values, changes=dumps([change]))
        return connection.execute(insert.on_conflict_do_nothing().returning(calendars.c.edit)).first() is not None
    known = connection.execute(
        sa.select(calendars.c.changes, calendars.c.is_planned).where(*_is(wanted.namespace, wanted.name))
    ).one()
    told = dumps([*json.loads(known.changes), change][-MAX_CHANGES:])
    values |= {"changes": told} | ({"since": now} if known.is_planned else {})
    connection.execute(sa.update(calendars).where(*_is(wanted.namespace, wanted.name)).values(**values))
    return True


def lock_calendars(connection: Connection) -> None:
    """Prevent other transactions from creating a calendar, in any namespace, until this transaction ends."""
    lock_of(connection, "calendars", "")


def remove(connection: Connection, namespace: str | None, name: str) -> None:
    """Delete a calendar that is locked."""
    connection.execute(sa.delete(calendars).where(*_is(namespace, name)))


def set_planned(connection: Connection, calendar: Calendar) -> None:
    """Record that every schedule was planned with the last change of a calendar, unless the calendar changed again."""
    is_it = calendars.c.edit == calendar.edit
    connection.execute(
        sa.update(calendars).where(*_is(calendar.namespace, calendar.name), is_it).values(is_planned=True)
    )


def unplanned(connection: Connection, before: datetime) -> list[Calendar]:
    """Read the calendars that changed at `before` or earlier, if some schedule may not be planned with the change."""
    statement = sa.select(*CALENDAR_COLUMNS).where(~calendars.c.is_planned, calendars.c.changed_at <= before)
    return [to_calendar(row) for row in connection.execute(statement.order_by(calendars.c.name, calendars.c.namespace))]


def to_plan(connection: Connection, calendar: Calendar, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read a page of the active and paused schedules that name a calendar and are not planned with its last change."""
    rows, cursor = _page(connection, calendar.namespace, calendar.name, after, limit, _IS_PLANNED)
    return [row.uid for row in rows if calendar.edit not in row.calendars.split()], cursor


def users(
    connection: Connection,
    namespace: str | None,
    name: str,
    limit: int,
    *,
    only: str = "",
    among: Collection[str] | None = None,
) -> list[tuple[str, str]]:
    """Read the namespace and id of the first schedules that name a calendar, without deleted schedules.

    `only` restricts them to specs that contain a text, `among` to some namespaces.
    """
    found, after = list[tuple[str, str]](), None
    is_meant = IS_LIVE & schedules.c.spec.contains(only, autoescape=True)
    if among is not None:
        is_meant &= dialect_of(connection).unindexed(schedules.c.namespace).in_(sorted(among))
    while True:
        rows, after = _page(connection, namespace, name, after, 500, is_meant)
        found += [(row.namespace, row.schedule_id) for row in rows]
        if after is None or len(found) >= limit:
            return found[:limit]


def lacking(connection: Connection, namespace: str | None, limit: int) -> list[tuple[str, str, str]]:
    """Read the active and paused schedules that name a missing calendar: namespace, id and name of the calendar."""
    there = {
        (row.namespace, row.name) for row in connection.execute(sa.select(calendars.c.namespace, calendars.c.name))
    }
    columns = schedules.c.uid, schedules.c.namespace, schedules.c.schedule_id, schedules.c.spec
    statement = sa.select(*columns).where(NAMES_CALENDARS, _IS_PLANNED)
    if namespace is not None:
        statement = statement.where(dialect_of(connection).unindexed(schedules.c.namespace) == namespace)
    found, after = list[tuple[str, str, str]](), None
    while True:
        rows, after = page_by_uid(connection, statement, schedules.c.uid, after, 500)
        for row in rows:
            gone = (one for one in parse_spec(row.spec).calendars if not {(row.namespace, one), (SHARED, one)} & there)
            found += [(row.namespace, row.schedule_id, one) for one in gone]
        if after is None or len(found) >= limit:
            return found[:limit]


def count_users(connection: Connection, namespace: str | None, name: str) -> int:
    """Count the schedules that name a calendar, without deleted schedules."""
    return len(users(connection, namespace, name, 1_000_000))


def _page(
    connection: Connection,
    namespace: str | None,
    name: str,
    after: str | None,
    limit: int,
    is_meant: sa.ColumnElement[bool],
) -> tuple[Sequence[Any], str | None]:
    columns = schedules.c.uid, schedules.c.namespace, schedules.c.schedule_id, schedules.c.spec, schedules.c.calendars
    statement = sa.select(*columns).where(NAMES_CALENDARS, is_meant)
    statement = statement.where(schedules.c.spec.contains(f'"{name}"', autoescape=True))
    if namespace is not None:
        statement = statement.where(dialect_of(connection).unindexed(schedules.c.namespace) == namespace)
    rows, cursor = page_by_uid(connection, statement, schedules.c.uid, after, limit)
    return [row for row in rows if name in parse_spec(row.spec).calendars], cursor


def _is(namespace: str | None, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return calendars.c.namespace == (namespace or SHARED), calendars.c.name == name


def change_of(calendar: Calendar, before: Calendar | None, reason: str | None) -> dict[str, Any]:
    """Return a change in the form that a calendar stores, with at most a hundred dates."""
    added, removed = calendar.without(before), () if before is None else before.without(calendar)
    told = {
        "revision": calendar.revision,
        "at": None if calendar.changed_at is None else iso_utc(calendar.changed_at),
        "by": calendar.changed_by,
        "reason": reason,
        "added": list(added[:100]),
        "removed": list(removed[:100]),
        "more": max(len(added) - 100, 0) + max(len(removed) - 100, 0) or None,
    }
    return {key: value for key, value in told.items() if value is not None}
