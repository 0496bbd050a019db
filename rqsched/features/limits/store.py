"""Groups with limits: their bounds, and the grants of their places.

A grant gives places of a group to runs, in a separate transaction. It locks the row of the group, and then those runs
that no other transaction holds. There is no counter of occupied places. Instead, one statement under that lock counts
the granted and running runs, and only a grant increases their number.

Targets wait in the same line and occupy places like runs. A run that waits for its targets has no place.

A rate of N in T means: in any window of the length T, excluding its end, at most N starts are recorded. Under the lock
of the group, a grant counts the granted runs that have not started, and then the starts since `now - T`. It gives a
place only if the sum is less than N. A claim writes the start in its own transaction (`count_starts`), and every start
has a grant. If a run is given back because its code is missing, it has not started, and its start is removed.

Proof. Take N + 1 starts. Let L be the start that was granted last, at `now`. The other N starts had been granted
before. So the grant of L counted each of these N starts (as unclaimed, as a start or as both), except starts at
`now - T` or before. The grant counted fewer than N, so one of the N starts, E, was at `now - T` or before. L starts at
`now` or later, because a claim writes no instant before its grant (`Dialect.after`). So E and L are T or more apart,
and no window holds both.

The proof uses the recorded instants, so no clock has to be right. But a grant removes starts that left their window
more than `_KEPT_LONGER` ago. So the clocks of two processes that grant may not differ by more than that.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.fan_out.store import TARGET_COLUMNS, Target
from rqsched.features.limits.decide import (
    Bounds,
    Waiting,
    by_place,
    decide_grants,
    most_given,
    others_look,
    quiet_queues,
    wants_grants,
)
from rqsched.kernel.decide.ids import RetryLinkId
from rqsched.kernel.decide.limit_options import MAX_NUMBER, Rate, key_of, split_key
from rqsched.kernel.decide.model import Run, RunStatus, TargetStatus, dumps
from rqsched.kernel.decide.results import MOST_COUNTED, LimitDescription, Page
from rqsched.kernel.queries.pages import bind_cursor, counting, unbind_cursor
from rqsched.kernel.queries.runs import with_places
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.rows import RUN_COLUMNS, to_run
from rqsched.kernel.store.tables import (
    HAD_PLACE,
    IS_IN_LINE,
    IS_LIMITED,
    IS_LIMITED_TARGET,
    IS_LIVE,
    IS_OF_GROUP,
    IS_TARGET_IN_LINE,
    TARGET_HAD_PLACE,
    constant,
    is_late,
    limit_starts,
    limits,
    line_order,
    of_schedule,
    runs,
    schedules,
    targets,
)

MAX_CHANGES = 20
"""A group stores at most so many changes of its bounds. Older changes are dropped."""
_KEPT_LONGER = timedelta(minutes=1)
"""How long a start is kept after it has left its window."""
_NOW = sa.bindparam("now", type_=runs.c.queued_at.type)
_OF_GROUP = sa.bindparam("group", type_=limits.c.limit_group.type)
_MOST = sa.bindparam("most", type_=sa.Integer)
_COUNTED_TO = sa.bindparam("counted_to", type_=sa.BigInteger)
_NO_BOUND = 2**62
"""A `counted_to` that no number reaches."""


class _Kind:
    """A table whose rows occupy places (runs or targets), with conditions on its rows."""

    def __init__(
        self,
        table: sa.Table,
        is_open: sa.ColumnElement[bool],
        is_in_line: sa.ColumnElement[bool],
        had_place: sa.ColumnElement[bool],
        executor: sa.ColumnElement[str],
    ) -> None:
        self.table = table
        self.is_open = is_open
        """Whether the row has a group and has not ended."""
        self.is_in_line = is_in_line
        is_running, is_pending = (table.c.status == constant(one) for one in (RunStatus.RUNNING, RunStatus.PENDING))
        self.had_place = had_place
        """Whether the row has a group and is running, is granted, or has lost its grant. A run that waits for its
        targets has no place."""
        self.is_running = had_place & is_running
        self.is_unclaimed = had_place & is_pending & table.c.passed_at.is_(None)
        self.is_passed = had_place & is_pending & table.c.passed_at.is_not(None)
        self.needs_grant = is_open & is_pending & table.c.granted_at.is_(None)
        self.order = line_order(table)
        is_target = sa.literal_column(str(int(table is targets)), sa.Integer).label("is_target")
        connection, queue = (sa.func.coalesce(column, "") for column in (table.c.connection, table.c.queue))
        self.queue = (executor + ":" + connection + ":" + queue).label("queue")
        self.place = (
            table.c.uid,
            table.c.limit_at,
            table.c.number,
            table.c.granted_at,
            table.c.passed_count,
            is_target,
            self.queue,
        )
        """The columns of a Waiting."""

    def first(self, *may_start: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """Select the first rows of a line."""
        found = sa.select(*self.place).where(self.is_in_line, self.table.c.limit_group == _OF_GROUP, *may_start)
        return found.order_by(*self.order).limit(_MOST)


_RUNS = _Kind(runs, IS_LIMITED, IS_IN_LINE, HAD_PLACE, runs.c.executor)
_TARGETS = _Kind(targets, IS_LIMITED_TARGET, IS_TARGET_IN_LINE, TARGET_HAD_PLACE, sa.literal_column("'rq'", sa.Text))
_KINDS = _RUNS, _TARGETS
_Condition: TypeAlias = Callable[[_Kind], sa.ColumnElement[bool]]
_IS_RUNNING: _Condition = attrgetter("is_running")
_IS_UNCLAIMED: _Condition = attrgetter("is_unclaimed")


class Look(NamedTuple):
    """The time at which a line that waits only for its group's rate may get places again."""

    link: RetryLinkId
    """The link (a delayed job) that gives the places. It is a retry link of the first run in line, with the number of
    the previous attempt. No retry of the run uses this number any more."""
    at: datetime
    """When the start that blocks the line leaves the window of the rate."""


