"""Pages of the runs of all schedules, with filters and an order.

A page is read along an index that has the page's order. There are indexes for uids (the order of creation), for failed
runs, for unfinished runs, and for the numbers of one schedule's runs. No index has a workflow, a success or the text of
an error, because each fire would write to such an index. So a page ends after `most_looked_at` searched runs, whatever
is stored. It has the matches among these runs, and the cursor of the next page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.ids import first_uid_at, is_uid
from rqsched.kernel.decide.model import BLOCKED, OPEN, UNFINISHED, Run, RunStatus
from rqsched.kernel.decide.results import Page
from rqsched.kernel.queries.pages import (
    bind_cursor,
    bound_to,
    cut_to_size,
    malformed_cursor,
    read_cursor,
    read_number,
    unbind_cursor,
    write_cursor,
)
from rqsched.kernel.queries.runs import is_of_namespace, is_one_of, to_show
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.rows import SELECT_RUNS, SELECT_SLIM_RUNS, to_run
from rqsched.kernel.store.tables import (
    HAS_FAILED,
    HAS_JOB,
    IS_BLOCKED,
    IS_DELETED,
    IS_IN_LINE,
    IS_LIVE,
    IS_OPEN,
    IS_UNFINISHED,
    constant,
    of_schedule,
    runs,
    schedules,
)

SORTS = ("created", "-created", "-ended")
"""The orders of a list: by creation or by end. A list by end has only failed and lost runs."""
OLDEST_END = "oldest_end"
"""The reverse of `-ended`, in which bulk operations handle failed and lost runs."""
MOST_LOOKED_AT = 5_000
"""How many runs one page searches at most."""
_MOST_AT_ONCE = 20_000
"""How many runs one transaction searches at most, if a page or a count takes several transactions."""
_INCARNATIONS = 20
"""How many incarnations of an id one page searches at most."""
_BEYOND = 2**59
"""A number that no run has."""
_BY_END = ("-ended", OLDEST_END)


class RunFilters(NamedTuple):
    """The filters of a list of runs in a namespace; a run must match each filter that is given."""

    namespace: str
    """The namespace of their schedules."""
    statuses: Sequence[str] = ()
    """The statuses; empty for any status. `blocked` means pending runs that are blocked."""
    schedule_id: str | None = None
    """The id of their schedules, deleted ones included; None for any."""
    workflow: str | None = None
    """The workflow they execute; None for any."""
    since: datetime | None = None
    """Created at this instant or later; None for any time. In a list by end: ended at this instant or later."""
    until: datetime | None = None
    """Created before this instant; None for any time. In a list by end: ended before this instant."""
    limit_group: str | None = None
    """The key of their group; None for any."""
    is_in_line: bool | None = None
    """True selects pending runs that wait for a place of their group, False pending runs that wait for a worker; None
    selects any run."""
    error: str | None = None
    """A part of the text of their error, in upper or lower case; None for any run. Only failed and lost runs have an
    error."""
    backfill_uid: str | None = None
    """The uid of the backfill that created them; None for any run."""
    as_of: datetime | None = None
    """Created before this instant, and if they have ended, ended before it. If only running runs are selected, they
    also started before it. None for any run."""
    uids: tuple[str, str] | None = None
    """The lowest and the highest uid that they may have; None for any run."""


class FoundRuns(NamedTuple):
    """A page of runs."""

    items: list[tuple[str, Run]]
    """The runs, each with the id of its schedule."""
    following: str | None
    """The cursor of the next page; None after the last page."""
    is_cut: bool
    """Whether the page ended because it has searched as many runs as it may. Such a page may be short or empty."""


class CountedRuns(NamedTuple):
    """The number of runs that match, and the first and last of their uids."""

    number: int
    """How many runs match."""
    uids: tuple[str, str] | None
    """The lowest and the highest uid; None if no run matches."""


def count_runs(database: Database, filters: RunFilters, *, sort: str, most: int) -> CountedRuns:
    """Count the runs that match, in as many bounded transactions as necessary. Stop after more than `most` runs."""
    number, uids, cursor = 0, list[str](), None
    while True:
        counts, cursor = database.read(partial(_count_some, filters=filters, sort=sort, cursor=cursor))
        number += sum(count for count, _, _ in counts)
        uids += [uid for _, lowest, highest in counts for uid in (lowest, highest) if uid is not None]
        uids = [min(uids), max(uids)] if uids else []
        if cursor is None or number > most:
            return CountedRuns(number, (uids[0], uids[1]) if uids else None)


def _count_some(
    connection: Connection, filters: RunFilters, sort: str, cursor: str | None
) -> tuple[list[tuple[int, str | None, str | None]], str | None]:
    """Count the runs of each walk, and find their lowest and highest uids. Also return the cursor of the next count."""
    counts, following = list[tuple[int, str | None, str | None]](), None
    statement = sa.select(sa.func.count(), sa.func.min(runs.c.uid), sa.func.max(runs.c.uid)).select_from(runs)
    statement = statement.where(*_conditions(filters, sort))
    for walk in _walks(connection, filters, sort, cursor):
        last = walk.last(connection, _MOST_AT_ONCE)
        among = walk.up_to(last, _MOST_AT_ONCE)
        number, lowest, highest = connection.execute(statement.where(*among)).one()
        counts.append((number, lowest, highest))
        if last is not None:
            return counts, None if _is_over(connection, filters, sort, walk, last) else walk.cursor(last)
        following = walk.following
    return counts, following


def cursor_after(filters: RunFilters, sort: str, run: Run) -> str:
    """Return the cursor of `search_runs` for the runs after a run."""
    if sort in _BY_END:
        return write_cursor(run.ended_at or run.created_at, run.uid)
    if filters.backfill_uid is not None:
        return str(run.number)
    return run.uid if filters.schedule_id is None else f"{run.schedule_uid}.{run.number}"


def fill_runs(
    database: Database,
    filters: RunFilters,
    *,
    limit: int,
    cursor: str | None,
    sort: str | None = None,
    most: int | None = None,
    is_slim: bool = False,
) -> Page[tuple[str, Run]]:
    """Read a page of runs in as many bounded transactions as necessary. Only the last page is short.

    With `most`, any page may be short. The default order is `-created`, or `-ended` with an `error` filter.
    """
    found: list[tuple[str, Run]] = []
    sort, looked_at = sort or ("-created" if filters.error is None else "-ended"), MOST_LOOKED_AT
    of = "runs", filters.namespace, filters.schedule_id, sort
    cursor = unbind_cursor(cursor, *of)
    while True:
        read = partial(search_runs, filters=filters, sort=sort, limit=limit - len(found), most=most, is_slim=is_slim)
        page = database.read(partial(read, cursor=cursor, most_looked_at=looked_at))
        found, cursor = found + page.items, page.following
        if cursor is None or not page.is_cut or len(found) == limit or (found and most is not None):
            return Page(found, bind_cursor(cursor, *of))
        looked_at = min(2 * looked_at, _MOST_AT_ONCE)


def search_runs(
    connection: Connection,
    filters: RunFilters,
    *,
    limit: int,
    cursor: str | None,
    sort: str = "-created",
    most: int | None = None,
    most_looked_at: int = MOST_LOOKED_AT,
    is_slim: bool = False,
) -> FoundRuns:
    """Read a page in one of SORTS after a cursor, of at most `most` characters (`cut_to_size`).

    With an `error` filter, only failed and lost runs match. Slim runs have no arguments, memo, search attributes,
    attempts and result. Raises InvalidLimitError for a cursor of another list.
    """
    items: list[tuple[str, Run]] = []
    following: str | None = None
    select = (SELECT_SLIM_RUNS if is_slim else SELECT_RUNS).add_columns(of_schedule(schedules.c.schedule_id, runs))
    select = select.where(*_conditions(filters, sort))
    for walk in _walks(connection, filters, sort, cursor):
        last = walk.last(connection, most_looked_at)
        among = walk.up_to(last, most_looked_at)
        statement = select.where(*among).order_by(*walk.direction).limit(limit + 1 - len(items))
        statement, cut = cut_to_size(connection, statement, most)
        items += [(row[-1], to_run(row[:-1])) for row in connection.execute(statement)]
        if len(items) > limit or cut is not None:
            items = items[:limit]
            return FoundRuns(_shown(connection, items), walk.cursor_at(items[-1][1]), is_cut=False)
        if last is not None:
            following = None if _is_over(connection, filters, sort, walk, last) else walk.cursor(last)
            break
        following = walk.following
    return FoundRuns(_shown(connection, items), following, is_cut=following is not None)


def _shown(connection: Connection, items: Sequence[tuple[str, Run]]) -> list[tuple[str, Run]]:
    shown = to_show(connection, [run for _, run in items])
    return [(name, run) for (name, _), run in zip(items, shown, strict=True)]


def _conditions(filters: RunFilters, sort: str) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a run must meet."""
    found, status = [is_of_namespace(filters.namespace)], _walked_status(filters, sort)
    if filters.statuses and {*filters.statuses} != {status}:
        found.append(is_one_of(filters.statuses))
    if filters.schedule_id is not None:
        found.append(of_schedule(schedules.c.schedule_id, runs) == filters.schedule_id)
    if filters.workflow is not None:
        found.append(runs.c.workflow == filters.workflow)
    if filters.limit_group is not None:
        found.append(runs.c.limit_group == filters.limit_group)
    if filters.is_in_line is not None:
        found.append(_is_in_line(status) if filters.is_in_line else HAS_JOB & ~IS_BLOCKED)
    if filters.error is not None:
        found += [HAS_FAILED, runs.c.error.icontains(filters.error, autoescape=True)]
    if filters.backfill_uid is not None:
        found.append(runs.c.backfill_uid == filters.backfill_uid)
    if sort not in _BY_END:
        found += [] if filters.since is None else [runs.c.created_at >= filters.since]
        found += [] if filters.until is None else [runs.c.created_at < filters.until]
    return found + _are_of_set(filters)


