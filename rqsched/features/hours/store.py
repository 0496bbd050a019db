"""Hours: the counts of ended runs by schedule and hour. They give the statistics of a year without a read of the runs.

Only reconcile and pruning count runs. A read adds the runs that are not counted yet, so counting changes no displayed
figure. The hours of a schedule contain all its ended runs up to the number in `counted`, except the runs in
`uncounted`. Run numbers have no gap and are assigned under the schedule's lock, so a new run has a higher number than
all visible runs. Two operations change a schedule's hours: counting, and removing an ended run that starts again
(`take_out`). Both lock the schedule's row in `counted`.

Lock order: first the schedule, then its row in `counted`. Counting locks the schedule only the first time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.hours.decide import A_DAY, EndedRun, HourKey, Tally, by_day, tally
from rqsched.kernel.decide.model import Change, Run, dumps
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.tables import backfills, counted, hours, runs, schedules, uncounted

LEAST = 64
"""The least number of runs that one transaction counts. Fewer runs are read from their rows just as quickly."""
BATCH = 500
"""The maximum number of runs of one transaction."""


class Counted(NamedTuple):
    """The result of one step of counting."""

    runs: int
    """How many runs the step counted."""
    number: int
    """The number of the run up to which the schedule is counted now."""
    is_more: bool
    """Whether another step would count more."""


def count_some(connection: Connection, schedule_uid: str, *, skip_locked: bool = False) -> Counted | None:
    """Count the next ended runs of a schedule, up to BATCH, even if earlier runs have not ended.

    Open runs are passed over: each of them gets a row in `uncounted`, and is counted later. Returns None if the
    schedule does not exist, or (with `skip_locked`) if another transaction holds a row that must be locked.
    """
    before = _lock(connection, schedule_uid, skip_locked=skip_locked)
    if before is None:
        return None
    dialect = dialect_of(connection)
    ended_again = connection.execute(_ended_again(dialect).limit(BATCH), {"among": dialect.listed([schedule_uid])})
    again = [EndedRun(*row) for row in ended_again]
    following = connection.execute(_FOLLOWING.limit(BATCH), {"schedule_uid": schedule_uid, "after": before}).all()
    is_full = len(following) == BATCH
    ended = [EndedRun._make(row) for row in following if row.ended_at is not None]
    # Counting stops at the last ended run, so that later open runs are not passed over. If a full batch has no ended
    # run, all its open runs are passed over.
    number = ended[-1].number if ended else following[-1].number if is_full else before
    if not again and number == before:
        return Counted(0, before, False)
    open_ = [row.number for row in following if row.ended_at is None and row.number <= number]
    _write(connection, schedule_uid, tally([*again, *ended]), Tally.add)
    if again:
        mine = uncounted.c.schedule_uid == schedule_uid, uncounted.c.number.in_([run.number for run in again])
        connection.execute(sa.delete(uncounted).where(*mine))
    if open_:
        connection.execute(sa.insert(uncounted), [{"schedule_uid": schedule_uid, "number": one} for one in open_])
    connection.execute(sa.update(counted).where(counted.c.schedule_uid == schedule_uid).values(number=number))
    return Counted(len(again) + len(ended), number, is_full or len(again) == BATCH)


_COLUMNS = [runs.c[name] for name in EndedRun._fields]
_OF_SCHEDULE = sa.bindparam("schedule_uid", type_=runs.c.schedule_uid.type)
_FOLLOWING = (
    sa.select(*_COLUMNS)
    .where(runs.c.schedule_uid == _OF_SCHEDULE, runs.c.number > sa.bindparam("after"))
    .order_by(runs.c.number)
)
_OF_COUNTED = sa.select(counted.c.number).where(counted.c.schedule_uid == _OF_SCHEDULE)
_LOCK = _OF_COUNTED.with_for_update(key_share=True)
_LOCK_FREE = _OF_COUNTED.with_for_update(key_share=True, skip_locked=True)
_SELECT_HOURS = sa.select(*(hours.c[name] for name in (*HourKey._fields, "count", "longest", "waits", "durations")))


def passed_over(dialect: Dialect, *columns: sa.Column[Any]) -> sa.Select[Any]:
    """Select the runs that counting has passed over, for the schedules of a list that is bound as `among`.

    They are looked up by their numbers, because a schedule may have millions of other runs.
    """
    of, number = dialect.unindexed(uncounted.c.schedule_uid).label("of"), uncounted.c.number
    passed = dialect.of_each(sa.select(of, number), uncounted.c.schedule_uid).subquery("passed").c
    return sa.select(*columns).where(runs.c.schedule_uid == passed.of, runs.c.number == passed.number)


@lru_cache(maxsize=2)
def _ended_again(dialect: Dialect) -> sa.Select[Any]:
    return passed_over(dialect, *_COLUMNS).where(runs.c.ended_at.is_not(None))


def _lock(connection: Connection, schedule_uid: str, *, skip_locked: bool) -> int | None:
    """Lock a schedule's row in `counted`, and create it if it is missing; return its number."""
    locked = _LOCK_FREE if skip_locked else _LOCK
    number: int | None = connection.execute(locked, {"schedule_uid": schedule_uid}).scalar_one_or_none()
    if number is not None:
        return number
    # Lock the schedule first. Otherwise the insert would wait for a transaction that inserts the same row.
    of_schedule = sa.select(schedules.c.uid).where(schedules.c.uid == schedule_uid)
    if connection.execute(of_schedule.with_for_update(key_share=True, skip_locked=skip_locked)).first() is None:
        return None
    insert = dialect_of(connection).insert(counted).values(schedule_uid=schedule_uid, number=0)
    connection.execute(insert.on_conflict_do_nothing())
    made: int | None = connection.execute(locked, {"schedule_uid": schedule_uid}).scalar_one_or_none()
    return made