class Granted(NamedTuple):
    """The runs and targets that got a place, in the order of their line."""

    runs: list[Run]
    """The runs."""
    names: Mapping[str, tuple[str, str]]
    """The namespace and id of each run's schedule, by uid of the schedule."""
    targets: list[Target]
    """The targets."""
    looks: list[Look]
    """A Look for each line that waits only for its rate."""


def lock(connection: Connection, groups: Iterable[str], *, skip_locked: bool = False) -> dict[str, Bounds]:
    """Lock the rows of groups, always in the same order. Return the bounds of the groups that exist.

    `skip_locked` leaves out rows that another transaction holds.
    """
    locked = _find(connection, groups).with_for_update(key_share=True, skip_locked=skip_locked)
    return _read(connection, locked)


def keep(connection: Connection, groups: Iterable[str]) -> dict[str, Bounds]:
    """Prevent the removal of groups until this transaction ends. Return the bounds of the groups that exist.

    The lock does not block grants, because a caller's transaction may be long.
    """
    return _read(connection, _find(connection, groups).with_for_update(read=True, key_share=True))


def bounds(connection: Connection, groups: Iterable[str]) -> dict[str, Bounds]:
    """Read the bounds of these groups. Groups that do not exist are left out."""
    return _read(connection, _find(connection, groups))


_BOUNDS = (limits.c.number, limits.c.rate_number, limits.c.rate_seconds)


def _bounds(number: int | None, rate_number: int | None, rate_seconds: int | None) -> Bounds:
    rate = None if rate_number is None or rate_seconds is None else Rate(rate_number, rate_seconds)
    return Bounds(number, rate)


def _values(bounds: Bounds) -> dict[str, Any]:
    number, seconds = bounds.rate or (None, None)
    return {"number": bounds.number, "rate_number": number, "rate_seconds": seconds}


def _find(connection: Connection, groups: Iterable[str]) -> sa.Select[Any]:
    found = sa.select(limits.c.limit_group, *_BOUNDS)
    found = found.where(dialect_of(connection).one_of(limits.c.limit_group, sorted(set(groups))))
    return found.order_by(limits.c.limit_group)


def _read(connection: Connection, found: sa.Select[Any]) -> dict[str, Bounds]:
    return {group: _bounds(*row) for group, *row in connection.execute(found)}


def make(connection: Connection, group: str, bounds: Bounds, now: datetime) -> None:
    """Create a group if it does not exist."""
    namespace, name = split_key(group)
    values = {"limit_group": group, "namespace": namespace, "name": name, "created_at": now, **_values(bounds)}
    connection.execute(dialect_of(connection).insert(limits).values(values).on_conflict_do_nothing())


def set_bounds(connection: Connection, group: str, bounds: Bounds, change: Mapping[str, Any]) -> None:
    """Set the bounds of a locked group, and record the `change`. If the new bounds have no rate, delete the starts."""
    is_it = limits.c.limit_group == group
    known = json.loads(connection.execute(sa.select(limits.c.changes).where(is_it)).scalar_one())
    told = dumps([*known, change][-MAX_CHANGES:])
    connection.execute(sa.update(limits).where(is_it).values(**_values(bounds), changes=told))
    is_rated = bounds.rate is not None
    for kind in _KINDS:
        granted = kind.table.c.limit_group == group, kind.is_unclaimed, kind.table.c.is_rated != is_rated
        connection.execute(sa.update(kind.table).where(*granted).values(is_rated=is_rated))
    if not is_rated:
        connection.execute(sa.delete(limit_starts).where(limit_starts.c.limit_group == group))


