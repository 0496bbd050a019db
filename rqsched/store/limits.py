"""Groups of runs of which only so many run at once: their numbers, and who gets a place.

A grant is a transaction of its own, which locks the group's row and then, of the runs, only those that nobody else
holds. The places that are taken are no number that is kept: the runs that are granted or run are counted under that
lock, in this order. So one that is claimed meanwhile counts twice rather than never, and only a grant makes them more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.limit import Waiting, decide_grants, key_of, most_given, split_key, wants_grants
from rqsched.core.model import Run, RunStatus, changed, dumps
from rqsched.core.results import LimitDescription, Page
from rqsched.store.dialect import Dialect, dialect_of
from rqsched.store.rows import RUN_COLUMNS, to_run
from rqsched.store.tables import (
    IS_IN_LINE,
    IS_LIMITED,
    IS_LIVE,
    IS_OF_GROUP,
    constant,
    is_late,
    limits,
    runs,
    schedules,
)

MAX_CHANGES = 20
"""How many changes of its number a group remembers."""
_PLACE = (runs.c.uid, runs.c.limit_at, runs.c.number, runs.c.granted_at, runs.c.passed_count)
_NEEDS_GRANT = IS_LIMITED & (runs.c.status == constant(RunStatus.PENDING)) & runs.c.granted_at.is_(None)
_IS_UNCLAIMED = IS_LIMITED & (runs.c.status == constant(RunStatus.PENDING)) & runs.c.granted_at.is_not(None)
_IS_RUNNING = IS_LIMITED & (runs.c.status == constant(RunStatus.RUNNING))


def lock(connection: Connection, groups: Iterable[str], *, skip_locked: bool = False) -> dict[str, int]:
    """Lock the rows of groups, in one order for all; returns the numbers of those that there are.

    `skip_locked` leaves out those that another transaction holds.
    """
    locked = _find(connection, groups).with_for_update(key_share=True, skip_locked=skip_locked)
    return {row.limit_group: row.number for row in connection.execute(locked)}


def keep(connection: Connection, groups: Iterable[str]) -> dict[str, int]:
    """Keep groups from being removed before this transaction is over; returns the numbers of those that there are.

    Grants go on beside it: a caller's transaction may be a long one.
    """
    kept = _find(connection, groups).with_for_update(read=True, key_share=True)
    return {row.limit_group: row.number for row in connection.execute(kept)}


def numbers(connection: Connection, groups: Iterable[str]) -> dict[str, int]:
    """Read the numbers of those groups that there are."""
    return {row.limit_group: row.number for row in connection.execute(_find(connection, groups))}


def _find(connection: Connection, groups: Iterable[str]) -> sa.Select[tuple[str, int]]:
    found = sa.select(limits.c.limit_group, limits.c.number)
    found = found.where(dialect_of(connection).one_of(limits.c.limit_group, sorted(set(groups))))
    return found.order_by(limits.c.limit_group)


def make(connection: Connection, group: str, number: int, now: datetime) -> None:
    """Make a group unless there is one."""
    namespace, name = split_key(group)
    values = {"limit_group": group, "namespace": namespace, "name": name, "number": number, "created_at": now}
    connection.execute(dialect_of(connection).insert(limits).values(values).on_conflict_do_nothing())


def set_number(connection: Connection, group: str, number: int, change: Mapping[str, Any]) -> None:
    """Set the number of a locked group, which remembers the newest of its changes."""
    is_it = limits.c.limit_group == group
    known = json.loads(connection.execute(sa.select(limits.c.changes).where(is_it)).scalar_one())
    told = dumps([*known, change][-MAX_CHANGES:])
    connection.execute(sa.update(limits).where(is_it).values(number=number, changes=told))


def grant(
    connection: Connection,
    groups: Iterable[str],
    now: datetime,
    asked: str | None = None,
    *,
    skip_locked: bool = False,
) -> list[Run]:
    """Give the free places of these groups to the first in their lines; returns the runs that got one.

    `asked` is a run that a worker holds (`core.limit.decide_grants`). Without a place it is in line from here on, and
    another delivery will carry it. `skip_locked` leaves out groups that another transaction holds.
    """
    numbers = lock(connection, groups, skip_locked=skip_locked)
    if not numbers:
        return []
    group_of_asked, waiting = (None, None) if asked is None else _lock_asked(connection, asked)
    unclaimed = _unclaimed(connection, numbers)
    running = _running(connection, numbers)
    given = list[str]()
    for group, number in numbers.items():
        most = most_given(number, running.get(group, 0), unclaimed[group], now)
        grants = decide_grants(
            number,
            running=running.get(group, 0),
            unclaimed=unclaimed[group],
            line=first_in_line(connection, group, most + 1, now),
            asked=waiting if group == group_of_asked else None,
            now=now,
        )
        kept = len(grants.passed) - len(_pass_over(connection, grants.passed, now))
        given += grants.given[: max(len(grants.given) - kept, 0)]
    got = _give(connection, given, now)
    if waiting is not None and waiting.uid not in {run.uid for run in got}:
        again = sa.update(runs).where(runs.c.uid == waiting.uid)
        passed = sa.func.coalesce(runs.c.passed_count, 0) + 1
        connection.execute(again.values(passed_at=None, passed_count=passed, delivery=runs.c.delivery + 1))
    return got


def _lock_asked(connection: Connection, uid: str) -> tuple[str | None, Waiting | None]:
    found = sa.select(runs.c.limit_group, *_PLACE).where(runs.c.uid == uid, _NEEDS_GRANT)
    row = connection.execute(found.with_for_update(key_share=True, skip_locked=True)).first()
    return (None, None) if row is None else (row[0], Waiting(*row[1:]))


def _unclaimed(connection: Connection, groups: Iterable[str]) -> dict[str, list[Waiting]]:
    dialect, found = dialect_of(connection), defaultdict[str, list[Waiting]](list)
    for group, *place in connection.execute(_find_unclaimed(dialect), {"among": dialect.listed(groups)}):
        found[group].append(Waiting(*place))
    return found


@lru_cache(maxsize=2)
def _find_unclaimed(dialect: Dialect) -> sa.Select[Any]:
    return dialect.of_each(sa.select(runs.c.limit_group, *_PLACE).where(_IS_UNCLAIMED), runs.c.limit_group)


def _running(connection: Connection, groups: Iterable[str]) -> dict[str, int]:
    dialect = dialect_of(connection)
    return _by_group(connection, _count(dialect, _IS_RUNNING), {"among": dialect.listed(groups)})


def _by_group(connection: Connection, statement: sa.Select[Any], given: dict[str, Any]) -> dict[str, Any]:
    return {row[0]: row[1] for row in connection.execute(statement, given)}


@lru_cache(maxsize=8)
def _count(dialect: Dialect, condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    counted = sa.select(runs.c.limit_group, sa.func.count().label("count")).where(condition)
    return dialect.of_each(counted.group_by(runs.c.limit_group), runs.c.limit_group)


def first_in_line(connection: Connection, group: str, most: int, now: datetime) -> list[Waiting]:
    """Read the first of a line who could start now."""
    given = {"group": group, "most": most, "now": now}
    return [Waiting(*row) for row in connection.execute(_FIRST_IN_LINE, given)]


_NOW = sa.bindparam("now", type_=runs.c.queued_at.type)
_FIRST_IN_LINE = (
    sa.select(*_PLACE)
    .where(IS_IN_LINE, runs.c.limit_group == sa.bindparam("group", type_=runs.c.limit_group.type))
    # A blocked run is offered again later.
    .where(runs.c.blocked_at.is_(None) | (runs.c.queued_at <= _NOW), ~is_late(_NOW))
    .order_by(runs.c.limit_at, runs.c.number, runs.c.uid)
    .limit(sa.bindparam("most", type_=sa.Integer))
)


def _pass_over(connection: Connection, uids: Sequence[str], now: datetime) -> list[str]:
    """Take back grants that nobody has claimed; returns of which runs: not of one that is claimed just now."""
    if not uids:
        return []
    free = sa.select(runs.c.uid).where(dialect_of(connection).one_of(runs.c.uid, uids), _IS_UNCLAIMED)
    locked = list(connection.execute(free.with_for_update(key_share=True, skip_locked=True)).scalars())
    taken = sa.update(runs).where(dialect_of(connection).one_of(runs.c.uid, locked))
    connection.execute(taken.values(granted_at=None, passed_at=now))
    return locked


def _give(connection: Connection, uids: Sequence[str], now: datetime) -> list[Run]:
    """Grant these runs their places, but for those that another transaction holds; returns them in line."""
    if not uids:
        return []
    free = sa.select(runs.c.uid).where(dialect_of(connection).one_of(runs.c.uid, uids), _NEEDS_GRANT)
    locked = list(connection.execute(free.with_for_update(key_share=True, skip_locked=True)).scalars())
    grants = sa.update(runs).where(dialect_of(connection).one_of(runs.c.uid, locked))
    granted = connection.execute(grants.values(granted_at=now, passed_at=None).returning(*RUN_COLUMNS))
    return sorted((to_run(row) for row in granted), key=lambda run: (run.limit_at or now, run.number, run.uid))


def has_place(connection: Connection, uid: str) -> bool:
    """Return whether a pending run has a place in its group."""
    return connection.execute(sa.select(runs.c.uid).where(runs.c.uid == uid, _IS_UNCLAIMED)).first() is not None


def wants(connection: Connection, group: str) -> int | None:
    """Return how many granted runs of a group wait for their claim; None where it is no time to look at its line.

    Or where nobody waits there (`core.limit.wants_grants`).
    """
    row = connection.execute(_STATE, {"group": group}).first()
    return None if row is None or not wants_grants(*row) else int(row[-1])


_OF_GROUP = sa.bindparam("group", type_=limits.c.limit_group.type)
_IN_LINE = sa.exists().where(IS_IN_LINE, runs.c.limit_group == limits.c.limit_group)
_STATE = sa.select(
    limits.c.number,
    *(
        sa.select(sa.func.count())
        .select_from(runs)
        .where(condition, runs.c.limit_group == limits.c.limit_group)
        .correlate(limits)
        .scalar_subquery()
        for condition in (_IS_RUNNING, _IS_UNCLAIMED)
    ),
).where(limits.c.limit_group == _OF_GROUP, _IN_LINE)


def with_line(connection: Connection, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read a page of the groups in which somebody waits."""
    found = sa.select(limits.c.limit_group).where(_IN_LINE)
    if after is not None:
        found = found.where(limits.c.limit_group > after)
    groups = list(connection.execute(found.order_by(limits.c.limit_group).limit(limit)).scalars())
    return groups, groups[-1] if len(groups) == limit else None


