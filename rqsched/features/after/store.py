"""SQL for the ends of upstream runs: one row for each end and downstream schedule, with its outcome.

An end is owed to a schedule until it has an outcome. All functions work within the caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.after.decide import Followed, UpstreamEnd, counts_for, ended_runs, may_be_followed
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule, ScheduleStatus, changed, parse_spec
from rqsched.kernel.queries.pages import page_by_uid
from rqsched.kernel.store.changes import find_all_named
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.rows import (
    SELECT_RUNS,
    SELECT_SLIM_RUNS,
    SELECT_SLIM_SCHEDULES,
    columns_of,
    insert_rows,
    to_run,
    to_schedules,
    to_schedules_with_last,
)
from rqsched.kernel.store.tables import (
    COMES_AFTER,
    IS_OPEN,
    IS_OWED,
    constant,
    is_outside,
    runs,
    schedules,
    upstream_ends,
)
from rqsched.when.members import ENDS

_NAMES = [*UpstreamEnd.__dataclass_fields__]
_SELECT = sa.select(*(upstream_ends.c[name] for name in _NAMES))


def record(connection: Connection, changes: Sequence[Change]) -> None:
    """Write the ends of the runs that end in these Changes: one row for each downstream schedule.

    The caller has locked the schedules of the Changes. It writes the Changes after this call, which reads the retrying
    runs that the Changes cancel.

    If a run is retried after its end was written, the row of the first end does not change. If a resume starts a run
    for an end that came during the pause, this end is owed to the resumed schedule again.
    """
    for change in changes:
        if change.owed_again is not None:
            _owe_again(connection, change.after, *change.owed_again)
        if change.after.followed_at is None:
            continue
        ended = ended_runs(change)
        if change.drops_retries:
            ended += _retrying(connection, change)
        if ended:
            _record(connection, change.after, ended)


def _owe_again(connection: Connection, schedule: Schedule, run_uid: str, ended_at: datetime) -> None:
    """Mark an end that came during a pause as owed again. Insert its row if the row was pruned meanwhile."""
    again = {"due_at": schedule.updated_at, "followed": Followed.MISSED.value, "followed_at": None}
    key = {"run_uid": run_uid, "schedule_uid": schedule.uid}
    known = {"upstream_uid": "", "outcome": "ended", "ended_at": ended_at}
    insert = dialect_of(connection).insert(upstream_ends).values(key | known | again)
    connection.execute(insert.on_conflict_do_update(index_elements=[*key], set_=again))


def _retrying(connection: Connection, change: Change) -> list[Run]:
    """Read the retrying runs that a Change cancels. Return them with the status `cancelled`."""
    is_retrying = IS_OPEN, runs.c.status == constant(RunStatus.RETRYING), runs.c.schedule_uid == change.after.uid
    found = map(to_run, connection.execute(SELECT_RUNS.where(*is_retrying)))
    ended = {"status": RunStatus.CANCELLED, "ended_at": change.after.updated_at}
    return [changed(run, **ended) for run in found if may_be_followed(run)]


def _record(connection: Connection, upstream: Schedule, ended: Iterable[Run]) -> None:
    columns = schedules.c.uid, schedules.c.spec
    mine = schedules.c.namespace == upstream.namespace, schedules.c.upstream_id == upstream.schedule_id
    after = {row.uid: _on(row.spec) for row in connection.execute(sa.select(*columns).where(*mine, COMES_AFTER))}
    if not after:  # the last downstream schedule was deleted, or has another upstream now
        forgotten = sa.update(schedules).where(schedules.c.uid == upstream.uid)
        connection.execute(forgotten.values(followed_at=None))
    rows = [
        asdict(
            UpstreamEnd(
                run.uid,
                uid,
                upstream.uid,
                run.shown_status,
                run.ended_at,
                run.ended_at,
                upstream_id=upstream.schedule_id,
            )
        )
        for run in ended
        for uid, on in after.items()
        if run.ended_at is not None and on is not None and counts_for(on, run.status)
    ]
    insert_rows(connection, upstream_ends, columns_of(rows), or_ignore=True)


def _on(text: str) -> str | None:
    """Return which ends count for a downstream schedule, from its spec as JSON; None if the spec has its own times.

    If the spec cannot be read (a newer release wrote it), every end counts. So an unreadable spec never prevents the
    end of an upstream's run. The end is owed, and the error is reported later, for the downstream schedule.
    """
    try:
        spec = parse_spec(text)
        if spec.after is not None or not spec.newer:
            return None if spec.after is None else spec.after.on
        on = json.loads(text)["after"].get("on", "success")
    except Exception:  # noqa: BLE001 - another schedule's row
        return "end"
    return on if on in ENDS else "end"


def owed_to(connection: Connection, upstream_uids: Sequence[str]) -> list[str]:
    """Return the uids of the schedules that have not followed every end of these upstreams yet."""
    is_one = dialect_of(connection).one_of(upstream_ends.c.upstream_uid, upstream_uids)
    found = sa.select(upstream_ends.c.schedule_uid).where(is_one, IS_OWED).distinct()
    return sorted(connection.execute(found).scalars())


def read_owed(connection: Connection, schedule_uid: str, now: datetime | None, limit: int) -> list[UpstreamEnd]:
    """Read the ends that are owed to a locked schedule and due by `now` (None: all of them), oldest first."""
    mine = [upstream_ends.c.schedule_uid == schedule_uid, IS_OWED]
    if now is not None:
        mine.append(upstream_ends.c.due_at <= now)
    found = _SELECT.where(*mine).order_by(upstream_ends.c.ended_at, upstream_ends.c.run_uid).limit(limit)
    return [UpstreamEnd(*row) for row in connection.execute(found)]


def read_one(
    connection: Connection, schedule_uid: str, start: datetime | None = None, end: datetime | None = None
) -> UpstreamEnd | None:
    """Read the first end in [start, end) that is or was owed to a schedule. Without a range, read the newest end.

    Return None without such an end.
    """
    found, at = _SELECT.where(upstream_ends.c.schedule_uid == schedule_uid), upstream_ends.c.ended_at
    if start is not None and end is not None:
        found = found.where(at >= start, at < end).order_by(at)
    else:
        found = found.order_by(at.desc())
    row = connection.execute(found.limit(1)).first()
    return None if row is None else UpstreamEnd(*row)


def run_after(connection: Connection, end: UpstreamEnd) -> Run | None:
    """Read the run that an end started; None if it started no run, or if the run was pruned."""
    is_it = runs.c.upstream_run_uid == end.run_uid, runs.c.schedule_uid == end.schedule_uid
    row = connection.execute(SELECT_SLIM_RUNS.where(*is_it)).first()
    return None if row is None else to_run(row)


class Linked(NamedTuple):
    """A schedule upstream or downstream of a run, with the schedule's own run."""

    schedule_id: str
    """The schedule's id."""
    run_uid: str | None
    """The uid of its run; None if the end has started no run."""
    number: int | None
    """The number of its run; None without a run."""
    said: str
    """The status of its run. Without a run, the outcome of the end (a `Followed`), or `owed`."""