def grant(
    connection: Connection,
    groups: Iterable[str],
    clock: Callable[[], datetime],
    asked: str | None = None,
    *,
    is_target: bool = False,
    frozen: Collection[str] = (),
    skip_locked: bool = False,
) -> Granted:
    """Give the free places of these groups to the first in their lines. Return the runs and targets that got a place.

    `asked` is a run or target (`is_target`) whose job a worker has taken (`features.limits.decide.decide_grants`). If
    this run or target gets no place, it waits in line and gets another job later. In `frozen` groups only targets get
    places, so that fan-outs that have begun continue. `skip_locked` leaves out groups that another transaction holds.
    `clock` is read after everything is locked.
    """
    locked = lock(connection, groups, skip_locked=skip_locked)
    if not locked:
        return Granted([], {}, [], [])
    kind = _TARGETS if is_target else _RUNS
    group_of_asked, waiting = (None, None) if asked is None else _lock_asked(connection, kind, asked)
    now = clock()
    unclaimed, running, silent = _taken(connection, locked)
    starts = _starts(connection, locked, now)
    given, targets_of_line = list[str](), set[str]()
    lines, places = dict[str, dict[str, Waiting]](), Counter[str]()
    for group, bounds in locked.items():
        free = bounds.most_unclaimed(running[group], starts[group])
        most = most_given(free, 0, unclaimed[group], now)
        quiet = quiet_queues(silent[group], unclaimed[group], now)
        line = first_in_line(connection, group, most + 1, now, is_frozen=group in frozen, quiet=quiet)
        asks = waiting if group == group_of_asked else None
        grants = decide_grants(free, running=0, unclaimed=unclaimed[group], line=line, asked=asks, quiet=quiet, now=now)
        targets_of_line |= {one.uid for one in (*line, *unclaimed[group]) if one.is_target}
        taken = sum(
            _pass_over(connection, one, uids, now) for one, uids in _split(grants.passed, targets_of_line).items()
        )
        kept = len(grants.passed) - taken
        given += grants.given[: max(len(grants.given) - kept, 0)]
        lines[group] = {one.uid: one for one in (*line, *([] if asks is None else [asks]))}
        places[group] = len(unclaimed[group]) - taken
    if waiting is not None and is_target:
        targets_of_line.add(waiting.uid)
    some, rated = _split(given, targets_of_line), [group for group, bounds in locked.items() if bounds.rate is not None]
    got_runs, names = _give_runs(connection, some[_RUNS], now, rated)
    got_targets = _give_targets(connection, some[_TARGETS], now, rated)
    uids = {*(run.uid for run in got_runs), *(target.uid for target in got_targets)}
    looks = list[Look]()
    # The rate is not always the reason why a run got no place. The place may belong to another run, which is being
    # claimed at this moment.
    for group in rated:
        left = [one for uid, one in lines[group].items() if uid not in uids]
        taken = places[group] + len(lines[group]) - len(left)
        use = running[group], taken, starts[group]
        at = _frees_at(connection, group, locked[group], use, now) if left else None
        link = None if at is None else _link_of(connection, min(left, key=by_place))
        looks += [] if at is None or at <= now or link is None else [Look(link, at)]
    if waiting is not None and waiting.uid not in uids:
        again = sa.update(kind.table).where(kind.table.c.uid == waiting.uid)
        again = again.values({"queued_at": None} if is_target else {})
        passed = sa.func.coalesce(kind.table.c.passed_count, 0) + 1
        connection.execute(again.values(passed_at=None, passed_count=passed, delivery=kind.table.c.delivery + 1))
    return Granted(got_runs, names, got_targets, looks)


def _starts(connection: Connection, groups: Mapping[str, Bounds], now: datetime) -> Counter[str]:
    """Count the starts in the last window of each group that has a rate, and remove starts that no longer count."""
    found = Counter[str]()
    for group, (_, rate) in groups.items():
        if rate is not None:
            connection.execute(_FORGET, {"group": group, "since": now - rate.period - _KEPT_LONGER})
            found[group] = _started(connection, group, rate, now)
    return found


def _started(connection: Connection, group: str, rate: Rate, now: datetime) -> int:
    """Count the starts in the last window of a group."""
    return int(connection.execute(_COUNT_STARTS, {"group": group, "since": now - rate.period}).scalar_one())


_STARTED = limit_starts.c.started_at
_SINCE = sa.bindparam("since", type_=_STARTED.type)
_FORGET = sa.delete(limit_starts).where(limit_starts.c.limit_group == _OF_GROUP, _STARTED <= _SINCE)
_IS_IN_WINDOW = (limit_starts.c.limit_group == _OF_GROUP, _STARTED > _SINCE)
_COUNT_STARTS = sa.select(sa.func.count()).select_from(limit_starts).where(*_IS_IN_WINDOW)
_COUNT_SOME_STARTS = counting(sa.select(_STARTED).where(*_IS_IN_WINDOW), _COUNTED_TO)
_START_IN_THE_WAY = (
    sa.select(_STARTED)
    .where(*_IS_IN_WINDOW)
    .order_by(_STARTED, limit_starts.c.uid)
    .offset(sa.bindparam("later", type_=sa.Integer))
    .limit(1)
)


def _frees_at(
    connection: Connection, group: str, bounds: Bounds, use: tuple[int, int, int], now: datetime
) -> datetime | None:
    """Return when a group's rate allows the next start; `now` if it allows one already, None if the number forbids one.

    `use` has three numbers: running runs, granted runs that have not started, and starts in the last window. A granted
    run that has not started yet can only start now or later. So its start stays in the window for at least the length
    of the window.
    """
    rate, (running, unclaimed, starts) = bounds.rate, use
    if rate is None or (bounds.number is not None and bounds.number - running - unclaimed <= 0):
        return None
    later = starts + unclaimed - rate.number
    if later < 0:
        return now
    given = {"group": group, "since": now - rate.period, "later": later}
    first = connection.execute(_START_IN_THE_WAY, given).scalar()
    return (first or now) + rate.period


def _link_of(connection: Connection, waiting: Waiting) -> RetryLinkId | None:
    """Return the link of a `Look` for the first in a line; None if the run does not exist any more."""
    found = sa.select(runs.c.schedule_uid, runs.c.number, runs.c.attempt - 1)
    if waiting.is_target:
        found = found.join(targets, targets.c.run_uid == runs.c.uid).where(targets.c.uid == waiting.uid)
    else:
        found = found.where(runs.c.uid == waiting.uid)
    row = connection.execute(found).first()
    return None if row is None else RetryLinkId(*row)


def look_of(connection: Connection, link: str, run: Run, now: datetime, *, is_frozen: bool) -> datetime | None:
    """Return when a link of a run must give places again in the line in which the run, or a target of the run, waits.

    Return None if another link does this, or if no link is needed. Only the link of the first in line gives places.
    Otherwise every link that ever put a run in line would do so each time that a start leaves the window. If a start
    has left the window since the rate blocked a grant, the link is due at once, because no other link would come.
    """
    at = next_look(connection, run.uid, now)
    if at is None or run.limit_group is None:
        return None
    first = first_in_line(connection, run.limit_group, 1, now, is_frozen=is_frozen)
    is_its = any(str(_link_of(connection, one)) == link for one in first)
    if is_its and at <= now and _is_for_quiet(connection, run.limit_group, now, is_frozen=is_frozen):
        return None
    return at if is_its else None


