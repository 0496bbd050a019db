"""Named calendars: the contents of a calendar are read together with the schedules that name it.

This process caches the contents of a calendar by the uid of the change that wrote them. No two contents share that uid,
not even after a backup was restored. A schedule that names no calendar costs no further read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.errors import UnknownCalendarError
from rqsched.kernel.decide.model import Schedule, ScheduleStatus, changed, parse_spec
from rqsched.kernel.store.tables import calendars
from rqsched.when.calendars import Calendar

SHARED = "*"
"""The namespace in the row of a calendar that all namespaces share. No namespace has this name."""
NAMING = '"calendars":['
"""The text that a spec contains if it names calendars. Canonical JSON always writes the key in this way."""
CALENDAR_COLUMNS = [column for column in calendars.c if column.name not in {"is_planned", "changes"}]
"""The columns from which `to_calendar` reads a calendar."""
_MOST_KNOWN = 512
_known: dict[str, Calendar] = {}
"""The contents of calendars by the uid of the change that wrote them."""


def with_contents(connection: Connection, found: list[Schedule]) -> list[Schedule]:
    """Return schedules with the calendars that they name; at least one schedule must name a calendar.

    If a calendar was deleted, it is empty. Only a deleted schedule, which is only shown, can name such a calendar.
    """
    naming = [one for one in found if NAMING in one.definition.spec]
    wanted = {one.uid: parse_spec(one.definition.spec).calendars for one in naming}
    known = _find(connection, {one.namespace for one in naming}, {name for names in wanted.values() for name in names})

    def filled(one: Schedule) -> Schedule:
        names = wanted.get(one.uid, ())
        contents = _of(known, one.namespace, names)
        if one.status is ScheduleStatus.DELETED:
            there = {calendar.name for calendar in contents}
            gone = (Calendar(name, ()) for name in names if name not in there)
            contents = tuple(sorted([*contents, *gone], key=lambda calendar: calendar.name))
        return changed(one, contents=contents) if names else one

    return [filled(one) for one in found]


def named(connection: Connection, namespace: str, names: Iterable[str], *, locks: bool = False) -> tuple[Calendar, ...]:
    """Return the calendars with these names that exist for a namespace, sorted by name.

    With `locks` no other transaction changes or deletes them until this one ends.
    """
    wanted = sorted(set(names))
    if not wanted:
        return ()
    if locks:
        connection.execute(_select([calendars.c.edit], {namespace}, wanted).with_for_update(read=True))
    return _of(_find(connection, {namespace}, wanted), namespace, wanted)


def require(
    connection: Connection, namespace: str, names: Collection[str], *, locks: bool = False
) -> tuple[Calendar, ...]:
    """Return these calendars as `named` does; raises UnknownCalendarError for the first missing calendar."""
    found = named(connection, namespace, names, locks=locks)
    if len(found) < len(names):
        missing = next(name for name in names if name not in {one.name for one in found})
        there = sa.select(calendars.c.name).where(calendars.c.namespace.in_([namespace, SHARED]))
        known = connection.execute(there.order_by(calendars.c.name)).scalars()
        raise UnknownCalendarError(missing, namespace, [*known])
    return found


def _of(known: Mapping[tuple[str, str], Calendar], namespace: str, names: Iterable[str]) -> tuple[Calendar, ...]:
    found = (known.get((namespace, name)) or known.get((SHARED, name)) for name in names)
    return tuple(one for one in found if one is not None)


def _find(connection: Connection, namespaces: Iterable[str], names: Iterable[str]) -> dict[tuple[str, str], Calendar]:
    """Read calendars, and return them by namespace and name. Contents are read only if they are not cached."""
    key = calendars.c.namespace, calendars.c.name, calendars.c.edit
    found = connection.execute(_select(key, namespaces, names)).all()
    read = {(row.namespace, row.name): _known.get(row.edit) for row in found}
    unknown = {name for (_, name), one in read.items() if one is None}
    if unknown:  # read them by name: a calendar may have changed since the read above
        fresh = connection.execute(_select(CALENDAR_COLUMNS, namespaces, unknown)).all()
        if len(_known) > _MOST_KNOWN:
            _known.clear()
        for row in fresh:
            read[row.namespace, row.name] = _known[row.edit] = to_calendar(row)
    return {key: one for key, one in read.items() if one is not None}


def _select(columns: Iterable[sa.Column[Any]], namespaces: Iterable[str], names: Iterable[str]) -> sa.Select[Any]:
    of = sorted({*namespaces, SHARED})
    return sa.select(*columns).where(calendars.c.namespace.in_(of), calendars.c.name.in_(sorted({*names})))


def to_calendar(row: sa.Row[Any]) -> Calendar:
    """Read a calendar from a row of its columns."""
    return Calendar(
        row.name,
        tuple(json.loads(row.exclude)),
        None if row.namespace == SHARED else row.namespace,
        row.revision,
        row.edit,
        row.since,
        None if row.reaches is None else date.fromisoformat(row.reaches),
        row.source,
        row.description,
        row.created_at,
        row.changed_at,
        row.changed_by,
    )