def take_out(connection: Connection, changes: Sequence[Change]) -> None:
    """If these Changes start ended runs again, subtract the runs from the counts of their hours.

    The caller has locked the schedules. The runs are counted again after their next end.
    """
    of_schedule: dict[str, list[Run]] = {}
    for before, after in (pair for change in changes for pair in change.changed_runs):
        if before.ended_at is not None and before != after:
            of_schedule.setdefault(before.schedule_uid, []).append(before)
    for uid, found in sorted(of_schedule.items()):
        number = _lock(connection, uid, skip_locked=False) or 0
        mine = uncounted.c.schedule_uid == uid, uncounted.c.number.in_([run.number for run in found])
        known = set(connection.execute(sa.select(uncounted.c.number).where(*mine)).scalars())
        again = [run for run in found if run.number <= number and run.number not in known]
        if again:
            ended = (EndedRun(*(getattr(run, name) for name in EndedRun._fields)) for run in again)
            _write(connection, uid, tally(ended), Tally.take_out)
            connection.execute(sa.insert(uncounted), [{"schedule_uid": uid, "number": run.number} for run in again])


def _write(connection: Connection, schedule_uid: str, found: Mapping[HourKey, Tally], combine: Any) -> None:
    """Combine tallies with the stored tallies of hours and of days. The schedule's row in `counted` must be locked."""
    for width, some in ((1, found), (A_DAY, by_day(found))):
        _write_of(connection, schedule_uid, width, some, combine)


def _write_of(
    connection: Connection, schedule_uid: str, width: int, found: Mapping[HourKey, Tally], combine: Any
) -> None:
    at = hours.c.hour.in_(sorted({key.hour for key in found}))
    mine = hours.c.schedule_uid == schedule_uid, hours.c.width == width, at
    written = {HourKey(*row[:3]): _to_tally(row[3:]) for row in connection.execute(_SELECT_HOURS.where(*mine))}
    rows: list[dict[str, Any]] = []
    gone: list[dict[str, Any]] = []
    for key, one in sorted(found.items()):
        total = written.get(key, Tally())
        combine(total, one)
        texts = {"waits": _dump(total.waits), "durations": _dump(total.durations)}
        row = {
            "schedule_uid": schedule_uid,
            "width": width,
            **key._asdict(),
            "count": total.count,
            "longest": total.longest,
            **texts,
        }
        (rows if total.count else gone).append(row)
    if rows:
        insert = dialect_of(connection).insert(hours)
        moved = {name: insert.excluded[name] for name in ("count", "longest", "waits", "durations")}
        connection.execute(insert.on_conflict_do_update(index_elements=[*hours.primary_key], set_=moved), rows)
    for row in gone:
        connection.execute(sa.delete(hours).where(*(column == row[column.name] for column in hours.primary_key)))


