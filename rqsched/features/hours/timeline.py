"""The runs of the timeline chart: how many runs of each status are in each column.

For a short span, the rows of the runs are read, and a run covers the columns in which it ran. For a long span, or a
span with too many runs, the hourly counts (`store`) are read, and a run is in the column of its end. Runs that are not
counted in the hours yet are added from their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.hours import store as run_hours
from rqsched.features.hours.decide import A_DAY
from rqsched.kernel.decide.model import RunKind
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.tables import IS_BACKFILLED, IS_OCCURRENCE, IS_OPEN, SHOWN_STATUS, constant, hours, runs

MOST_RUNS = 50_000
"""The maximum number of runs, of all schedules together, that are read from their rows. If there are more, the hourly
counts are read."""
_BEFORE = 100
"""How many runs before a span are searched for runs that lasted into the span."""
_PROBES = 16
_LAST = 2**62
_SECONDS = 3_600


class Columns(NamedTuple):
    """The columns of the chart."""

    start: int
    """The start of the first column, in seconds since 1970; a multiple of the step."""
    step: int
    """The width of each column in seconds. The hourly counts can be read if it is a multiple of an hour, the counts by
    day if it is a multiple of a day."""
    number: int
    """The number of columns."""

    @property
    def end(self) -> int:
        """The end of the last column, in seconds since 1970."""
        return self.start + self.step * self.number

    @property
    def start_at(self) -> datetime:
        """The start of the first column."""
        return datetime.fromtimestamp(self.start, UTC)

    @property
    def end_at(self) -> datetime:
        """The end of the last column."""
        return datetime.fromtimestamp(self.end, UTC)


class Lot(NamedTuple):
    """Runs of one schedule that are drawn as one bar."""

    schedule_uid: str
    """The schedule."""
    is_backfilled: bool
    """Whether a backfill started the runs. Then they are in the columns of their occurrences."""
    status: str
    """The status of the runs."""
    first: int
    """The column in which the runs begin."""
    last: int
    """The column in which the runs end; for runs that have not ended, the column of now."""
    since: int
    """When the longest run began, in seconds since 1970. If the lot comes from hourly counts, this may be before the
    first column."""
    runs: int
    """The number of runs."""
    number: int | None = None
    """The number of the newest run; None if the lot comes from hourly counts."""
    run_uid: str | None = None
    """The uid of the newest run; None if the lot comes from hourly counts."""


class Picture(NamedTuple):
    """The runs of a timeline chart."""

    lots: list[Lot]
    """The runs, in lots."""
    is_whole: bool = True
    """Whether all runs are included. After an upgrade of the database, older runs may not be counted yet."""


def read_columns(
    connection: Connection, newest: Mapping[str, int], columns: Columns, now: datetime, *, by_hours: bool
) -> Picture:
    """Read the runs in the columns. `newest` has the number of each schedule's newest run, by uid of the schedule.

    The rows of the runs are read. If `by_hours` is set, or if there are more than MOST_RUNS, the hourly counts are read
    instead.
    """
    if not by_hours:
        ranges = _ranges(connection, newest, columns)
        if sum(last - after for _, after, last in ranges) <= MOST_RUNS:
            return Picture(_of_runs(connection, ranges, columns, now))
    return _of_hours(connection, newest, columns, now)


def _ranges(connection: Connection, newest: Mapping[str, int], columns: Columns) -> list[tuple[str, int, int]]:
    """Return for each schedule a range of run numbers that covers its runs in the columns, and a few more.

    Numbers grow with the creation time of runs, but no index holds that time. So this reads the rows of a few numbers
    to narrow the range down.
    """
    start, end = columns.start_at, columns.end_at
    known: dict[str, list[tuple[int, datetime]]] = {uid: [] for uid in newest}
    probes = {uid: {number - 2**power + 1 for power in range(number.bit_length())} for uid, number in newest.items()}
    bounds: dict[str, tuple[_Bound, _Bound]] = {}
    for _ in range(2):
        for row in _made_at(connection, probes):
            known[row.schedule_uid].append((row.number, row.created_at))
        bounds = {uid: _bounds(known[uid], number, start, end) for uid, number in newest.items()}
        probes = {uid: {*_between(*low), *_between(*high)} for uid, (low, high) in bounds.items()}
    return [(uid, max(low[0] - _BEFORE, 0), high[1]) for uid, (low, high) in bounds.items()]


_Bound = tuple[int, int]
"""The greatest known number of a run created before an instant, and the least known number of a run created later."""


def _bounds(
    known: Sequence[tuple[int, datetime]], newest: int, start: datetime, end: datetime
) -> tuple[_Bound, _Bound]:
    def around(instant: datetime) -> _Bound:
        before = max((number for number, at in known if at < instant), default=0)
        return before, min((number for number, at in known if at >= instant), default=newest)

    return around(start), around(end)


def _between(low: int, high: int) -> Iterator[int]:
    """Yield a few numbers between two numbers. Reading the runs with these numbers narrows a range down."""
    step = max((high - low) // _PROBES, _BEFORE // 2)
    yield from range(low + step, high, step)


def _made_at(connection: Connection, numbers: Mapping[str, Iterable[int]]) -> Iterable[sa.Row[Any]]:
    ranges = [(uid, number - 1, number) for uid, some in numbers.items() for number in some]
    dialect = dialect_of(connection)
    return connection.execute(_select_made_at(dialect), dialect.given_ranges(ranges)) if ranges else ()


@lru_cache(maxsize=2)
def _select_made_at(dialect: Dialect) -> sa.Select[Any]:
    statement = sa.select(runs.c.schedule_uid, runs.c.number, runs.c.created_at)
    return dialect.of_ranges(statement, runs.c.schedule_uid, runs.c.number)


_NAMES = ("schedule_uid", "number", "uid", "kind", "status", "occurrence_at", "due_at", "started_at", "ended_at")
_SHOWN = [SHOWN_STATUS.label(name) if name == "status" else runs.c[name] for name in _NAMES]
"""The columns that are read from the rows of runs. Here, an expired run has the status `expired`; in the counts by
hour, it is cancelled."""
_START, _END = (sa.bindparam(name, type_=sa.BigInteger) for name in ("start", "end"))
_STEP, _FINAL = (sa.bindparam(name, type_=sa.BigInteger) for name in ("step", "final"))
_NOW = sa.bindparam("now", type_=sa.BigInteger)
_START_AT, _END_AT = (sa.bindparam(name, type_=runs.c.created_at.type) for name in ("start_at", "end_at"))
_HAS_NOT_ENDED_BEFORE = runs.c.ended_at.is_(None) | (runs.c.ended_at >= _START_AT)


def _of_runs(
    connection: Connection, ranges: Sequence[tuple[str, int, int]], columns: Columns, now: datetime
) -> list[Lot]:
    dialect, given = dialect_of(connection), _given(columns, now)
    among = {"among": dialect.listed(uid for uid, _, _ in ranges)}
    asked = (
        (_ended_lots(dialect), dialect.given_ranges(ranges)),
        (_open_lots(dialect), among),
        (_backfilled_lots(dialect), among),
    )
    return [Lot(*row) for statement, more in asked for row in connection.execute(statement, given | more)]


@lru_cache(maxsize=2)
def _ended_lots(dialect: Dialect) -> sa.Select[Any]:
    within = ~IS_BACKFILLED, runs.c.created_at < _END_AT, runs.c.ended_at >= _START_AT
    found = sa.select(*_SHOWN).where(*within)
    return _lots_of_live(dialect, dialect.of_ranges(found, runs.c.schedule_uid, runs.c.number))


@lru_cache(maxsize=2)
def _open_lots(dialect: Dialect) -> sa.Select[Any]:
    """Select lots of the runs that have not ended, however old they are."""
    found = sa.select(*(runs.c[name] for name in _NAMES)).where(IS_OPEN, ~IS_BACKFILLED)
    return _lots_of_live(dialect, dialect.of_each(found, runs.c.schedule_uid))


def _lots_of_live(dialect: Dialect, found: sa.Select[Any]) -> sa.Select[Any]:
    one = found.subquery().c
    began, ended = _begin(dialect, one), sa.func.coalesce(dialect.seconds(one.ended_at), _NOW)
    return _lots(one, began, began, ended).where(began < _END, ended >= _START)


@lru_cache(maxsize=2)
def _backfilled_lots(dialect: Dialect) -> sa.Select[Any]:
    within = IS_OCCURRENCE, IS_BACKFILLED, runs.c.occurrence_at >= _START_AT, runs.c.occurrence_at < _END_AT
    found = sa.select(*_SHOWN).where(*within)
    one = dialect.of_each(found, runs.c.schedule_uid).subquery().c
    at = dialect.seconds(one.occurrence_at)
    return _lots(one, at, at, at)


def of_backfill(connection: Connection, backfill_uid: str, columns: Columns, now: datetime, most: int) -> list[Lot]:
    """Read the first `most` runs of a backfill, at the times of their occurrences."""
    dialect = dialect_of(connection)
    first = sa.select(*_SHOWN).where(runs.c.backfill_uid == backfill_uid)
    one = first.order_by(runs.c.number).limit(most).subquery().c
    at = dialect.seconds(one.occurrence_at)
    return [Lot(*row) for row in connection.execute(_lots(one, at, at, at), _given(columns, now))]


def _begin(dialect: Dialect, one: Any) -> sa.ColumnElement[int]:
    """Return when a run began, or when it was due if it has not begun."""
    return dialect.seconds(sa.func.coalesce(one.started_at, one.due_at, one.occurrence_at))


def _lots(
    one: Any, began: sa.ColumnElement[int], first: sa.ColumnElement[int], last: sa.ColumnElement[int]
) -> sa.Select[Any]:
    is_backfilled = one.kind == constant(RunKind.BACKFILL)
    key = one.schedule_uid, is_backfilled, one.status, _place(first), _place(last)
    newest = sa.func.count(), sa.func.max(one.number), sa.func.max(one.uid)
    return sa.select(*key, sa.func.min(began), *newest).group_by(*key)


def _place(second: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the column of an instant; an instant before or after the chart is in the first or last column."""
    return sa.case((second < _START, 0), (second >= _END, _FINAL), else_=(second - _START) // _STEP)


def _given(columns: Columns, now: datetime) -> dict[str, Any]:
    instants = {"start_at": columns.start_at, "end_at": columns.end_at, "now": int(now.timestamp())}
    numbers = {"start": columns.start, "end": columns.end, "step": columns.step, "final": columns.number - 1}
    return instants | numbers


def _of_hours(connection: Connection, newest: Mapping[str, int], columns: Columns, now: datetime) -> Picture:
    dialect, given = dialect_of(connection), _given(columns, now)
    among = {"among": dialect.listed(newest)}
    to = run_hours.counted_to(connection, [*newest])
    is_whole = sum(newest[uid] - number for uid, number in to.items()) <= 2 * MOST_RUNS
    least = 0 if is_whole else MOST_RUNS // len(newest)
    behind = [(uid, number if is_whole else max(number, newest[uid] - least), _LAST) for uid, number in to.items()]
    width = A_DAY if columns.step % (A_DAY * _SECONDS) == 0 else 1
    within = {"width": width, "first": columns.start // _SECONDS, "last_hour": (columns.end - 1) // _SECONDS}
    asked = (
        (_hour_lots(dialect), among | within),
        (_lots_behind(dialect), dialect.given_ranges(behind)),
        (_passed_lots(dialect), among),
    )
    return Picture(
        [Lot(*row) for statement, more in asked for row in connection.execute(statement, given | more)], is_whole
    )


@lru_cache(maxsize=2)
def _hour_lots(dialect: Dialect) -> sa.Select[Any]:
    width = sa.bindparam("width", type_=sa.BigInteger)
    within = hours.c.width == width, hours.c.hour >= sa.bindparam("first"), hours.c.hour <= sa.bindparam("last_hour")
    names = ("schedule_uid", "hour", "is_backfilled", "outcome", "count", "longest")
    found = sa.select(*(hours.c[name] for name in names)).where(*within)
    one = dialect.of_each(found, hours.c.schedule_uid).subquery().c
    begin = sa.cast(one.hour, sa.BigInteger) * _SECONDS
    took = sa.cast(one.longest, sa.BigInteger) // 1_000_000
    key = one.schedule_uid, one.is_backfilled, one.outcome, _place(begin), _place(begin + (width * _SECONDS - 1))
    total = sa.func.min(begin + width * _SECONDS - took), sa.cast(sa.func.sum(one.count), sa.BigInteger)
    return sa.select(*key, *total).group_by(*key)


@lru_cache(maxsize=2)
def _lots_behind(dialect: Dialect) -> sa.Select[Any]:
    """Select lots of the runs with higher numbers than the counted runs."""
    found = sa.select(*(runs.c[name] for name in _NAMES)).where(_HAS_NOT_ENDED_BEFORE | IS_BACKFILLED)
    return _lots_as_hours(dialect, dialect.of_ranges(found, runs.c.schedule_uid, runs.c.number))


@lru_cache(maxsize=2)
def _passed_lots(dialect: Dialect) -> sa.Select[Any]:
    """Select lots of the runs that counting has passed over; there may be many, so they are never listed in memory."""
    found = run_hours.passed_over(dialect, *(runs.c[name] for name in _NAMES))
    return _lots_as_hours(dialect, found.where(_HAS_NOT_ENDED_BEFORE | IS_BACKFILLED))


def _lots_as_hours(dialect: Dialect, found: sa.Select[Any]) -> sa.Select[Any]:
    """Select lots in the columns of the hourly counts: of a run's end, or of the occurrence if it was backfilled."""
    one = found.subquery().c
    is_backfilled = one.kind == constant(RunKind.BACKFILL)
    begin, end = _begin(dialect, one), dialect.seconds(one.ended_at)
    at = sa.case((is_backfilled, dialect.seconds(one.occurrence_at)), else_=sa.func.coalesce(end, begin))
    last = sa.case((is_backfilled, at), else_=sa.func.coalesce(end, _NOW))
    began = sa.case((is_backfilled, at), else_=begin)
    return _lots(one, began, at, last).where(at < _END, last >= _START)
