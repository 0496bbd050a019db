"""Pages of schedules in an order. Each looks at a bounded number of schedules, whatever it looks for.

No index holds a workflow, a label or a part of an id: each fire would write to it. Such a page is read along the index
of its order and ends after `most_looked_at` schedules, with what it found by then and where the next page begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import LastOutcome, Schedule, ScheduleStatus
from rqsched.store.dialect import Dialect, dialect_of
from rqsched.store.pages import cut_to_size, measuring
from rqsched.store.rows import SELECT_SCHEDULES, SELECT_SLIM_SCHEDULES, to_schedule
from rqsched.store.schedule_filters import TIMES, Filters, conditions_of, ended_so, has_status
from rqsched.store.tables import IS_ACTIVE, IS_LATE, IS_LIVE, RESTING, schedules

SORTS = {
    f"{sign}{name}": (column, bool(sign))
    for name, column in {**TIMES, "id": schedules.c.schedule_id}.items()
    for sign in ("", "-")
}
"""The orders of a list: by when schedules were created, by when they fire next (only those that do), by id."""
MOST_LOOKED_AT = 2_000
"""How many schedules one page looks at for those that match a filter without an index."""
Position = tuple[datetime | str, str]
"""A place in an order: what it goes by, and a uid."""


class Found(NamedTuple):
    """A page of schedules."""

    items: list[Schedule]
    """The schedules."""
    following: Position | None
    """The place after which the next page begins; None after the last one."""
    is_cut: bool
    """Whether it has looked at as many schedules as it may and more may match: the page may be short, or empty."""


class _Way(Enum):
    """How a page is read. SQLite is told; PostgreSQL has its statistics."""

    ANY = auto()
    """As the database likes: an index holds what matches, in the order."""
    WALKED = auto()
    """Along the index of the order, past what does not match."""
    SORTED = auto()
    """By an index of what few schedules match, which are sorted."""


class _Plan(NamedTuple):
    """How a page is read, and where it ends."""

    way: _Way = _Way.ANY
    """How."""
    end: Position | None = None
    """The last place to look at; None reads to the end."""


def search_schedules(
    connection: Connection,
    filters: Filters,
    *,
    sort: str,
    after: Position | None,
    limit: int,
    offset: int = 0,
    most: int | None = None,
    most_looked_at: int | None = MOST_LOOKED_AT,
    is_slim: bool = False,
) -> Found:
    """Read a page in one of SORTS after a place, of at most so many characters (`cut_to_size`).

    `is_slim` leaves arguments, memo and search attributes empty. `most_looked_at` None looks at every schedule.
    """
    plan = _Plan() if most_looked_at is None else _plan(connection, filters, sort, after, most_looked_at)
    build = _page_once if filters.is_plain else _page
    places = after is not None, plan.end is not None
    statement, sizes = build(dialect_of(connection), filters, sort, plan.way, places, limit + 1, offset, is_slim)
    given = _given("after", after) | _given("end", plan.end)
    statement, cut = cut_to_size(connection, statement, most, sizes, given)
    found = [to_schedule(row) for row in connection.execute(statement, given).all()]
    if len(found) > limit or cut is not None:
        items = found[:limit]
        return Found(items, place_of(items[-1], sort), is_cut=False)
    return Found(found, plan.end, is_cut=plan.end is not None)


def place_of(schedule: Schedule, sort: str) -> Position:
    """Return where a schedule stands in an order."""
    return getattr(schedule, SORTS[sort][0].name), schedule.uid


def _given(name: str, place: Position | None) -> dict[str, Any]:
    return {} if place is None else {f"{name}_at": place[0], f"{name}_uid": place[1]}


def _place(name: str, sort: str) -> sa.Tuple:
    column = SORTS[sort][0]
    return sa.tuple_(
        sa.bindparam(f"{name}_at", type_=column.type), sa.bindparam(f"{name}_uid", type_=schedules.c.uid.type)
    )


def _page(
    dialect: Dialect,
    filters: Filters,
    sort: str,
    way: _Way,
    places: tuple[bool, bool],
    limit: int,
    offset: int,
    is_slim: bool,
) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Build what reads a page, and what reads its sizes.

    `places` says whether it begins after `after_at` and `after_uid`, and whether it ends at `end_at` and `end_uid`.
    """
    is_continued, is_ended = places
    is_walked = way is _Way.WALKED
    statement = SELECT_SLIM_SCHEDULES if is_slim else SELECT_SCHEDULES
    column, is_descending = SORTS[sort]
    hidden = (
        {"status", "last_outcome", *(["namespace"] if column is schedules.c.due_at else [])} if is_walked else set()
    )
    statement = statement.where(*conditions_of(dialect, filters, is_walked=is_walked, hidden=frozenset(hidden)))
    statement = statement.where(*_has_place(sort, filters))
    order: tuple[sa.ColumnElement[Any], ...] = (column, schedules.c.uid)
    if way is _Way.SORTED:
        order = (dialect.unindexed(column), dialect.unindexed(schedules.c.uid))
    key = sa.tuple_(*order)
    if is_continued:
        after = _place("after", sort)
        statement = statement.where(key < after if is_descending else key > after)
    if is_ended:
        end = _place("end", sort)
        statement = statement.where(key >= end if is_descending else key <= end)
    statement = statement.order_by(*_direction(sort, order)).limit(limit).offset(offset)
    return statement, measuring(statement, dialect)


_page_once = lru_cache(maxsize=256)(_page)
"""The same for what is asked again and again: to build it takes as long as to read it."""