def _is_for_quiet(connection: Connection, group: str, now: datetime, *, is_frozen: bool) -> bool:
    """Return whether only runs of quiet queues wait. A pass of reconcile, and not a link, gives them free places."""
    unclaimed, _, silent = _taken(connection, [group])
    quiet = quiet_queues(silent[group], unclaimed[group], now)
    return any(one.queue in quiet for one in first_in_line(connection, group, 1, now, is_frozen=is_frozen, quiet=quiet))


def next_look(connection: Connection, uid: str, now: datetime) -> datetime | None:
    """Return when a link must give places again in the line in which a run, or a target of the run, waits.

    Return `now` if the rate already allows a start, and None if the line does not wait for a rate.
    """
    has_targets = sa.exists().where(targets.c.run_uid == runs.c.uid, IS_TARGET_IN_LINE)
    found = sa.select(limits.c.limit_group, *_BOUNDS).join_from(
        runs, limits, runs.c.limit_group == limits.c.limit_group
    )
    found = found.where(runs.c.uid == uid, IS_IN_LINE | has_targets, limits.c.rate_number.is_not(None))
    if (row := connection.execute(found).first()) is None:
        return None
    group, bounds = row[0], _bounds(*row[1:])
    unclaimed, running, _ = _taken(connection, [group])
    starts = 0 if bounds.rate is None else _started(connection, group, bounds.rate, now)
    return _frees_at(connection, group, bounds, (running[group], len(unclaimed[group]), starts), now)


def _split(uids: Iterable[str], of_targets: Collection[str]) -> dict[_Kind, list[str]]:
    found: dict[_Kind, list[str]] = {_RUNS: [], _TARGETS: []}
    for uid in uids:
        found[_TARGETS if uid in of_targets else _RUNS].append(uid)
    return found


def _lock_asked(connection: Connection, kind: _Kind, uid: str) -> tuple[str | None, Waiting | None]:
    found = sa.select(kind.table.c.limit_group, *kind.place).where(kind.table.c.uid == uid, kind.needs_grant)
    row = connection.execute(found.with_for_update(key_share=True, skip_locked=True)).first()
    return (None, None) if row is None else (row[0], _waiting_of(row[1:]))


def _waiting_of(row: Sequence[Any]) -> Waiting:
    uid, limit_at, number, granted_at, passed_count, is_target, queue = row
    return Waiting(uid, limit_at, number, granted_at, passed_count, is_target=bool(is_target), queue=queue)


def _taken(
    connection: Connection, groups: Iterable[str]
) -> tuple[dict[str, list[Waiting]], Counter[str], dict[str, list[str]]]:
    """Read the granted, unclaimed runs and targets of each group, and count the running ones, in one snapshot.

    Also read the queues of the runs and targets that have lost their grant.
    """
    dialect, running = dialect_of(connection), Counter[str]()
    unclaimed, passed = defaultdict[str, list[Waiting]](list), defaultdict[str, list[str]](list)
    for group, count, *place in connection.execute(_find_taken(dialect), {"among": dialect.listed(groups)}):
        if count is not None:
            running[group] += count
        elif place[0] is None:
            passed[group].append(place[-1])
        else:
            unclaimed[group].append(_waiting_of(place))
    return unclaimed, running, passed


@lru_cache(maxsize=2)
def _find_taken(dialect: Dialect) -> sa.CompoundSelect[Any]:
    found = list[sa.Select[Any]]()
    for kind in _KINDS:
        group = kind.table.c.limit_group
        nobody = [sa.cast(sa.null(), column.type).label(column.name) for column in kind.place]
        no_count = sa.cast(sa.null(), sa.Integer).label("count")
        unclaimed = sa.select(group, no_count, *kind.place).where(kind.is_unclaimed)
        running = sa.select(group, sa.func.count().label("count"), *nobody).where(kind.is_running).group_by(group)
        passed = sa.select(group, no_count, *nobody[:-1], kind.queue).where(kind.is_passed).distinct()
        found += [dialect.of_each(one, group) for one in (unclaimed, running, passed)]
    return sa.union_all(*found)


def first_in_line(
    connection: Connection, group: str, most: int, now: datetime, *, is_frozen: bool = False, quiet: Iterable[str] = ()
) -> list[Waiting]:
    """Read the first runs and targets of a line that could start now. In a freeze (`is_frozen`) read only targets.

    Runs of `quiet` queues (`features.limits.decide.quiet_queues`) come after all others.
    """
    given = {"group": group, "most": most, "now": now}
    if not (among := sorted(quiet)):
        statement = _FIRST_TARGETS if is_frozen else _FIRST_IN_LINE
        return [_waiting_of(row) for row in connection.execute(statement, given)]
    dialect, found = dialect_of(connection), list[Waiting]()
    for is_quiet in (False, True):
        of_queue = (one if is_quiet else ~one for one in (dialect.one_of(kind.queue.element, among) for kind in _KINDS))
        of_runs, of_targets = of_queue
        first_targets = _TARGETS.first(of_targets)
        statement = first_targets if is_frozen else _in_order(_RUNS.first(*_COULD_START, of_runs), first_targets)
        rows = connection.execute(statement, given | {"most": most - len(found)})
        found += [_waiting_of(row) for row in rows]
    return found


