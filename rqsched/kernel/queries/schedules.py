"""Pages of schedules, and other queries that count and find schedules.

No index has a workflow, a label or a part of an id, because each fire would write to such an index. A page with such a
filter is read along the index that has the page's order. It ends after `most_looked_at` searched schedules. It has the
matches among these, and the place where the next page begins. Cursors are keyset cursors, so the hundredth page costs
as much as the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum, auto
from functools import lru_cache, partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.kernel.decide.model import REPEATEDLY, LastOutcome, Schedule, ScheduleStatus, parse_spec
from rqsched.kernel.decide.results import MAX_PAGE, Page
from rqsched.kernel.queries.pages import (
    bind_cursor,
    counting,
    cut_to_size,
    measuring,
    page_by_due_time,
    read_cursor,
    unbind_cursor,
    write_cursor,
)
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.rows import (
    SELECT_SCHEDULES,
    SELECT_SLIM_SCHEDULES,
    to_schedule,
    to_schedules,
)
from rqsched.kernel.store.tables import (
    ENDED_BADLY,
    IS_ACTIVE,
    IS_DELETED,
    IS_FAILING,
    IS_LIVE,
    IS_OVERDUE,
    IS_RESTING,
    NAMES_CALENDARS,
    RESTING,
    RESUMES,
    constant,
    is_outside,
    schedules,
)

TIMES = {"created": schedules.c.created_at, "next": schedules.c.due_at}
"""The instants by which lists can be filtered and ordered."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a list of schedules; a schedule must match each filter that is given. None does not filter."""

    namespace: str | None = None
    """The namespace, exactly."""
    statuses: Sequence[str] = ()
    """The statuses; empty shows every schedule that is not deleted."""
    outcomes: Sequence[str] = ()
    """The newest run ended in one of these ways (`LastOutcome`); empty for any schedule."""
    workflow: str | None = None
    """The name of the workflow."""
    owner: str | None = None
    """The owner."""
    managed_by: str | None = None
    """The creator of the schedule, such as `sync`."""
    schedule_id: str | None = None
    """The id, exactly."""
    queue: str | None = None
    """The queue that the schedule names itself."""
    note: str | None = None
    """The note, exactly."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Labels that the schedule has, among others."""
    search_attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Search attributes that the schedule has, among others. Values and their JSON types must be equal."""
    text: str | None = None
    """A part of the id, in upper or lower case."""
    overdue: bool | None = None
    """Whether the schedule has been without a success for as long as it allows (overdue)."""
    failing: bool = False
    """Only active schedules whose newest runs all failed (`REPEATEDLY`)."""
    created_since: datetime | None = None
    """Created at this instant or later."""
    created_until: datetime | None = None
    """Created before this instant."""
    next_since: datetime | None = None
    """Fires next at this instant or later."""
    next_until: datetime | None = None
    """Fires next before this instant."""

    @property
    def is_plain(self) -> bool:
        """Whether the same filters are likely to be used again: they have no objects and no instants."""
        times = (self.created_since, self.created_until, self.next_since, self.next_until)
        is_fixed = isinstance(self.statuses, tuple) and isinstance(self.outcomes, tuple)
        return is_fixed and not (self.labels or self.search_attributes or any(times))

    def within(self, name: str) -> list[sa.ColumnElement[bool]]:
        """Return the conditions that bound an instant, `created` or `next`."""
        column, start, end = TIMES[name], getattr(self, f"{name}_since"), getattr(self, f"{name}_until")
        return [*([] if start is None else [column >= start]), *([] if end is None else [column < end])]


def conditions_of(
    dialect: Dialect, filters: Filters, *, is_walked: bool = False, hidden: frozenset[str] = frozenset()
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of the filters.

    With `is_walked`, the page is read along one index and each row is compared. So the conditions name no partial
    index. The conditions also prevent the use of an index for the `hidden` columns.
    """
    columns = {name: dialect.unindexed(column) if name in hidden else column for name, column in schedules.c.items()}
    is_named = not dialect.has_statistics and not is_walked
    found = [has_status(filters.statuses, columns["status"], is_named=is_named)] if filters.statuses else [IS_LIVE]
    if filters.outcomes:
        found.append(ended_so(filters.outcomes, columns["last_outcome"], is_named=is_named))
    for name in ("namespace", "workflow", "owner", "managed_by", "schedule_id", "queue", "note"):
        value = getattr(filters, name)
        if value is not None:
            found.append(columns[name] == value)
    if filters.overdue is not None:
        since = schedules.c.overdue_since
        found.append(since.is_not(None) if filters.overdue else since.is_(None))
    if filters.failing:
        row = columns["consecutive_failures"]
        found += [row >= REPEATEDLY if is_walked else IS_FAILING, IS_ACTIVE]
    for name in TIMES:
        found += filters.within(name)
    if filters.text:
        found.append(schedules.c.schedule_id.icontains(filters.text, autoescape=True))
    found += [dialect.has_member(schedules.c.labels, name, value) for name, value in filters.labels.items()]
    attributes = filters.search_attributes.items()
    return found + [dialect.has_member(schedules.c.search_attributes, name, value) for name, value in attributes]