def _direction(sort: str, order: Sequence[sa.ColumnElement[Any]]) -> list[sa.ColumnElement[Any]]:
    return [part.desc() if SORTS[sort][1] else part.asc() for part in order]


def _has_place(sort: str, filters: Filters) -> list[sa.ColumnElement[bool]]:
    """Return what a schedule must be to have a place in the order."""
    column, _ = SORTS[sort]
    if column is not schedules.c.due_at:
        return []
    is_none = bool(filters.statuses) and ScheduleStatus.ACTIVE not in filters.statuses
    return [IS_ACTIVE, column.is_not(None), *([sa.false()] if is_none else [])]


def _plan(connection: Connection, filters: Filters, sort: str, after: Position | None, most: int) -> _Plan:
    """Decide how to read a page: what few schedules can match is sorted, what many can match is looked for in order.

    SQLite without statistics takes a namespace for few schedules and sorts them all for the order of their next fires.
    """
    if filters.namespace is None:
        return _Plan()
    is_in_order, has_statistics = _is_in_order(filters, sort), dialect_of(connection).has_statistics
    by_hand = SORTS[sort][0] is schedules.c.due_at and not has_statistics
    if is_in_order and not by_hand:
        return _Plan()
    of_namespace = schedules.c.namespace == filters.namespace
    few = [] if is_in_order else _exceptions(filters, is_named=not has_statistics)
    few += [(IS_LIVE, ())] if by_hand else []
    if any(_has_fewer(connection, of_namespace & condition, order, most) for condition, order in few):
        return _Plan(_Way.SORTED)
    return _Plan(_Way.WALKED, None if is_in_order else _end(connection, filters, sort, after, most))


def _is_in_order(filters: Filters, sort: str) -> bool:
    """Return whether an index holds in this order just what matches: nothing else is looked at."""
    name = sort.removeprefix("-")
    own: dict[str, Any] = {} if name == "id" else {f"{name}_since": None, f"{name}_until": None}
    rest = replace(filters, namespace=None, statuses=(), outcomes=(), **own)
    if rest != Filters():
        return False
    statuses, outcomes = {*filters.statuses}, {*filters.outcomes}
    if name == "next" and statuses and ScheduleStatus.ACTIVE not in statuses:
        return True  # none has a place
    if outcomes:
        return name == "id" and not statuses and len(outcomes) == 1 and LastOutcome.SUCCEEDED not in outcomes
    is_one_resting = len(statuses) == 1 and statuses <= {*RESTING} and name != "next"
    return not statuses or is_one_resting or (statuses == {ScheduleStatus.DELETED} and name == "id")


_Few = tuple[sa.ColumnElement[bool], tuple[sa.Column[Any], ...]]


def _exceptions(filters: Filters, *, is_named: bool) -> list[_Few]:
    """Return what an index of exceptions holds of the filters, or what bounds an instant; each with the index's order.

    Asked for this order, PostgreSQL counts in the index and reads no row.
    """
    uid, schedule_id, found = schedules.c.uid, schedules.c.schedule_id, list[_Few]()
    statuses = {*filters.statuses}
    if statuses and (statuses <= {*RESTING} or statuses == {ScheduleStatus.DELETED}):
        is_resting = ScheduleStatus.DELETED not in statuses
        order = (schedules.c.status, schedule_id, uid) if is_resting else (schedule_id, schedules.c.created_at, uid)
        found.append((has_status(filters.statuses, is_named=is_named), order))
    if filters.outcomes and LastOutcome.SUCCEEDED not in filters.outcomes:
        is_meant = ended_so(filters.outcomes, is_named=is_named)
        found.append((is_meant, (schedules.c.last_outcome, schedule_id, uid)))
    if filters.overdue:
        found.append((IS_LATE, (schedules.c.overdue_since, uid)))
    if filters.schedule_id is not None:
        found.append((schedule_id == filters.schedule_id, ()))
    if filters.created_since is not None or filters.created_until is not None:
        found.append((sa.and_(*filters.within("created")), (schedules.c.created_at, uid)))
    if filters.next_since is not None or filters.next_until is not None:
        found.append((sa.and_(IS_ACTIVE, *filters.within("next")), (schedules.c.due_at, uid)))
    return found


def _has_fewer(
    connection: Connection, condition: sa.ColumnElement[bool], order: Sequence[sa.Column[Any]], most: int
) -> bool:
    some: sa.Select[tuple[int]] = sa.select(sa.literal_column("1")).select_from(schedules).where(condition)
    some = some.order_by(*order).limit(most)
    return connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one() < most


def _end(connection: Connection, filters: Filters, sort: str, after: Position | None, most: int) -> Position | None:
    """Find the last of so many schedules after a place; None when there are fewer."""
    column, is_descending = SORTS[sort]
    owner: sa.ColumnElement[Any] = schedules.c.namespace
    if column is schedules.c.due_at:
        owner = dialect_of(connection).unindexed(schedules.c.namespace)
    looked_at = sa.select(column, schedules.c.uid).where(owner == filters.namespace, *_has_place(sort, filters))
    if column is schedules.c.schedule_id:
        looked_at = looked_at.where(IS_LIVE)  # of its index; that of when they were created holds deleted ones, too
    else:
        looked_at = looked_at.where(*filters.within(sort.removeprefix("-")))
    order = (column, schedules.c.uid)
    key = sa.tuple_(*order)
    if after is not None:
        place = _place("after", sort)
        looked_at = looked_at.where(key < place if is_descending else key > place)
    looked_at = looked_at.order_by(*_direction(sort, order)).offset(most - 1).limit(1)
    found = connection.execute(looked_at, _given("after", after)).first()
    return None if found is None else (found[0], found[1])