def empty(connection: Connection, limit: int) -> list[str]:
    """Read the first groups that no schedule names and no open run belongs to."""
    found = sa.select(limits.c.limit_group).where(_IS_EMPTY).order_by(limits.c.limit_group).limit(limit)
    return list(connection.execute(found).scalars())


_NAMED = sa.exists().where(schedules.c.limit_group == limits.c.limit_group, IS_OF_GROUP, IS_LIVE)
_IS_EMPTY = ~_NAMED & ~sa.exists().where(runs.c.limit_group == limits.c.limit_group, IS_LIMITED)


def remove_empty(connection: Connection, groups: Sequence[str]) -> int:
    """Remove groups that are empty still and whose rows nobody holds; returns how many."""
    free = _find(connection, groups).with_for_update(skip_locked=True)
    locked = [row.limit_group for row in connection.execute(free)]
    is_one = dialect_of(connection).one_of(limits.c.limit_group, locked)
    return connection.execute(sa.delete(limits).where(is_one, _IS_EMPTY)).rowcount


def lost(connection: Connection, limit: int) -> list[tuple[str, str]]:
    """Return groups in which runs wait and whose row is gone, each with the policies of a schedule that names it."""
    is_there = sa.exists().where(limits.c.limit_group == runs.c.limit_group)
    found = sa.select(runs.c.limit_group, schedules.c.policies).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    found = found.where(_NEEDS_GRANT, ~is_there).order_by(runs.c.limit_group, schedules.c.uid).limit(limit)
    return [(group, policies) for group, policies in connection.execute(found)]