def _is_in_line(status: RunStatus | None) -> sa.ColumnElement[bool]:
    """Return the condition that a run is in line; `status` is from `_walked_status`."""
    if status is not RunStatus.PENDING:
        return IS_IN_LINE
    # The concatenation keeps PostgreSQL from reading and sorting the whole line, of which it expects few runs.
    has_group = runs.c.limit_group.concat("").is_not(None)
    return has_group & runs.c.granted_at.is_(None) & runs.c.passed_at.is_(None)


def _walked_status(filters: RunFilters, sort: str) -> RunStatus | None:
    """Return the status of all runs along which a page is walked (`_by_uid`); None if they may have several."""
    meant = {RunStatus.PENDING.value if status == BLOCKED else status for status in filters.statuses}
    is_by_uid = sort not in _BY_END and filters.backfill_uid is None and filters.schedule_id is None
    return RunStatus(*meant) if is_by_uid and len(meant) == 1 and meant <= UNFINISHED else None


def _are_of_set(filters: RunFilters) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a run belongs to a set which was fixed earlier; none if no set was fixed."""
    found: list[sa.ColumnElement[bool]] = []
    if filters.as_of is not None:
        found += [runs.c.created_at < filters.as_of, runs.c.ended_at.is_(None) | (runs.c.ended_at < filters.as_of)]
        found += [runs.c.started_at < filters.as_of] if {*filters.statuses} == {RunStatus.RUNNING} else []
    if filters.uids is not None:
        found += [runs.c.uid >= filters.uids[0], runs.c.uid <= filters.uids[1]]
    return found


def _is_over(connection: Connection, filters: RunFilters, sort: str, walk: _Walk, last: Sequence[Any]) -> bool:
    """Return whether no run after the last searched run can match."""
    bound = {"created": filters.until, "-created": filters.since}.get(sort)
    if bound is None:
        return False
    created_at = walk.created_at(connection, last)
    return created_at >= bound if sort == "created" else created_at < bound


class _Walk(NamedTuple):
    """A search for runs along an index. A *place* is the key of a run in this index."""

    within: list[sa.ColumnElement[bool]]
    """The conditions that bound the search: the condition of the index, the times, and the place where it begins."""
    order: tuple[sa.Column[Any], ...]
    """The columns by which the index is ordered."""
    is_descending: bool
    """Whether the index is read backwards."""
    schedule_uid: str = ""
    """The uid of the schedule (incarnation) whose runs are searched; empty for the runs of all schedules."""
    following: str | None = None
    """The cursor after the end of this walk; None if nothing follows, or if another walk follows."""
    parts: Sequence[sa.Select[Any]] = ()
    """If no index has the places of all runs in order, one select for each status, each in the order of the places.
    Otherwise empty."""

    @property
    def direction(self) -> list[sa.ColumnElement[Any]]:
        """The ORDER BY terms."""
        return [column.desc() if self.is_descending else column.asc() for column in self.order]

    def _compared(self, place: Sequence[Any]) -> tuple[Any, Any]:
        if len(self.order) == 1:
            return self.order[0], place[0]
        return sa.tuple_(*self.order), bound_to(self.order, place)

    def is_after(self, place: Sequence[Any]) -> sa.ColumnElement[bool]:
        """Return the condition that a run lies after a place."""
        key, bound = self._compared(place)
        return key < bound if self.is_descending else key > bound  # type: ignore[no-any-return]

    def up_to(self, last: Sequence[Any] | None, most: int) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of the runs of this walk up to `last`, its run number `most`; None has all its runs."""
        if self.parts:
            return [self.order[0].in_(self._places(most).limit(most))]
        if last is None:
            return self.within
        key, bound = self._compared(last)
        return [*self.within, key >= bound if self.is_descending else key <= bound]

    def last(self, connection: Connection, most: int) -> sa.Row[Any] | None:
        """Read the place of run number `most` of this walk from the index; None if the walk has fewer runs."""
        return connection.execute(self._places(most).offset(most - 1).limit(1)).first()

    def _places(self, most: int) -> sa.Select[Any]:
        """Select the places in order, from each part at most `most`."""
        statement: sa.Select[Any] = sa.select(*self.order).where(*self.within).order_by(*self.direction)
        if not self.parts:
            return statement
        merged = sa.union_all(*(sa.select(part.limit(most).subquery()) for part in self.parts)).subquery()
        place = merged.c[self.order[0].name]
        return sa.select(place).order_by(place.desc() if self.is_descending else place.asc())

    def created_at(self, connection: Connection, place: Sequence[Any]) -> datetime:
        """Read when the run at a place was created."""
        is_there = (column == value for column, value in zip(self.order, place, strict=True))
        found: datetime = connection.execute(sa.select(runs.c.created_at).where(*self.within, *is_there)).scalar_one()
        return found

    def cursor_at(self, run: Run) -> str:
        """Return the cursor of the page after a run. The run may be of an incarnation of an earlier walk."""
        place = [getattr(run, column.name) for column in self.order]
        return self._replace(schedule_uid=self.schedule_uid and run.schedule_uid).cursor(place)

    def cursor(self, place: Sequence[Any]) -> str:
        """Return a place as a text."""
        if len(place) == 2:
            return write_cursor(place[0], place[1])
        return f"{self.schedule_uid}.{place[0]}" if self.schedule_uid else str(place[0])