_FIRST_TARGETS = _TARGETS.first()


def _in_order(first_runs: sa.Select[Any], first_targets: sa.Select[Any] = _FIRST_TARGETS) -> sa.Select[Any]:
    both = sa.union_all(*(sa.select(one.subquery()) for one in (first_runs, first_targets))).subquery()
    return sa.select(both).order_by(*line_order(both)).limit(_MOST)


# A blocked run may start only from its `queued_at` on.
_COULD_START = (runs.c.blocked_at.is_(None) | (runs.c.queued_at <= _NOW), ~is_late(_NOW))
_FIRST_IN_LINE = _in_order(_RUNS.first(*_COULD_START))


def _are_free(
    connection: Connection, table: sa.Table, uids: Sequence[str], condition: sa.ColumnElement[bool]
) -> sa.ColumnElement[bool]:
    """Return the condition that a row is among `uids`, meets `condition` and is locked by no other transaction.

    Evaluating the condition locks the rows.
    """
    dialect = dialect_of(connection)
    free = sa.select(table.c.uid).where(dialect.one_of(table.c.uid, uids), condition)
    return dialect.found_by(table.c.uid, free.with_for_update(key_share=True, skip_locked=True))


def _pass_over(connection: Connection, kind: _Kind, uids: Sequence[str], now: datetime) -> int:
    """Take back unclaimed grants, and return how many. A run that is being claimed now keeps its grant."""
    if not uids:
        return 0
    taken = sa.update(kind.table).where(_are_free(connection, kind.table, uids, kind.is_unclaimed))
    return connection.execute(taken.values(granted_at=None, passed_at=now)).rowcount


def _give_runs(
    connection: Connection, uids: Sequence[str], now: datetime, rated: Sequence[str]
) -> tuple[list[Run], dict[str, tuple[str, str]]]:
    """Give places to these runs, except runs that another transaction holds. Return them in the order of the line.

    Also returns the namespace and id of each schedule, by uid. The starts of runs of `rated` groups will be counted.
    """
    if not uids:
        return [], {}
    grants = sa.update(runs).where(_are_free(connection, runs, uids, _RUNS.needs_grant))
    grants = grants.values(granted_at=now, passed_at=None, is_rated=_is_of(connection, runs, rated))
    names = (of_schedule(column, runs) for column in (schedules.c.namespace, schedules.c.schedule_id))
    granted = connection.execute(grants.returning(*RUN_COLUMNS, *names)).all()
    found = [to_run(row[:-2]) for row in granted]
    named = {run.schedule_uid: tuple(row[-2:]) for run, row in zip(found, granted, strict=True)}
    return sorted(found, key=lambda run: (run.limit_at or now, run.number, run.uid)), named


def _is_of(connection: Connection, table: sa.Table, groups: Sequence[str]) -> sa.ColumnElement[bool]:
    return dialect_of(connection).one_of(table.c.limit_group, groups) if groups else sa.false()


def _give_targets(connection: Connection, uids: Sequence[str], now: datetime, rated: Sequence[str]) -> list[Target]:
    """Give places to these targets, as `_give_runs` does, and record that they belong on their queue from now on."""
    if not uids:
        return []
    grants = sa.update(targets).where(_are_free(connection, targets, uids, _TARGETS.needs_grant))
    queued_at = sa.func.coalesce(targets.c.queued_at, now, type_=targets.c.queued_at.type)
    is_rated = _is_of(connection, targets, rated)
    given = grants.values(granted_at=now, passed_at=None, queued_at=queued_at, is_rated=is_rated)
    granted = [Target(*row) for row in connection.execute(given.returning(*TARGET_COLUMNS))]
    place = {uid: at for at, uid in enumerate(uids)}
    return sorted(granted, key=lambda target: place[target.uid])


def rehearse(connection: Connection, uid: str, now: datetime) -> None:
    """Compile the statements that give places after the end of a run. Execute them for a group that does not exist.

    The statements for a rate are not executed here.
    """
    wants(connection, uid, now)
    lock(connection, [uid])
    lock(connection, [uid], skip_locked=True)
    _taken(connection, [uid])
    first_in_line(connection, uid, 1, now)
    _give_runs(connection, [uid], now, [])


def has_place(connection: Connection, uid: str, *, is_target: bool = False) -> bool:
    """Return whether a pending run, or target, has a place in its group."""
    kind = _TARGETS if is_target else _RUNS
    found = sa.select(kind.table.c.uid).where(kind.table.c.uid == uid, kind.is_unclaimed)
    return connection.execute(found).first() is not None


def wants(connection: Connection, group: str, now: datetime) -> int | None:
    """Return how many granted runs of a group wait for their claim; None if no places are to be given now.

    None is returned also if the line is empty (`features.limits.decide.wants_grants`).
    """
    row = connection.execute(_STATE, {"group": group}).first()
    if row is None:
        return None
    bounds = _bounds(*row[:3])
    taken, unclaimed = row[3:]
    most = bounds.number
    # Read the rate only if the group has no number. If it has a number, only the grant checks the rate.
    if most is None and bounds.rate is not None:
        most, taken = bounds.most_unclaimed(0, _started(connection, group, bounds.rate, now)), 0
    return int(unclaimed) if wants_grants(most or 0, taken, unclaimed) else None


_IN_LINE = sa.or_(
    *(sa.exists().where(kind.is_in_line, kind.table.c.limit_group == limits.c.limit_group) for kind in _KINDS)
)