def describe(connection: Connection, groups: Iterable[str]) -> list[LimitDescription]:
    """Read groups by name, with how many of their runs run and wait."""
    is_one = dialect_of(connection).one_of(limits.c.limit_group, sorted(groups))
    return _describe(connection, connection.execute(_GROUPS.where(is_one).order_by(limits.c.limit_group)).all())


def page(connection: Connection, namespace: str, cursor: str | None, limit: int) -> Page[LimitDescription]:
    """Read a page of the groups of a namespace, by name; the cursor is the name of the last one before it."""
    after = limits.c.limit_group > key_of(namespace, cursor or "")
    found = _GROUPS.where(limits.c.namespace == namespace, after).order_by(limits.c.limit_group)
    rows = connection.execute(found.limit(limit)).all()
    return Page(_describe(connection, rows), rows[-1].name if len(rows) == limit else None)


_GROUPS = sa.select(limits.c.limit_group, limits.c.namespace, limits.c.name, limits.c.number, limits.c.changes)


def _describe(connection: Connection, rows: Sequence[Any]) -> list[LimitDescription]:
    dialect = dialect_of(connection)
    given = {"among": dialect.listed(row.limit_group for row in rows)}
    running, starting = (
        _by_group(connection, _count(dialect, condition), given) for condition in (_IS_RUNNING, _IS_UNCLAIMED)
    )
    waiting = {group: (count, since) for group, count, since in connection.execute(_waiting(dialect), given)}
    return [
        LimitDescription(
            namespace=row.namespace,
            name=row.name,
            number=row.number,
            running=running.get(row.limit_group, 0),
            starting=starting.get(row.limit_group, 0),
            waiting=waiting.get(row.limit_group, (0, None))[0],
            waiting_since=waiting.get(row.limit_group, (0, None))[1],
            changes=json.loads(row.changes)[::-1],
        )
        for row in rows
    ]