def _to_tally(row: Sequence[Any]) -> Tally:
    count, longest, *texts = row
    waits, durations = (Counter({int(place): number for place, number in loads(text).items()}) for text in texts)
    return Tally(count, longest, waits, durations)


def _dump(buckets: Mapping[int, int]) -> str:
    return dumps({str(place): count for place, count in sorted(buckets.items())})


class Milestones(NamedTuple):
    """Schedules with enough uncounted runs, found by examining some new runs."""

    schedule_uids: list[str]
    """The uids of the schedules."""
    runs: int
    """The number of runs that were examined."""
    last: str | None
    """The uid of the last run that was examined, or None."""


def milestones(connection: Connection, after: str, until: str, limit: int) -> Milestones:
    """Find schedules with enough uncounted runs. Each LEAST-th run of a schedule is a hint.

    The runs between the uids `after` and `until` are examined. If a hint is missed because its transaction was
    committed late, the next hint comes LEAST runs later.
    """
    within = sa.select(runs.c.uid, runs.c.schedule_uid, runs.c.number).where(runs.c.uid > after, runs.c.uid < until)
    some = within.order_by(runs.c.uid).limit(limit).subquery()
    whose = sa.case((some.c.number % sa.literal_column(str(LEAST)) == 0, some.c.schedule_uid))
    rows = connection.execute(sa.select(whose, sa.func.max(some.c.uid), sa.func.count()).group_by(whose)).all()
    uids = [uid for uid, _, _ in rows if uid is not None]
    behind = sa.func.coalesce(counted.c.number, 0)
    of_some = sa.select(schedules.c.uid).join(counted, counted.c.schedule_uid == schedules.c.uid, isouter=True)
    of_some = of_some.where(
        dialect_of(connection).one_of(schedules.c.uid, uids), schedules.c.run_number - behind >= LEAST
    )
    found = sorted(connection.execute(of_some).scalars()) if uids else []
    return Milestones(found, sum(row[2] for row in rows), max((row[1] for row in rows), default=None))


def counted_to(connection: Connection, schedule_uids: Sequence[str]) -> dict[str, int]:
    """Return the number up to which each schedule is counted, except for its runs in `uncounted`."""
    is_one = dialect_of(connection).one_of(counted.c.schedule_uid, schedule_uids)
    found = {row.schedule_uid: row.number for row in connection.execute(sa.select(counted).where(is_one))}
    return {uid: found.get(uid, 0) for uid in schedule_uids}


def are_counted(connection: Connection, schedule_uid: str, numbers: Sequence[int]) -> set[int]:
    """Return which runs of a schedule are in its hours. The schedule's row in `counted` must be locked."""
    to = counted_to(connection, [schedule_uid])[schedule_uid]
    passed = sa.select(uncounted.c.number).where(uncounted.c.schedule_uid == schedule_uid)
    return {number for number in numbers if number <= to} - {*connection.execute(passed).scalars()}


def read(
    connection: Connection, schedule_uid: str, first: int, last: int, *, in_days: bool = False
) -> dict[HourKey, Tally]:
    """Read the tallies of a schedule's hours from `first` to `last`, both included. Uncounted runs are added.

    With `in_days`, read the tallies of the days, in UTC, that begin in one of these hours. If the schedule is not
    counted yet, as in an upgraded database, only its newest runs are included (see MOST_UNCOUNTED).
    """
    within = hours.c.width == (A_DAY if in_days else 1), hours.c.hour >= first, hours.c.hour <= last
    mine = hours.c.schedule_uid == schedule_uid, *within
    found = {HourKey(*row[:3]): _to_tally(row[3:]) for row in connection.execute(_SELECT_HOURS.where(*mine))}
    following = tally(_not_counted(connection, schedule_uid))
    for key, one in (by_day(following) if in_days else following).items():
        if first <= key.hour <= last:
            found.setdefault(key, Tally()).add(one)
    return found