def _count_of(condition: _Condition) -> sa.ColumnElement[int]:
    counted = (
        sa.select(sa.func.count()).where(condition(kind), kind.table.c.limit_group == _OF_GROUP) for kind in _KINDS
    )
    of_runs, of_targets = (one.scalar_subquery() for one in counted)
    return of_runs + of_targets


def _is_line() -> sa.ColumnElement[bool]:
    """Return the condition that a run or target waits in a group.

    It reads the first row of the line, because a database may plan an EXISTS as one scan of the rows of all groups.
    """
    first = (
        sa.select(sa.literal_column("1", sa.Integer))
        .where(kind.is_in_line, kind.table.c.limit_group == _OF_GROUP)
        .order_by(*kind.order)
        .limit(sa.literal_column("1", sa.Integer))
        .scalar_subquery()
        for kind in _KINDS
    )
    return sa.func.coalesce(*first).is_not(None)


_IS_GROUP = limits.c.limit_group == _OF_GROUP
_TAKEN = _count_of(_IS_RUNNING), _count_of(_IS_UNCLAIMED)
_STATE = sa.select(*_BOUNDS, *_TAKEN).where(_IS_GROUP, _is_line())
_NOTHING_FREED = limits.c.number.is_(None) & (limits.c.rate_number <= MAX_NUMBER)
_NUMBER = sa.case((_NOTHING_FREED, 0), else_=limits.c.number)
STATE = (
    sa.select(_NUMBER).where(_IS_GROUP).scalar_subquery().label("limit_number"),
    _TAKEN[0].label("limit_running"),
    _TAKEN[1].label("limit_unclaimed"),
    _is_line().label("limit_has_line"),
)
"""The state of a `group` before the end of one of its runs, as columns of the statement that ends the run."""
STARTS_UNCOUNTED = ~runs.c.is_rated
"""The condition that the start of a run is not counted for a rate."""