def before(connection: Connection, run: Run) -> Linked | None:
    """Read the upstream run of a run (`Run.came_after`); None if there was none, or if it was pruned."""
    columns = schedules.c.schedule_id, runs.c.uid, runs.c.number, runs.c.status
    found = sa.select(*columns).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    row = connection.execute(found.where(runs.c.uid == run.came_after)).first() if run.came_after else None
    return None if row is None else Linked(*row)


def after(connection: Connection, run: Run) -> list[Linked]:
    """Read the downstream schedules for which a run's end counted, each with the run that started."""
    is_started = (runs.c.upstream_run_uid == upstream_ends.c.run_uid) & (runs.c.schedule_uid == schedules.c.uid)
    said = sa.case((IS_OWED, "owed"), else_=upstream_ends.c.followed)
    found = sa.select(schedules.c.schedule_id, runs.c.uid, runs.c.number, sa.func.coalesce(runs.c.status, said))
    found = found.select_from(upstream_ends).join(schedules, schedules.c.uid == upstream_ends.c.schedule_uid)
    found = found.join(runs, is_started, isouter=True).where(upstream_ends.c.run_uid == run.uid)
    return [Linked(*row) for row in connection.execute(found.order_by(schedules.c.schedule_id))]


def downstream_of(connection: Connection, schedule: Schedule, limit: int) -> list[str]:
    """Read the ids of at most `limit` downstream schedules of a schedule."""
    mine = schedules.c.namespace == schedule.namespace, schedules.c.upstream_id == schedule.schedule_id, COMES_AFTER
    found = sa.select(schedules.c.schedule_id).where(*mine).order_by(schedules.c.schedule_id)
    return list(connection.execute(found.limit(limit)).scalars())


def write_outcomes(connection: Connection, schedule_uid: str, outcomes: Mapping[str, Followed], now: datetime) -> None:
    """Write the outcomes of ends that were owed to a locked schedule; the keys are the uids of the ended runs."""
    for followed in {*outcomes.values()}:
        uids = [uid for uid, one in outcomes.items() if one is followed]
        is_one = dialect_of(connection).one_of(upstream_ends.c.run_uid, uids)
        moved = sa.update(upstream_ends).where(upstream_ends.c.schedule_uid == schedule_uid, is_one, IS_OWED)
        connection.execute(moved.values(followed=followed.value, followed_at=now, due_at=None, error=None))