def _walks(connection: Connection, filters: RunFilters, sort: str, cursor: str | None) -> Iterator[_Walk]:
    """Yield the walks of a page; none if a filter has a null character, which no row has and drivers refuse."""
    if sort not in (*SORTS, OLDEST_END):
        raise InvalidInputError("sort", f"{sort!r} is not one of {', '.join(SORTS)}")
    texts = filters.schedule_id, filters.workflow, filters.error, filters.backfill_uid, filters.limit_group
    if any(text is not None and "\x00" in text for text in texts):
        return
    if sort in _BY_END:
        yield _by_end(filters, cursor, is_descending=sort == "-ended")
    elif filters.backfill_uid is not None:
        yield _by_backfill(filters.backfill_uid, cursor, is_descending=sort == "-created")
    elif filters.schedule_id is not None:
        yield from _by_number(connection, filters, cursor, is_descending=sort == "-created")
    else:
        yield _by_uid(dialect_of(connection), filters, cursor, is_descending=sort == "-created")


def _by_end(filters: RunFilters, cursor: str | None, *, is_descending: bool) -> _Walk:
    walk = _Walk([HAS_FAILED], (runs.c.ended_at, runs.c.uid), is_descending)
    walk.within.extend([] if filters.since is None else [runs.c.ended_at >= filters.since])
    walk.within.extend([] if filters.until is None else [runs.c.ended_at < filters.until])
    walk.within.extend([] if filters.as_of is None else [runs.c.ended_at < filters.as_of])
    walk.within.extend([] if cursor is None else [walk.is_after(read_cursor(cursor))])
    return walk