def seen_by_end(group: str, seen: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the answer of `wants` for the group of a run that has ended, from the STATE that was read with the end.

    The result is empty if the answer is not known. Then the caller reads the group after the commit.

    The STATE still counts the ended run as running. If another run joins the line at the same moment, its process may
    still count the ended run, and STATE may not show the line. So if STATE shows no line, the answer is not known, with
    two exceptions:

    - The ends of later runs give the places (`others_look`).
    - Less than half of the places were occupied. In this case a run can join the line unseen only if more than half of
      the places were given while this end was written. The end of one of the runs with these places sees the line.
      Until that end, or until the next fire or pass, the place of the ended run stays free. Such a delay must be rare.
      Therefore this exception requires that half of the places are free, and not just one place.

    An end does not help a rate, because the start stays in the window; a link gives places when the start leaves the
    window. So if a group has only a rate, no run waits for an end, unless the rate is above `MAX_NUMBER`
    (`Bounds.most_unclaimed`).
    """
    if seen.get("limit_number") is None:
        return {}
    number, running, unclaimed, is_line = (seen[column.name] for column in STATE)
    is_wide = not is_line and (running + unclaimed) * 2 < number
    if not number or is_wide or others_look(number, running - 1, unclaimed):
        return {group: None}
    return {group: unclaimed} if is_line and wants_grants(number, running - 1, unclaimed) else {}


def with_line(connection: Connection, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """Read a page of the groups in which a run or target waits."""
    found = sa.select(limits.c.limit_group).where(_IN_LINE)
    if after is not None:
        found = found.where(limits.c.limit_group > after)
    groups = list(connection.execute(found.order_by(limits.c.limit_group).limit(limit)).scalars())
    return groups, groups[-1] if len(groups) == limit else None


def empty(connection: Connection, after: str, limit: int) -> list[str]:
    """Read a page of the groups that no schedule names and that have no open run or target."""
    found = sa.select(limits.c.limit_group).where(_IS_EMPTY, limits.c.limit_group > after)
    return list(connection.execute(found.order_by(limits.c.limit_group).limit(limit)).scalars())


_NAMED = sa.exists().where(schedules.c.limit_group == limits.c.limit_group, IS_OF_GROUP, IS_LIVE)
_IS_EMPTY = sa.and_(
    ~_NAMED,
    *(~sa.exists().where(kind.table.c.limit_group == limits.c.limit_group, kind.is_open) for kind in _KINDS),
)


def remove_empty(connection: Connection, groups: Sequence[str], now: datetime) -> int:
    """Remove groups that are still empty, have no start that counts, and are not locked. Return how many.

    A group with starts in its window stays. If it were removed and created again, it would forget these starts.
    """
    free = _find(connection, groups).with_for_update(skip_locked=True)
    locked = _read(connection, free)
    for group, (_, rate) in locked.items():
        kept = timedelta(0) if rate is None else rate.period + _KEPT_LONGER
        connection.execute(_FORGET, {"group": group, "since": now - kept})
    is_one = dialect_of(connection).one_of(limits.c.limit_group, [*locked])
    is_counted = sa.exists().where(limit_starts.c.limit_group == limits.c.limit_group)
    return connection.execute(sa.delete(limits).where(is_one, _IS_EMPTY, ~is_counted)).rowcount


def lost(connection: Connection, limit: int) -> list[tuple[str, str]]:
    """Return groups that have waiting runs or targets but no row, each with the policies of one of its schedules."""
    found = list[tuple[str, str]]()
    for kind in _KINDS:
        group = kind.table.c.limit_group
        of_schedule = schedules.c.uid == kind.table.c.schedule_uid
        is_there = sa.exists().where(limits.c.limit_group == group)
        waiting = sa.select(group, schedules.c.policies).join(schedules, of_schedule).where(kind.needs_grant, ~is_there)
        rows = connection.execute(waiting.order_by(group, schedules.c.uid).limit(limit))
        found += [(group, policies) for group, policies in rows]
    return found


def describe(
    connection: Connection, groups: Iterable[str], now: datetime, counted_to: int | None = None
) -> list[LimitDescription]:
    """Read these groups, sorted by name, with the numbers of runs that run, wait, or started in the rate's window.

    No number is counted further than `counted_to`. None counts all.
    """
    is_one = dialect_of(connection).one_of(limits.c.limit_group, sorted(groups))
    found = connection.execute(_with_use().where(is_one), {"counted_to": counted_to or _NO_BOUND}).all()
    return _describe(connection, found, now, counted_to)


def page(
    connection: Connection, namespace: str, cursor: str | None, limit: int, now: datetime, counted_to: int | None = None
) -> Page[LimitDescription]:
    """Read a page of a namespace's groups, sorted by name. The cursor contains the last name of the previous page.

    `counted_to` is as in `describe`.
    """
    of = "limits", namespace
    after = limits.c.limit_group > key_of(namespace, unbind_cursor(cursor, *of) or "")
    found = _with_use().where(limits.c.namespace == namespace, after).limit(limit)
    rows = connection.execute(found, {"counted_to": counted_to or _NO_BOUND}).all()
    following = bind_cursor(rows[-1].name, *of) if len(rows) == limit else None
    return Page(_describe(connection, rows, now, counted_to), following)


def _of_this_group(kind: _Kind, condition: sa.ColumnElement[bool], *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select rows of a group, whose row in `limits` an outer query reads."""
    found = sa.select(*(columns or [sa.literal_column("1")])).where(condition)
    return found.where(kind.table.c.limit_group == limits.c.limit_group).correlate(limits)


def _total(*rows: sa.Select[Any]) -> sa.ColumnElement[int]:
    first, *rest = (counting(some, _COUNTED_TO).scalar_subquery() for some in rows)
    return sum(rest, start=first)


@lru_cache(maxsize=1)
def _with_use() -> sa.Select[Any]:
    """Select groups, sorted by name, with the number of running and of granted runs and targets."""
    running = _total(*(_of_this_group(kind, kind.is_running) for kind in _KINDS)).label("running")
    starting = _total(*(_of_this_group(kind, kind.is_unclaimed) for kind in _KINDS)).label("starting")
    bounds = limits.c.limit_group, limits.c.namespace, limits.c.name, limits.c.changes, *_BOUNDS
    return sa.select(*bounds, running, starting).order_by(limits.c.limit_group)


def _describe(
    connection: Connection, rows: Sequence[Any], now: datetime, counted_to: int | None
) -> list[LimitDescription]:
    most, waiting, since = counted_to or _NO_BOUND, Counter[str](), dict[str, datetime]()
    given = {"among": dialect_of(connection).listed(row.limit_group for row in rows), "counted_to": most}
    statement = (_waiting if counted_to is None else _first_waiting)(dialect_of(connection))
    for group, count, first in connection.execute(statement, given):
        waiting[group] += count
        if first is not None:
            since[group] = min(first, since.get(group, first))
    rates = {row.limit_group: _bounds(row.number, row.rate_number, row.rate_seconds).rate for row in rows}
    started = {
        group: connection.scalar(_COUNT_SOME_STARTS, {"group": group, "since": now - rate.period, "counted_to": most})
        for group, rate in rates.items()
        if rate is not None
    }
    return [
        LimitDescription(
            namespace=row.namespace,
            name=row.name,
            number=row.number,
            rate=None if (rate := rates[row.limit_group]) is None else str(rate),
            started=started.get(row.limit_group),
            running=min(row.running, most),
            starting=min(row.starting, most),
            waiting=min(waiting[row.limit_group], most),
            waiting_since=since.get(row.limit_group),
            changes=json.loads(row.changes)[::-1],
        )
        for row in rows
    ]


@lru_cache(maxsize=2)
def _waiting(dialect: Dialect) -> sa.CompoundSelect[Any]:
    """Select how many runs and targets of each group wait, and since when."""

    # Read all groups in one scan. Most open runs may be in one line, and a query for each group would read them again.
    def waiting(kind: _Kind) -> sa.Select[Any]:
        group, since = kind.table.c.limit_group, sa.func.min(kind.table.c.limit_at, type_=kind.table.c.limit_at.type)
        found = sa.select(group, sa.func.count(), since).where(kind.needs_grant)
        return found.where(dialect.among(group)).group_by(group)

    return sa.union_all(*(waiting(kind) for kind in _KINDS))


@lru_cache(maxsize=2)
def _first_waiting(dialect: Dialect) -> sa.CompoundSelect[Any]:
    """Select what `_waiting` selects, but count only the first `counted_to` in each line, in the order of its index."""

    def waiting(kind: _Kind) -> Iterator[sa.Select[Any]]:
        at = kind.table.c.limit_at
        line = _of_this_group(kind, kind.is_in_line, at).order_by(*kind.order)
        passed = _of_this_group(kind, kind.is_passed, at).limit(_COUNTED_TO).subquery()
        earliest = sa.select(sa.func.min(passed.c.limit_at, type_=at.type)).scalar_subquery()
        yield sa.select(limits.c.limit_group, _total(line), _waits_since(kind))
        yield sa.select(limits.c.limit_group, _total(_of_this_group(kind, kind.is_passed)), earliest)

    is_one = dialect.among(limits.c.limit_group)
    return sa.union_all(*(some.where(is_one) for kind in _KINDS for some in waiting(kind)))


def _waits_since(kind: _Kind) -> sa.ScalarSelect[Any]:
    """Select since when the first run or target in a group's line has waited. The index of lines gives it."""
    line = _of_this_group(kind, kind.is_in_line, kind.table.c.limit_at)
    return line.order_by(*kind.order).limit(sa.literal_column("1", sa.Integer)).scalar_subquery()


def waiting_targets(connection: Connection, run_uid: str, most: int) -> int:
    """Count the targets of a run that wait for a place of its group, up to `most`."""
    mine = targets.c.run_uid == run_uid, targets.c.status == constant(TargetStatus.PENDING)
    mine_of_group = *mine, targets.c.limit_group.is_not(None), targets.c.granted_at.is_(None)
    waiting: sa.Select[Any] = sa.select(sa.literal_column("1")).where(*mine_of_group)
    return connection.execute(counting(waiting, most)).scalar_one()


def busiest(
    connection: Connection, most: int, now: datetime, namespace: str | None = None, counted_to: int | None = None
) -> list[LimitDescription]:
    """Read the groups with the most open runs and targets, in a namespace or in all namespaces.

    Groups are compared by up to `MOST_COUNTED` open runs and as many targets. `counted_to` is as in `describe`.
    """
    of_runs, of_targets = (
        counting(_of_this_group(kind, kind.is_open), MOST_COUNTED).scalar_subquery() for kind in _KINDS
    )
    sized = sa.select(limits.c.limit_group, (of_runs + of_targets).label("open")).where(*_of_namespace(namespace))
    one = sized.subquery().c
    busy = sa.select(one.limit_group).where(one.open > 0).order_by(one.open.desc(), one.limit_group).limit(most)
    return describe(connection, connection.execute(busy).scalars(), now, counted_to)


def with_slow_line(
    connection: Connection, before: datetime, namespace: str | None, frozen: Collection[str], most: int
) -> list[str]:
    """Read the first groups whose line has a run or target that has waited since before `before`, sorted by name.

    Groups of `frozen` namespaces are left out.
    """
    is_slow = sa.or_(*(_waits_since(kind) < before for kind in _KINDS))
    found = sa.select(limits.c.limit_group).where(*_of_namespace(namespace), is_slow)
    if frozen:
        found = found.where(limits.c.namespace.not_in(sorted(frozen)))
    return list(connection.execute(found.order_by(limits.c.limit_group).limit(most)).scalars())


def passed_over(connection: Connection, namespace: str | None) -> list[tuple[str | None, int]]:
    """Count, for each queue, the runs and targets that lost their grant and whose job no worker has taken since.

    At most `MOST_COUNTED` runs and as many targets are counted.
    """
    found = Counter[str | None]()
    for name, count in connection.execute(_select_passed(namespace)):
        found[name] += count
    return list(found.items())


@lru_cache(maxsize=64)
def _select_passed(namespace: str | None) -> sa.CompoundSelect[Any]:
    """Select how many runs, and how many targets, `passed_over` counts for each queue."""
    counted = []
    for kind in _KINDS:
        is_meant = kind.is_passed, *_of_namespace(namespace, kind.table)
        some = sa.select(kind.table.c.queue).where(*is_meant).limit(MOST_COUNTED).subquery()
        counted.append(sa.select(some.c.queue, sa.func.count()).group_by(some.c.queue))
    return sa.union_all(*counted)


def _of_namespace(namespace: str | None, table: sa.Table = limits) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that select the rows of groups of the namespace. Without a namespace, return no conditions.

    They use the index of groups, because there may be many more schedules than groups.
    """
    if namespace is None:
        return []
    first, group = key_of(namespace, ""), table.c.limit_group
    return [group > first, group < first[:-1] + chr(ord(first[-1]) + 1)]


class Members(NamedTuple):
    """The first runs and the first schedules of a group."""

    line: list[tuple[str, Run]]
    """The runs in line, in order. Each run has its position, and comes with the id of its schedule."""
    running: list[tuple[str, Run]]
    """The running runs, the oldest first."""
    schedules: list[str]
    """The ids of schedules that name the group."""
    has_more: bool
    """Whether more schedules than these name the group."""


def members(connection: Connection, group: str, most: int, most_schedules: int) -> Members:
    """Read the first runs and schedules of a group."""
    named = sa.select(*RUN_COLUMNS, of_schedule(schedules.c.schedule_id, runs)).where(runs.c.limit_group == group)
    line = connection.execute(named.where(IS_IN_LINE).order_by(*line_order(runs)).limit(most)).all()
    is_running = IS_LIMITED & (runs.c.status == constant(RunStatus.RUNNING))
    running = connection.execute(named.where(is_running).order_by(runs.c.uid).limit(most)).all()
    ids = sa.select(schedules.c.schedule_id).where(IS_OF_GROUP, schedules.c.limit_group == group, IS_LIVE)
    found = connection.execute(ids.order_by(schedules.c.schedule_id).limit(most_schedules + 1)).scalars().all()
    waiting = with_places(connection, [to_run(row[:-1]) for row in line])
    return Members(
        [(row[-1], run) for row, run in zip(line, waiting, strict=True)],
        [(row[-1], to_run(row[:-1])) for row in running],
        [*found[:most_schedules]],
        len(found) > most_schedules,
    )