def durations(connection: Connection, schedule_uids: Sequence[str], since: int) -> dict[str, Counter[int]]:
    """Return for each schedule the durations, by bucket, of its live runs that ended in the days from `since` on.

    For a schedule without a counted run, the durations come from `read`.
    """
    found: dict[str, Counter[int]] = {}
    is_one = dialect_of(connection).one_of(hours.c.schedule_uid, schedule_uids)
    meant = is_one, hours.c.width == A_DAY, hours.c.hour >= since, hours.c.is_backfilled.is_(sa.false())
    took = hours.c.outcome.in_(("succeeded", "failed"))
    for uid, text in connection.execute(sa.select(hours.c.schedule_uid, hours.c.durations).where(*meant, took)):
        buckets = found.setdefault(uid, Counter())
        for place, number in loads(text).items():
            buckets[int(place)] += number
    for uid in schedule_uids:
        if uid not in found:
            known = read(connection, uid, since, 2**31 - 1, in_days=True)
            found[uid] = Counter()
            for key, one in known.items():
                if not key.is_backfilled and key.outcome in {"succeeded", "failed"}:
                    found[uid].update(one.durations)
    return found


def counts(connection: Connection, schedule_uid: str, first: int, last: int) -> Counter[HourKey]:
    """Count the live runs of a schedule that ended in the hours from `first` to `last`. Uncounted runs are added."""
    is_mine = hours.c.schedule_uid == schedule_uid, hours.c.width == 1, hours.c.is_backfilled.is_(sa.false())
    columns = hours.c.hour, hours.c.outcome, hours.c.count
    rows = connection.execute(sa.select(*columns).where(*is_mine, hours.c.hour >= first, hours.c.hour <= last))
    found = Counter({HourKey(hour, False, outcome): count for hour, outcome, count in rows})
    for key, one in tally(_not_counted(connection, schedule_uid)).items():
        if first <= key.hour <= last and not key.is_backfilled:
            found[key] += one.count
    return found


def _not_counted(connection: Connection, schedule_uid: str) -> Iterator[EndedRun]:
    dialect = dialect_of(connection)
    again = _ended_again(dialect), {"among": dialect.listed([schedule_uid])}
    for statement, given in ((_TAIL, {"schedule_uid": schedule_uid}), again):
        for row in connection.execute(statement, given):
            yield EndedRun._make(row)


MOST_UNCOUNTED = 20_000
"""The maximum number of runs that are read because they are not counted yet."""
_IS_BEHIND = runs.c.number > sa.func.coalesce(_OF_COUNTED.scalar_subquery(), 0)
_TAIL = (
    sa.select(*_COLUMNS)
    .where(runs.c.schedule_uid == _OF_SCHEDULE, _IS_BEHIND, runs.c.ended_at.is_not(None))
    .order_by(runs.c.number.desc())
    .limit(MOST_UNCOUNTED)
)


def forget(connection: Connection, schedule_uid: str, before: int) -> None:
    """Delete the hours of a schedule before an hour, and the days that end before it.

    Hours of backfills are deleted only if no backfilled run of the schedule is left. A backfilled run is counted in the
    hour of its occurrence. So the hour may be old although the run still exists.
    """
    is_over = hours.c.hour + hours.c.width <= before
    its_backfills = sa.select(backfills.c.uid).where(backfills.c.schedule_uid == schedule_uid)
    is_left = sa.exists().where(runs.c.backfill_uid.in_(its_backfills))
    gone = sa.delete(hours).where(hours.c.schedule_uid == schedule_uid, is_over, ~(hours.c.is_backfilled & is_left))
    connection.execute(gone)