@lru_cache(maxsize=2)
def _waiting(dialect: Dialect) -> sa.Select[Any]:
    # In one scan for all: most open runs may be of one line, and a plan for any group reads them for each.
    first = sa.func.min(runs.c.limit_at, type_=runs.c.limit_at.type)
    found = sa.select(runs.c.limit_group, sa.func.count(), first).where(_NEEDS_GRANT)
    return found.where(dialect.among(runs.c.limit_group)).group_by(runs.c.limit_group)


def with_places(connection: Connection, found: list[Run]) -> list[Run]:
    """Return runs, those that are in line with their place there; asks nothing where none is.

    The place is `MOST_AHEAD` and one more where at least that many are ahead.
    """
    groups = sorted({run.limit_group for run in found if run.limit_group is not None and run.is_in_line})
    places = dict[str, int]()
    for group in groups:
        line = connection.execute(_LINE, {"group": group, "most": MOST_AHEAD}).scalars()
        places |= {uid: place for place, uid in enumerate(line, 1)}
    beyond = MOST_AHEAD + 1
    return [changed(run, place_in_line=places.get(run.uid, beyond)) if run.is_in_line else run for run in found]


MOST_AHEAD = 1_000
"""How many in line ahead of a run are counted."""
_LINE = (
    sa.select(runs.c.uid)
    .where(IS_IN_LINE, runs.c.limit_group == sa.bindparam("group", type_=runs.c.limit_group.type))
    .order_by(runs.c.limit_at, runs.c.number, runs.c.uid)
    .limit(sa.bindparam("most", type_=sa.Integer))
)


def busiest(connection: Connection, most: int, namespace: str | None = None) -> list[LimitDescription]:
    """Read the groups with the most open runs, of a namespace or of all."""
    counted = sa.func.count().label("count")
    found = sa.select(runs.c.limit_group, counted).where(*_of_namespace(namespace)).group_by(runs.c.limit_group)
    ordered = found.order_by(counted.desc(), runs.c.limit_group).limit(most)
    return describe(connection, [row.limit_group for row in connection.execute(ordered)])


def passed_over(connection: Connection, namespace: str | None) -> list[tuple[str | None, int]]:
    """Count, by queue, the runs whose grant nobody has claimed and that wait for a worker to come to them."""
    is_meant = *_of_namespace(namespace), _NEEDS_GRANT, runs.c.passed_at.is_not(None)
    found = sa.select(runs.c.queue, sa.func.count()).where(*is_meant).group_by(runs.c.queue)
    return [(queue, count) for queue, count in connection.execute(found)]


def _of_namespace(namespace: str | None) -> list[sa.ColumnElement[bool]]:
    """Say which open runs are of groups of a namespace, by the index of groups: there may be many more schedules."""
    if namespace is None:
        return [IS_LIMITED]
    first = key_of(namespace, "")
    return [IS_LIMITED, runs.c.limit_group > first, runs.c.limit_group < first[:-1] + chr(ord(first[-1]) + 1)]