def has_status(
    statuses: Sequence[str], column: sa.ColumnElement[Any] = schedules.c.status, *, is_named: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that a schedule has one of these statuses.

    With `is_named`, this repeats the condition of the partial index, because SQLite uses a partial index only if the
    query has the same condition. PostgreSQL finds the index by itself, and would expect too few rows from a repeated
    condition.
    """
    found = _is_one_of(statuses, ScheduleStatus, column)
    if ScheduleStatus.DELETED not in statuses:
        found &= IS_LIVE
    return found & IS_RESTING if {*statuses} <= {*RESTING} and is_named else found


def ended_so(
    outcomes: Sequence[str], column: sa.ColumnElement[Any] = schedules.c.last_outcome, *, is_named: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that the newest run ended in one of these ways; `is_named` as in `has_status`."""
    is_one = _is_one_of(outcomes, LastOutcome, column)
    return is_one & ENDED_BADLY if is_named and _ended_badly(outcomes) else is_one


def _ended_badly(outcomes: Iterable[str]) -> bool:
    """Return whether the index of schedules that ended badly has all schedules with these outcomes."""
    return {*outcomes} <= {LastOutcome.FAILED, LastOutcome.LOST}


def _is_one_of(words: Sequence[str], known: type[StrEnum], column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition with literals, because with bound values no plan could use the partial index of exceptions."""
    wanted = [constant(one) for one in known if one in words]
    return column == wanted[0] if len(wanted) == 1 else column.in_(wanted)


SORTS = {
    f"{sign}{name}": (column, bool(sign))
    for name, column in {**TIMES, "id": schedules.c.schedule_id}.items()
    for sign in ("", "-")
}
"""The orders of a list: by creation, by next fire (only schedules with a next time), by id."""
MOST_LOOKED_AT = 2_000
"""How many schedules one page searches for matches of a filter without an index."""
Position = tuple[datetime | str, str]
"""A place in an order: the value of the order's column, and a uid."""


class Found(NamedTuple):
    """A page of schedules."""

    items: list[Schedule]
    """The schedules."""
    following: Position | None
    """The place after which the next page begins; None after the last page."""
    is_cut: bool
    """Whether the page ended because it has searched as many schedules as it may. Such a page may be short or empty."""


def require_limit(limit: int, most: int = MAX_PAGE) -> int:
    """Check a page size; raises InvalidLimitError."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidLimitError("limit", f"must be a whole number from 1 to {most}")
    return limit


def require_sort(sort: str) -> str:
    """Check the order of a list; raises InvalidInputError."""
    if sort not in SORTS:
        raise InvalidInputError("sort", f"{sort!r} is not one of {', '.join(SORTS)}")
    return sort


def list_schedules(
    connection: Connection,
    filters: Filters,
    *,
    limit: int,
    cursor: str | None,
    sort: str = "created",
    offset: int = 0,
    most: int | None = None,
    most_looked_at: int | None = None,
    is_slim: bool = False,
) -> Page[Schedule]:
    """Read a page of schedules; see `search_schedules`. With `most_looked_at` the page may be short or empty."""
    of = "schedules", filters.namespace, sort
    place = unbind_cursor(cursor, *of)
    after = None if place is None else read_cursor(place, is_text=SORTS[sort][0] is schedules.c.schedule_id)
    found = search_schedules(
        connection, filters, sort=sort, after=after, limit=limit, offset=offset, most=most,
        most_looked_at=most_looked_at, is_slim=is_slim,
    )  # fmt: skip
    following = None if found.following is None else write_cursor(*found.following)
    return Page(found.items, bind_cursor(following, *of))


def fill_page(
    database: Database,
    filters: Filters,
    *,
    limit: int,
    cursor: str | None,
    sort: str = "created",
    most: int | None = None,
    is_short_enough: bool = False,
) -> Page[Schedule]:
    """Read a page of schedules in as many bounded transactions as necessary. Only the last page is short.

    With `is_short_enough`, a page may end after one schedule. Use it with `most`, which bounds a page's characters.
    """
    found: list[Schedule] = []
    looked_at = MOST_LOOKED_AT
    while True:
        page = database.read(
            partial(
                list_schedules, filters=filters, limit=limit + 1 - len(found), cursor=cursor, sort=sort, most=most,
                most_looked_at=looked_at,
            )
        )  # fmt: skip
        found, cursor = found + page.items, page.next_cursor
        if len(found) > limit:
            following = write_cursor(*place_of(found[limit - 1], sort))
            return Page(found[:limit], bind_cursor(following, "schedules", filters.namespace, sort))
        if cursor is None or (found and is_short_enough):
            return Page(found, cursor)
        looked_at = min(2 * looked_at, _MOST_AT_ONCE)


_MOST_AT_ONCE = 16_000
"""How many schedules one transaction searches at most, if a page takes several transactions."""


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
    """Read a page in one of SORTS after a place, of at most `most` characters (`cut_to_size`).

    `is_slim` leaves arguments, memo and search attributes empty. If `most_looked_at` is None, every schedule is
    searched.
    """
    if most_looked_at is None:  # else SQLite would sort all schedules of a namespace for a page of next fires
        plan = _Plan(_Way.WALKED if _is_by_hand(connection, sort) else _Way.ANY)
    else:
        plan = _plan(connection, filters, sort, after, most_looked_at)
    build = _page_once if filters.is_plain else _page
    places = after is not None, plan.end is not None
    statement, sizes = build(dialect_of(connection), filters, sort, plan.way, places, limit + 1, offset, is_slim)
    given = _given("after", after) | _given("end", plan.end)
    statement, cut = cut_to_size(connection, statement, most, sizes, given)
    found = to_schedules(connection, connection.execute(statement, given).all())
    if len(found) > limit or cut is not None:
        items = found[:limit]
        return Found(items, place_of(items[-1], sort), is_cut=False)
    return Found(found, plan.end, is_cut=plan.end is not None)


def place_of(schedule: Schedule, sort: str) -> Position:
    """Return the place of a schedule in an order."""
    return getattr(schedule, SORTS[sort][0].name), schedule.uid


class _Way(Enum):
    """How a page is read. SQLite gets hints; PostgreSQL uses its statistics."""

    ANY = auto()
    """As the database plans it, because an index has the matching rows in the page's order."""
    WALKED = auto()
    """Along the index that has the page's order, past schedules that do not match."""
    SORTED = auto()
    """Through an index that selects few schedules. These are then sorted."""
    DUE = auto()
    """Through the index of next fires, because few schedules of all namespaces are within the requested times."""


class _Plan(NamedTuple):
    """How a page is read, and where it ends."""

    way: _Way = _Way.ANY
    """The way to read it."""
    end: Position | None = None
    """The last place that is searched; None searches to the end."""


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
    """Build the statements that read a page and its sizes.

    `places` has two flags: whether the page begins after `after_at` and `after_uid`, and whether it ends at `end_at`
    and `end_uid`.
    """
    is_continued, is_ended = places
    is_walked = way is _Way.WALKED
    statement = SELECT_SLIM_SCHEDULES if is_slim else SELECT_SCHEDULES
    column, is_descending = SORTS[sort]
    exceptions = {
        "status",
        "last_outcome",
        "consecutive_failures",
        *(["namespace"] if column is schedules.c.due_at else []),
    }
    is_due = way is _Way.DUE
    hidden = frozenset(exceptions if is_walked else {"namespace"} if is_due else ())
    statement = statement.where(*conditions_of(dialect, filters, is_walked=is_walked, hidden=hidden))
    statement = statement.where(*_has_place(sort, filters), *([IS_ACTIVE] if is_due else []))
    order: tuple[sa.ColumnElement[Any], ...] = (column, schedules.c.uid)
    if way is _Way.SORTED or (is_due and column is not schedules.c.due_at):
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
"""`_page` with a cache, because building a statement takes as long as executing it."""


def _direction(sort: str, order: Sequence[sa.ColumnElement[Any]]) -> list[sa.ColumnElement[Any]]:
    return [part.desc() if SORTS[sort][1] else part.asc() for part in order]


def _has_place(sort: str, filters: Filters) -> list[sa.ColumnElement[bool]]:
    """Return the condition that a schedule has a place in the order."""
    column, _ = SORTS[sort]
    if column is not schedules.c.due_at:
        return []
    is_none = bool(filters.statuses) and ScheduleStatus.ACTIVE not in filters.statuses
    return [IS_ACTIVE, column.is_not(None), *([sa.false()] if is_none else [])]


def _plan(connection: Connection, filters: Filters, sort: str, after: Position | None, most: int) -> _Plan:
    """Decide how to read a page. If few schedules can match, sort them. Otherwise search all in the page's order.

    Without this decision SQLite, which has no statistics, would sort all schedules of a namespace by their next fires.
    """
    if filters.namespace is None:
        return _Plan()
    is_in_order, has_statistics = _is_in_order(filters, sort), dialect_of(connection).has_statistics
    by_hand = _is_by_hand(connection, sort)
    if is_in_order and not by_hand:
        return _Plan()
    of_namespace = schedules.c.namespace == filters.namespace
    few = [] if is_in_order else _exceptions(filters, is_named=not has_statistics)
    few += [(IS_LIVE, ())] if by_hand else []
    for condition, order in few:
        is_due = order[:1] == (schedules.c.due_at,) and not has_statistics
        if is_due and _has_fewer(connection, condition, order, most):  # among the schedules of all namespaces
            return _Plan(_Way.DUE)
        if _has_fewer(connection, of_namespace & condition, order, most):
            return _Plan(_Way.SORTED)
    return _Plan(_Way.WALKED, None if is_in_order else _end(connection, filters, sort, after, most))


def _is_by_hand(connection: Connection, sort: str) -> bool:
    """Return whether SQLite needs a hint to use the index of next fires."""
    return SORTS[sort][0] is schedules.c.due_at and not dialect_of(connection).has_statistics


def _is_in_order(filters: Filters, sort: str) -> bool:
    """Return whether an index has exactly the matching schedules in this order."""
    name = sort.removeprefix("-")
    own: dict[str, Any] = {} if name == "id" else {f"{name}_since": None, f"{name}_until": None}
    rest = replace(filters, namespace=None, statuses=(), outcomes=(), **own)
    if rest != Filters():
        return False
    statuses, outcomes = {*filters.statuses}, {*filters.outcomes}
    if name == "next" and statuses and ScheduleStatus.ACTIVE not in statuses:
        return True  # no such schedule has a next time
    if outcomes:
        return name == "id" and not statuses and len(outcomes) == 1 and _ended_badly(outcomes)
    is_one_resting = len(statuses) == 1 and statuses <= {*RESTING} and name != "next"
    return not statuses or is_one_resting or (statuses == {ScheduleStatus.DELETED} and name == "id")


_Few = tuple[sa.ColumnElement[bool], tuple[sa.Column[Any], ...]]


def _exceptions(filters: Filters, *, is_named: bool) -> list[_Few]:
    """Return the filters that an index of exceptions covers, or that bound an instant, each with the index's order.

    If rows are counted in the order of the index, PostgreSQL reads only the index.
    """
    uid, schedule_id, found = schedules.c.uid, schedules.c.schedule_id, list[_Few]()
    statuses = {*filters.statuses}
    if statuses and (statuses <= {*RESTING} or statuses == {ScheduleStatus.DELETED}):
        is_resting = ScheduleStatus.DELETED not in statuses
        order = (schedules.c.status, schedule_id, uid) if is_resting else (schedule_id, schedules.c.created_at, uid)
        found.append((has_status(filters.statuses, is_named=is_named), order))
    if filters.outcomes and _ended_badly(filters.outcomes):
        is_meant = ended_so(filters.outcomes, is_named=is_named)
        found.append((is_meant, (schedules.c.last_outcome, schedule_id, uid)))
    if filters.overdue:
        found.append((IS_OVERDUE, (schedules.c.overdue_since, uid)))
    if filters.failing:
        found.append((IS_FAILING & IS_ACTIVE, (schedules.c.consecutive_failures, uid)))
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
    """Return the last of the next `most` schedules after a place; None if there are fewer."""
    column, is_descending = SORTS[sort]
    owner: sa.ColumnElement[Any] = schedules.c.namespace
    if column is schedules.c.due_at:
        owner = dialect_of(connection).unindexed(schedules.c.namespace)
    looked_at = sa.select(column, schedules.c.uid).where(owner == filters.namespace, *_has_place(sort, filters))
    if column is schedules.c.schedule_id:
        looked_at = looked_at.where(IS_LIVE)  # as in the index by id; the index by creation also has deleted schedules
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


def count_schedules(connection: Connection, filters: Filters) -> int:
    """Count the schedules that all pages of a list show together.

    If the filters are only a namespace and statuses, only indexes are read.
    """
    dialect = dialect_of(connection)
    is_named = not dialect.has_statistics
    if replace(filters, namespace=None, statuses=()) != Filters():
        return _count(connection, *conditions_of(dialect, filters))
    wanted = {status for status in ScheduleStatus if status in (filters.statuses or _SHOWN)}
    # One index has all schedules of a namespace. The indexes of exceptions have the schedules that are not active.
    has_active = ScheduleStatus.ACTIVE in wanted
    counted = _EXCEPTIONS - wanted if has_active else wanted
    owner = [] if filters.namespace is None else [schedules.c.namespace == filters.namespace]
    found = sum(_count(connection, *owner, has_status((status,), is_named=is_named)) for status in counted)
    return _count(connection, *owner) - found if has_active else found


_EXCEPTIONS = {*ScheduleStatus} - {ScheduleStatus.ACTIVE}
_SHOWN = {*ScheduleStatus} - {ScheduleStatus.DELETED}


def _count(connection: Connection, *conditions: sa.ColumnElement[bool]) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(schedules).where(*conditions)).scalar_one()


def count_up_to(connection: Connection, filters: Filters, most: int) -> int:
    """Count schedules, up to `most`, by an index of exceptions, such as the index of failing schedules."""
    dialect = dialect_of(connection)
    few = _exceptions(filters, is_named=not dialect.has_statistics)
    some: sa.Select[tuple[int]] = sa.select(sa.literal_column("1")).select_from(schedules)
    some = some.where(*conditions_of(dialect, filters))
    some = some.order_by(*(few[0][1] if few else ())).limit(most)
    return connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()


def count_by_status(connection: Connection, namespace: str, most: int) -> dict[str, int]:
    """Count the schedules of a namespace in each status, each up to `most`."""
    given = {"namespace": namespace, "most": most, "looked_at": _LOOKED_AT * most}
    active, *exceptions = connection.execute(_select_counts(dialect_of(connection)), given).one()
    if active < most and max(exceptions) >= most:  # perhaps most of the searched schedules are not active
        active = _count_active(connection, namespace, most)
    return {"active": active} | {status.value: count for status, count in zip(RESTING, exceptions, strict=False)}


@lru_cache(maxsize=2)
def _select_counts(dialect: Dialect) -> sa.Select[Any]:
    """Select how many of some schedules are active, and how many schedules rest or are deleted, by status."""
    owner = schedules.c.namespace == sa.bindparam("namespace", type_=schedules.c.namespace.type)
    most, looked_at = (sa.bindparam(name, type_=sa.Integer) for name in ("most", "looked_at"))
    one: sa.ColumnClause[int] = sa.literal_column("1")
    is_named = not dialect.has_statistics
    some = sa.select(schedules.c.status).where(owner).limit(looked_at).subquery()
    exceptions = (
        sa.select(one).where(owner, has_status((status,), is_named=is_named))
        for status in (*RESTING, ScheduleStatus.DELETED)
    )
    counted = sa.select(one).where(some.c.status == constant(ScheduleStatus.ACTIVE)), *exceptions
    return sa.select(*(counting(rows, most).scalar_subquery() for rows in counted))


def _count_active(connection: Connection, namespace: str, most: int) -> int:
    """Count the active schedules of a namespace that has many others, up to `most`."""
    due = schedules.c.due_at, schedules.c.uid
    some = sa.select(schedules.c.namespace).where(IS_ACTIVE).order_by(*due).limit(_LOOKED_AT * most).subquery()
    of_it = sa.func.coalesce(sa.func.sum(sa.case((some.c.namespace == namespace, 1), else_=0)), 0)
    looked_at, found = connection.execute(sa.select(sa.func.count(), of_it).select_from(some)).one()
    if found >= most or looked_at < _LOOKED_AT * most:
        return min(int(found), most)
    # Most active schedules belong to other namespaces. So count the schedules of this namespace, and subtract those
    # that are not active.
    others = count_schedules(connection, Filters(namespace=namespace, statuses=tuple(_EXCEPTIONS)))
    return max(0, _count_up_to(connection, others + most, schedules.c.namespace == namespace) - others)


def count_active(connection: Connection, namespace: str | None, most: int) -> int:
    """Count the active schedules of a namespace, or of all, up to `most`."""
    if namespace is None:
        return _count_up_to(connection, most, IS_ACTIVE)
    return count_by_status(connection, namespace, most)["active"]


_LOOKED_AT = 5
"""To count up to `most` active schedules, this many times `most` schedules of any status are searched."""


def _count_up_to(
    connection: Connection, most: int, *conditions: sa.ColumnElement[bool], order: Sequence[sa.Column[Any]] = ()
) -> int:
    """Count the rows that meet the conditions, up to `most`."""
    some: sa.Select[tuple[int]] = sa.select(sa.literal_column("1")).where(*conditions).order_by(*order)
    return connection.execute(counting(some, most)).scalar_one()


def ids(connection: Connection, namespace: str, prefix: str, limit: int) -> list[str]:
    """Return the ids of a namespace that begin with the prefix, in order."""
    statement = (
        sa.select(schedules.c.schedule_id)
        .where(
            schedules.c.namespace == namespace,
            schedules.c.status != "deleted",
            schedules.c.schedule_id.startswith(prefix, autoescape=True),
        )
        .order_by(schedules.c.schedule_id)
        .limit(limit)
    )
    return list(connection.execute(statement).scalars())


def find_newest(connection: Connection, namespace: str, schedule_id: str) -> Schedule | None:
    """Read the newest incarnation of an id, deleted or not, because its history stays readable."""
    newest = schedules.c.created_at.desc(), schedules.c.uid.desc()
    named = SELECT_SCHEDULES.where(schedules.c.namespace == namespace, schedules.c.schedule_id == schedule_id)
    for is_indexed in (IS_LIVE, IS_DELETED):
        row = connection.execute(named.where(is_indexed).order_by(*newest).limit(1)).first()
        if row is not None:
            return to_schedule(connection, row)
    return None


def find_before(connection: Connection, schedule: Schedule, at: datetime) -> Schedule | None:
    """Read an earlier incarnation of a schedule's id: the newest that was created at or before an instant."""
    is_before = schedules.c.created_at <= at, schedules.c.uid < schedule.uid, IS_DELETED
    same = schedules.c.namespace == schedule.namespace, schedules.c.schedule_id == schedule.schedule_id
    newest = schedules.c.created_at.desc(), schedules.c.uid.desc()
    row = connection.execute(SELECT_SCHEDULES.where(*same, *is_before).order_by(*newest).limit(1)).first()
    return None if row is None else to_schedule(connection, row)


def soonest(connection: Connection, namespace: str, limit: int) -> list[Schedule]:
    """Read the active schedules of a namespace that fire next, the earliest first."""
    return _first_due(connection, namespace, limit, schedules.c.due_at.is_not(None))


def resuming(connection: Connection, filters: Filters, until: datetime) -> list[Schedule]:
    """Read the matching paused schedules (slim) whose pause ends by itself before `until`, the earliest end first."""
    meant = RESUMES, schedules.c.resume_at < until, has_status((ScheduleStatus.PAUSED.value,), is_named=False)
    statement = SELECT_SLIM_SCHEDULES.where(*meant, *conditions_of(dialect_of(connection), filters))
    order = schedules.c.resume_at, schedules.c.uid
    return to_schedules(connection, connection.execute(statement.order_by(*order).limit(_MOST_AT_ONCE)).all())


def late(
    connection: Connection, namespace: str | None, since: datetime, limit: int, frozen: Collection[str] = ()
) -> list[Schedule]:
    """Read the active schedules of a namespace, or of all, that were due by `since`, the earliest first.

    Schedules of `frozen` namespaces are left out.
    """
    return _first_due(connection, namespace, limit, schedules.c.due_at <= since, *is_outside(frozen))


def count_late(
    connection: Connection, namespace: str | None, since: datetime, most: int, frozen: Collection[str] = ()
) -> int:
    """Count the schedules that `late` reads, up to `most`.

    They are counted in order, because a plan without an order could read all schedules.
    """
    owner = _is_of(namespace, dialect_of(connection).unindexed(schedules.c.namespace))
    is_meant = IS_ACTIVE, schedules.c.due_at <= since, *owner, *is_outside(frozen)
    return _count_up_to(connection, most, *is_meant, order=(schedules.c.due_at, schedules.c.uid))


def _first_due(
    connection: Connection, namespace: str | None, limit: int, *is_meant: sa.ColumnElement[bool]
) -> list[Schedule]:
    owner = _is_of(namespace, dialect_of(connection).unindexed(schedules.c.namespace))
    statement = SELECT_SCHEDULES.where(IS_ACTIVE, *is_meant, *owner).order_by(schedules.c.due_at, schedules.c.uid)
    return to_schedules(connection, connection.execute(statement.limit(limit)).all())


def _is_of(
    namespace: str | None, column: sa.ColumnElement[Any] = schedules.c.namespace
) -> list[sa.ColumnElement[bool]]:
    return [] if namespace is None else [column == namespace]


def due_uids(connection: Connection, now: datetime, limit: int, frozen: Collection[str] = ()) -> list[tuple[str, int]]:
    """Read (uid, n) of active schedules that are due and that this release may fire, the earliest first.

    Schedules of `frozen` namespaces are left out.
    """
    columns = schedules.c.uid, schedules.c.n, schedules.c.due_at, schedules.c.spec
    is_due = schedules.c.status == "active", schedules.c.due_at <= now, *is_outside(frozen)
    statement = sa.select(*columns).where(*is_due)
    rows, after = page_by_due_time(connection, statement, schedules, None, limit)
    found = [(row.uid, row.n) for row in rows if _may_fire(row.spec)]
    while after is not None and len(found) < limit:
        rows, after = page_by_due_time(connection, statement, schedules, after, limit)
        found += [(row.uid, row.n) for row in rows if _may_fire(row.spec)]
    return found[:limit]


def _may_fire(spec: str) -> bool:
    try:
        return not parse_spec(spec).newer
    except ValueError:  # the fire of this schedule records the error
        return True


def dead(connection: Connection, namespace: str | None, limit: int) -> list[Schedule]:
    """Read the dead schedules of a namespace, or of all, the newest first."""
    filters = Filters(namespace=namespace, statuses=(ScheduleStatus.DEAD.value,))
    return list_schedules(connection, filters, limit=limit, cursor=None, sort="-created").items


def failing(connection: Connection, namespace: str | None, limit: int) -> list[Schedule]:
    """Read the active schedules of a namespace, or of all, whose newest runs all failed (`REPEATEDLY`)."""
    statement = SELECT_SCHEDULES.where(*_is_of(namespace), IS_FAILING, IS_ACTIVE)
    order = schedules.c.consecutive_failures.desc(), schedules.c.uid
    return to_schedules(connection, connection.execute(statement.order_by(*order).limit(limit)).all())


def unsuccessful(
    connection: Connection, namespace: str | None, limit: int, frozen: Collection[str] = ()
) -> list[Schedule]:
    """Read the overdue schedules of a namespace, or of all, the longest overdue first.

    Schedules of `frozen` namespaces are left out.
    """
    statement = SELECT_SCHEDULES.where(*_is_of(namespace), IS_OVERDUE, IS_LIVE, *is_outside(frozen))
    order = schedules.c.overdue_since, schedules.c.uid
    return to_schedules(connection, connection.execute(statement.order_by(*order).limit(limit)).all())


def limited_to_environments(connection: Connection, namespace: str | None, limit: int) -> list[Schedule]:
    """Read the active schedules of a namespace, or of all, that fire only in some environments.

    This reads all active schedules.
    """
    is_limited = schedules.c.policies.contains('"environments":', autoescape=True)
    statement = SELECT_SCHEDULES.where(*_is_of(namespace), IS_ACTIVE, is_limited).order_by(schedules.c.uid)
    return to_schedules(connection, connection.execute(statement.limit(limit)).all())


def excluding_without_next(connection: Connection, namespace: str | None, limit: int) -> list[Schedule]:
    """Read active schedules of a namespace, or of all, that exclude times, have no next time and wait for no run."""
    excludes = schedules.c.spec.contains('"exclude":', autoescape=True) | NAMES_CALENDARS
    is_idle = schedules.c.due_at.is_(None) & schedules.c.awaiting_run_uid.is_(None)
    statement = SELECT_SCHEDULES.where(*_is_of(namespace), IS_ACTIVE, is_idle, excludes).order_by(schedules.c.uid)
    found = to_schedules(connection, connection.execute(statement.limit(limit)).all())
    return [one for one in found if one.spec.is_known]


def namespaces(connection: Connection, most: int) -> list[str]:
    """Return the namespaces that have schedules, in order.

    Each namespace costs one step in an index, whatever its size.
    """
    return [*connection.execute(_NAMESPACES, {"most": most}).scalars()]


def _select_namespaces() -> sa.Select[str]:
    least = sa.select(sa.func.min(schedules.c.namespace).label("name"))
    found = least.cte("found", recursive=True)
    following = least.where(schedules.c.namespace > found.c.name).correlate(found).scalar_subquery()
    found = found.union_all(sa.select(following).where(found.c.name.is_not(None)))
    return sa.select(found.c.name).where(found.c.name.is_not(None)).limit(sa.bindparam("most", type_=sa.Integer))


_NAMESPACES = _select_namespaces()