def _by_backfill(uid: str, cursor: str | None, *, is_descending: bool) -> _Walk:
    walk = _Walk([runs.c.backfill_uid == uid], (runs.c.number,), is_descending)
    walk.within.extend([] if cursor is None else [walk.is_after((read_number(cursor),))])
    return walk


def _by_uid(dialect: Dialect, filters: RunFilters, cursor: str | None, *, is_descending: bool) -> _Walk:
    """Walk in the order of uids, which begin with the time.

    If the filters select only open runs, walk along the indexes of open runs, one status at a time. So the runs that
    have ended are not read, of which there may be millions. The conditions have no bound values, because with bound
    values SQLite would take an index with another order. SQLite needs the condition of the index; PostgreSQL would
    expect too few rows from a repeated condition.
    """
    if cursor is not None and not is_uid(cursor):
        raise malformed_cursor()
    meant = sorted({RunStatus.PENDING.value if status == BLOCKED else status for status in filters.statuses})
    bounds = partial(_bounds, filters, cursor, is_descending=is_descending)
    walk = _Walk(bounds(runs.c.uid), (runs.c.uid,), is_descending)
    if not meant or not {*meant} <= OPEN:
        return walk
    if len(meant) == 1 and {*meant} <= UNFINISHED:
        is_named = [] if dialect.has_statistics else [IS_UNFINISHED]
        return walk._replace(within=[*is_named, runs.c.status == constant(RunStatus(*meant)), *walk.within])
    parts = list[sa.Select[Any]]()
    for status in map(RunStatus, meant):
        # The index of unfinished runs has the order of uids. The index that has the buffered runs is by schedule, so
        # they are sorted; the concatenation keeps databases from walking along the uids of all runs instead.
        is_sorted = status in UNFINISHED
        key = runs.c.uid if is_sorted else runs.c.uid.concat("")
        within = (IS_UNFINISHED if is_sorted else IS_OPEN) & (runs.c.status == constant(status))
        select = sa.select(runs.c.uid).where(within, *bounds(key))
        parts.append(select.order_by(key.desc() if is_descending else key.asc()))
    return walk._replace(parts=parts)