def forget(connection: Connection, schedule_uid: str) -> None:
    """Delete the ends that are recorded for a purged schedule."""
    connection.execute(sa.delete(upstream_ends).where(upstream_ends.c.schedule_uid == schedule_uid))


def put_off(connection: Connection, ends: Iterable[tuple[UpstreamEnd, datetime]], error: str) -> None:
    """Record why ends could not be followed, and when each is tried again."""
    for end, due_at in ends:
        is_it = upstream_ends.c.run_uid == end.run_uid, upstream_ends.c.schedule_uid == end.schedule_uid
        moved = sa.update(upstream_ends).where(*is_it, IS_OWED)
        connection.execute(moved.values(tries=end.tries + 1, error=error, due_at=due_at))


def due(
    connection: Connection, now: datetime, after: str | None, limit: int, frozen: Collection[str] = ()
) -> tuple[list[str], str | None]:
    """Read a page of the schedules with an owed end that is due by now."""
    uid = upstream_ends.c.schedule_uid.label("uid")
    is_due = IS_OWED, upstream_ends.c.due_at <= now, *is_outside(frozen, upstream_ends.c.schedule_uid)
    rows, cursor = page_by_uid(
        connection, sa.select(uid).where(*is_due).distinct(), upstream_ends.c.schedule_uid, after, limit
    )
    return [row.uid for row in rows], cursor


def owing(
    connection: Connection, namespace: str | None, frozen: Collection[str], after: str | None, limit: int
) -> tuple[list[str], str | None]:
    """Read a page of the schedules with owed ends: in one namespace, or in all namespaces that are not `frozen`."""
    uid = upstream_ends.c.schedule_uid
    mine = sa.exists().where(schedules.c.uid == uid, schedules.c.namespace == namespace)
    where = is_outside(frozen, uid) if namespace is None else [mine]
    rows, cursor = page_by_uid(
        connection, sa.select(uid.label("uid")).where(IS_OWED, *where).distinct(), uid, after, limit
    )
    return [row.uid for row in rows], cursor


def gone(connection: Connection, namespace: str | None, limit: int) -> list[Schedule]:
    """Read schedules whose upstream does not exist any more, in one namespace or in all."""
    other = schedules.alias()
    is_it = other.c.namespace == schedules.c.namespace, other.c.schedule_id == schedules.c.upstream_id
    is_there = sa.exists().where(*is_it, other.c.status != constant(ScheduleStatus.DELETED))
    mine = [] if namespace is None else [schedules.c.namespace == namespace]
    found = SELECT_SLIM_SCHEDULES.where(COMES_AFTER, ~is_there, *mine).order_by(schedules.c.uid).limit(limit)
    return to_schedules(connection, connection.execute(found).all())


def late(
    connection: Connection, namespace: str | None, before: datetime, limit: int
) -> list[tuple[Schedule, str | None]]:
    """Read the schedules with owed ends from before an instant, sorted by the oldest of these ends.

    Each schedule is returned with the last error of that end, or None.
    """
    mine = [] if namespace is None else [schedules.c.namespace == namespace]
    columns = *SELECT_SLIM_SCHEDULES.selected_columns, upstream_ends.c.error
    found = sa.select(*columns).join(upstream_ends, upstream_ends.c.schedule_uid == schedules.c.uid)
    found = found.where(IS_OWED, upstream_ends.c.ended_at < before, *mine).order_by(upstream_ends.c.ended_at)
    first = dict[str, tuple[Schedule, str | None]]()
    for schedule, error in to_schedules_with_last(connection, connection.execute(found.limit(limit)).all()):
        first.setdefault(schedule.uid, (schedule, error))
    return [*first.values()]


def upstreams_of(connection: Connection, namespace: str, schedule_ids: Iterable[str]) -> dict[str, str | None]:
    """Return the existing schedules with these ids and all schedules upstream of them, each with its own upstream.

    The upstream is None for a schedule with times of its own.
    """
    found: dict[str, str | None] = {}
    wanted = set(schedule_ids)
    while wanted:
        known = find_all_named(connection, namespace, sorted(wanted))
        found |= {id_: one.upstream_id for id_, one in known.items()}
        wanted = {one.upstream_id for one in known.values() if one.upstream_id is not None} - found.keys()
    return found


def follow_from(connection: Connection, namespace: str, schedule_ids: Collection[str], now: datetime) -> None:
    """Mark locked schedules as upstreams. From `now` on, ends of their runs are written for downstream schedules."""
    is_one = dialect_of(connection).one_of(schedules.c.schedule_id, sorted(schedule_ids))
    mine = schedules.c.namespace == namespace, is_one, schedules.c.followed_at.is_(None)
    connection.execute(
        sa.update(schedules).where(*mine, schedules.c.status != ScheduleStatus.DELETED.value).values(followed_at=now)
    )