def _bounds(
    filters: RunFilters, cursor: str | None, key: sa.ColumnElement[Any], *, is_descending: bool
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that bound the uids, which `key` gives."""
    found = [] if filters.since is None else [key >= first_uid_at(filters.since)]
    if filters.until is not None:
        # The first ten characters of a uid are its millisecond. This is the highest uid of the millisecond of `until`.
        found.append(key <= first_uid_at(filters.until)[:10].ljust(26, "Z"))
    if filters.uids is not None:
        found += [key >= filters.uids[0], key <= filters.uids[1]]
    if cursor is not None:
        found.append(key < cursor if is_descending else key > cursor)
    return found


def _by_number(
    connection: Connection, filters: RunFilters, cursor: str | None, *, is_descending: bool
) -> Iterator[_Walk]:
    """Walk through the runs of each incarnation of an id. Incarnations never overlap in time."""
    uid, _, number = (cursor or "").partition(".")
    if cursor is not None and not (is_uid(uid) and number.isascii() and number.isdigit() and len(number) <= 18):
        raise malformed_cursor()
    found = _incarnations(connection, filters, uid, is_descending=is_descending)
    for place, one in enumerate(found[:_INCARNATIONS]):
        is_last = place + 1 == _INCARNATIONS and len(found) > _INCARNATIONS
        following = f"{found[_INCARNATIONS]}.{_BEYOND if is_descending else 0}" if is_last else None
        walk = _Walk([runs.c.schedule_uid == one], (runs.c.number,), is_descending, one, following)
        if one == uid:
            walk.within.append(walk.is_after((int(number),)))
        yield walk


def _incarnations(connection: Connection, filters: RunFilters, start: str, *, is_descending: bool) -> list[str]:
    """Read the uids of an id's incarnations from `start` on, at most one more than a page searches."""
    named = schedules.c.namespace == filters.namespace, schedules.c.schedule_id == filters.schedule_id
    bound = [schedules.c.uid <= start if is_descending else schedules.c.uid >= start] if start else []
    keys = schedules.c.created_at, schedules.c.uid
    of_id = sa.select(schedules.c.uid).where(*named, *bound)
    gone = of_id.where(IS_DELETED).order_by(*(key.desc() if is_descending else key.asc() for key in keys))
    found = [*connection.execute(of_id.where(IS_LIVE)).scalars()]
    found += connection.execute(gone.limit(_INCARNATIONS + 1)).scalars()
    return sorted(found, reverse=is_descending)
