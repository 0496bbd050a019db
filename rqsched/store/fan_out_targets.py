"""Targets of fan-outs, one row each: recorded, put on their queue, tried again, counted. Knows no Redis.

Every function works inside the caller's transaction. A target is dispatched once because its uid is computed from its
run and its id. How it is handled is in `target_attempts`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.ids import BatchJobId, TargetJobId, derived_uid
from rqsched.core.model import ENDED_IN_VAIN, RunStatus, TargetStatus
from rqsched.core.target_progress import TargetDescription
from rqsched.store.dialect import dialect_of
from rqsched.store.pages import page_by_uid
from rqsched.store.rows import columns_of, insert_rows
from rqsched.store.tables import HAS_OPEN_TARGETS, IS_OPEN_TARGET, constant, runs, schedules, targets

_ENDED_BADLY = [TargetStatus.FAILED.value, TargetStatus.LOST.value]


class Batch(NamedTuple):
    """What the targets of one run have in common."""

    run_uid: str
    """The uid of the run, or a new one for a fan-out started by hand."""
    workflow: str
    """The workflow that handles a target."""
    at: datetime
    """The run's occurrence."""
    timeout: int
    """Seconds one target may take."""
    schedule_uid: str | None = None
    """The schedule of the run; None for a fan-out started by hand."""
    queue: str | None = None
    """The queue of the jobs; None for the default one."""
    connection: str | None = None
    """The named Redis of that queue; None for the main one."""
    max_parallel: int | None = None
    """The most of them that are on their queue or handled at once; None is unlimited."""
    is_named: bool = False
    """Whether an earlier attempt of the run has named them all."""


class RunName(NamedTuple):
    """What people know the run of targets by."""

    namespace: str
    """The namespace of its schedule."""
    schedule_id: str
    """Its schedule."""
    occurrence_at: datetime
    """Its nominal time."""
    attempt: int
    """Its current attempt."""


class Target(NamedTuple):
    """One target, as its job needs it."""

    uid: str
    """Computed from the run and the target's id."""
    run_uid: str
    """The run that named it."""
    schedule_uid: str | None
    """The schedule of that run; None for a fan-out started by hand."""
    target_id: str
    """The id that the resolver named."""
    workflow: str
    """The workflow that handles it."""
    timeout: int
    """Seconds one attempt may take."""
    queue: str | None
    """The queue of its job; None for the default one."""
    connection: str | None
    """The named Redis of that queue; None for the main one."""
    delivery: int
    """Which job carries it."""
    attempt: int
    """1, 2, 3 ...: how often it was tried, this time included."""
    max_parallel: int | None
    """The most targets of its run that are on their queue or handled at once; None is unlimited."""
    blocked_at: datetime | None
    """Since when no worker that took it could find its workflow; None when it was not blocked."""

    @property
    def job_id(self) -> TargetJobId:
        """The id of its present job."""
        return TargetJobId(self.uid, self.delivery)


TARGET = [targets.c[name] for name in Target._fields]
"""The columns of a Target."""


def record(
    connection: Connection, batch: Batch, named: Sequence[str | tuple[str, str | None]], first: int, now: datetime
) -> None:
    """Insert targets as waiting, numbered from `first` on; those that the run has already are left unchanged.

    A target is named by its id, or by its id and the JSON of its payload.
    """
    shared = {
        "run_uid": batch.run_uid,
        "schedule_uid": batch.schedule_uid,
        "workflow": batch.workflow,
        "queue": batch.queue,
        "connection": batch.connection,
        "timeout": batch.timeout,
        "max_parallel": batch.max_parallel,
        "status": TargetStatus.WAITING.value,
        "created_at": now,
    }
    pairs = [(one, None) if isinstance(one, str) else one for one in named]
    rows = [
        {
            "uid": derived_uid(batch.at, batch.run_uid, target_id),
            "number": first + index,
            "target_id": target_id,
            "payload": payload,
        }
        for index, (target_id, payload) in enumerate(pairs)
    ]
    insert_rows(connection, targets, columns_of([shared | row for row in rows]), or_ignore=True)


def wait_again(connection: Connection, run_uids: Sequence[str]) -> None:
    """Let the targets of runs that are retried on request wait again which have not been handled with success."""
    again = targets.c.attempt + sa.case((targets.c.status.in_(_ENDED_BADLY), 1), else_=0)
    connection.execute(
        sa.update(targets)
        .where(dialect_of(connection).one_of(targets.c.run_uid, run_uids))
        .where(targets.c.status.in_([*_ENDED_BADLY, TargetStatus.CANCELLED.value]))
        .values(status=TargetStatus.WAITING.value, attempt=again, delivery=targets.c.delivery + 1, error=None)
        .values(dict.fromkeys(("token", "queued_at", "deadline_at", "ended_at", "retry_at", "blocked_at")))
    )


def last_number(connection: Connection, run_uid: str) -> int:
    """Return the number of a run's last target; 0 when it has none."""
    statement = sa.select(sa.func.max(targets.c.number)).where(targets.c.run_uid == run_uid)
    return connection.execute(statement).scalar_one() or 0


def first_waiting(connection: Connection, run_uid: str) -> tuple[int, int | None] | None:
    """Return the number and the `max_parallel` of the first target that is not on its queue yet; None when all are."""
    found = sa.select(targets.c.number, targets.c.max_parallel).where(*_waits(run_uid))
    row = connection.execute(found.order_by(targets.c.number).limit(1)).first()
    return None if row is None else (row.number, row.max_parallel)


def take_chunk(connection: Connection, job: BatchJobId, limit: int, now: datetime) -> tuple[list[Target], int | None]:
    """Make the next targets of a run pending; returns them and the number of the target after them.

    Returns none when `job` does not name the first waiting target: another delivery of the job was first.
    """
    statement = sa.select(*TARGET, targets.c.number).where(*_waits(job.run_uid), ~has_ended_in_vain())
    ordered = statement.order_by(targets.c.number, targets.c.uid).limit(limit + 1).with_for_update()
    rows = connection.execute(ordered).all()
    if not rows or rows[0].number != job.number or rows[0].max_parallel is not None:
        return [], None
    chunk = [Target(*row[:-1]) for row in rows[:limit]]
    _enqueue(connection, chunk, now)
    return chunk, rows[limit].number if len(rows) > limit else None


def pending(connection: Connection, before: datetime, after: str | None, limit: int) -> tuple[list[Target], str | None]:
    """Return a page of targets that should be on their queue since `before`, and the next cursor."""
    statement = sa.select(*TARGET).where(is_open(TargetStatus.PENDING), targets.c.queued_at <= before)
    rows, cursor = page_by_uid(connection, statement, targets.c.uid, after, limit)
    return [Target(*row) for row in rows], cursor


def unfinished_batches(connection: Connection, before: datetime) -> list[tuple[BatchJobId, Target]]:
    """Return the fan-outs with targets left to dispatch: the job that continues each, and its first waiting target.

    Fan-outs whose workflow has not returned are left out: the next attempt may name further targets first.
    """
    is_by_hand = runs.c.uid.is_(None) & targets.c.schedule_uid.is_(None) & (targets.c.created_at <= before)
    is_over = (runs.c.status == RunStatus.SUCCEEDED.value) | HAS_OPEN_TARGETS | is_by_hand
    joined = targets.outerjoin(runs, runs.c.uid == targets.c.run_uid)
    first = sa.select(targets.c.run_uid, sa.func.min(targets.c.number).label("number")).select_from(joined)
    named = first.where(is_open(TargetStatus.WAITING), is_over).group_by(targets.c.run_uid).subquery()
    same = (targets.c.run_uid == named.c.run_uid) & (targets.c.number == named.c.number)
    statement = sa.select(named.c.run_uid, named.c.number, *TARGET).select_from(named.join(targets, same))
    return [(BatchJobId(row[0], row[1]), Target(*row[2:])) for row in connection.execute(statement)]


def names_of(connection: Connection, run_uids: Collection[str]) -> dict[str, RunName]:
    """Return what runs are known by, by their uids; fan-outs that were started by hand have no run."""
    columns = schedules.c.namespace, schedules.c.schedule_id, runs.c.occurrence_at, runs.c.attempt
    statement = sa.select(runs.c.uid, *columns).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    found = statement.where(dialect_of(connection).one_of(runs.c.uid, sorted(set(run_uids))))
    return {row[0]: RunName(*row[1:]) for row in connection.execute(found)}


def take_free(connection: Connection, run_uid: str, limit: int, now: datetime) -> list[Target]:
    """Make so many waiting targets of a run with `max_parallel` pending as may be handled beside the others.

    The run's first target is locked meanwhile: two that look at once would both see the same places free.
    """
    mutex = sa.select(targets.c.uid).where(targets.c.run_uid == run_uid)
    connection.execute(mutex.order_by(targets.c.number, targets.c.uid).limit(1).with_for_update())
    # Not the first target's limit: the schedule may have got one only after an attempt that named some of them.
    first = first_waiting(connection, run_uid)
    if first is None or (most := first[1]) is None:
        return []
    is_taken = targets.c.status.in_([TargetStatus.PENDING.value, TargetStatus.RUNNING.value])
    taken = sa.select(sa.func.count()).where(targets.c.run_uid == run_uid, is_taken)
    free = min(most - connection.execute(taken).scalar_one(), limit)
    return take_waiting(connection, run_uid, free, now) if free > 0 else []


def take_waiting(connection: Connection, run_uid: str, limit: int, now: datetime) -> list[Target]:
    """Make the next waiting targets of a run pending, but for those that another transaction takes."""
    found = sa.select(*TARGET).where(*_waits(run_uid), ~has_ended_in_vain()).order_by(targets.c.number, targets.c.uid)
    ordered = found.limit(limit).with_for_update(skip_locked=True)
    chunk = [Target(*row) for row in connection.execute(ordered)]
    _enqueue(connection, chunk, now)
    return chunk


def _enqueue(connection: Connection, chunk: Sequence[Target], now: datetime) -> None:
    if chunk:
        mine = dialect_of(connection).one_of(targets.c.uid, [target.uid for target in chunk])
        connection.execute(sa.update(targets).where(mine).values(status=TargetStatus.PENDING.value, queued_at=now))


def _waits(run_uid: str) -> tuple[sa.ColumnElement[bool], ...]:
    return targets.c.run_uid == run_uid, targets.c.status == constant(TargetStatus.WAITING)


def promote(
    connection: Connection, now: datetime, limit: int, run_uid: str | None = None
) -> tuple[list[Target], list[Target]]:
    """Let retrying and blocked targets whose time has come be handled again, of one run or of all.

    Returns those that are pending now, and those that wait again because `max_parallel` decides when they are. Rows
    that another transaction holds are left to the next caller.
    """
    found = sa.select(*TARGET, targets.c.status).where(_is_put_off(), targets.c.retry_at <= now)
    mine = found if run_uid is None else found.where(targets.c.run_uid == run_uid)
    ordered = mine.order_by(targets.c.uid).limit(limit).with_for_update(skip_locked=True)
    due = [(Target(*row[:-1]), row.status == TargetStatus.RETRYING) for row in connection.execute(ordered)]
    if due:
        _release(connection, [target.uid for target, _ in due], now)
    again = [
        target._replace(attempt=target.attempt + is_retry, delivery=target.delivery + 1) for target, is_retry in due
    ]
    ready = [target for target in again if target.max_parallel is None]
    return ready, [target for target in again if target.max_parallel is not None]


def next_promotion(connection: Connection, run_uid: str) -> datetime | None:
    """Return when the next retrying or blocked target of a run is due; None when there is none."""
    earliest = sa.select(sa.func.min(targets.c.retry_at, type_=targets.c.retry_at.type))
    found: datetime | None = connection.execute(
        earliest.where(_is_put_off(), targets.c.run_uid == run_uid)
    ).scalar_one()
    return found


def _release(connection: Connection, uids: Sequence[str], now: datetime) -> None:
    """Make put-off targets pending, or waiting where `max_parallel` says when they are; each gets a new delivery."""
    is_limited = targets.c.max_parallel.is_not(None)
    is_retry = targets.c.status == constant(TargetStatus.RETRYING)
    connection.execute(
        sa.update(targets)
        .where(dialect_of(connection).one_of(targets.c.uid, uids))
        .values(
            status=sa.case((is_limited, TargetStatus.WAITING.value), else_=TargetStatus.PENDING.value),
            attempt=targets.c.attempt + sa.case((is_retry, 1), else_=0),
            delivery=targets.c.delivery + 1,
            queued_at=sa.case((is_limited, None), else_=sa.literal(now, targets.c.queued_at.type)),
            retry_at=None,
            token=None,
        )
    )


def _is_put_off() -> sa.ColumnElement[bool]:
    put_off = [constant(TargetStatus.RETRYING), constant(TargetStatus.BLOCKED)]
    return IS_OPEN_TARGET & targets.c.status.in_(put_off)


def exists_of(connection: Connection, run_uid: str) -> bool:
    """Return whether a run has targets, or is known and has none yet."""
    has_targets = sa.exists().where(targets.c.run_uid == run_uid)
    is_known = sa.exists().where(runs.c.uid == run_uid)
    return connection.execute(sa.select(has_targets | is_known)).scalar_one()


def has_open(connection: Connection, run_uid: str) -> bool:
    """Tell whether a target of a run has not ended."""
    found = sa.select(targets.c.uid).where(targets.c.run_uid == run_uid, IS_OPEN_TARGET).limit(1)
    return connection.execute(found).first() is not None


def first_error(connection: Connection, run_uid: str) -> str | None:
    """Return the error of the first target of a run that failed or was lost; None when none did."""
    failed = targets.c.run_uid == run_uid, targets.c.status.in_(_ENDED_BADLY)
    found = sa.select(targets.c.error).where(*failed).order_by(targets.c.number).limit(1)
    error: str | None = connection.execute(found).scalar_one_or_none()
    return error


def read_error(connection: Connection, uid: str) -> str | None:
    """Return the error of a target's last attempt, or why it is blocked."""
    error: str | None = connection.execute(sa.select(targets.c.error).where(targets.c.uid == uid)).scalar_one_or_none()
    return error


def count(connection: Connection, run_uid: str) -> dict[str, int]:
    """Count a run's targets by status."""
    statement = sa.select(targets.c.status, sa.func.count()).where(targets.c.run_uid == run_uid)
    rows = connection.execute(statement.group_by(targets.c.status)).all()
    return {row[0]: row[1] for row in rows}


def count_lately(connection: Connection, run_uid: str, since: datetime) -> tuple[dict[str, int], int]:
    """Count a run's targets by status, and those that ended since an instant."""
    lately = sa.func.coalesce(sa.func.sum(sa.case((targets.c.ended_at >= since, 1), else_=0)), 0)
    statement = sa.select(targets.c.status, sa.func.count(), lately).where(targets.c.run_uid == run_uid)
    rows = connection.execute(statement.group_by(targets.c.status)).all()
    return {row[0]: row[1] for row in rows}, sum(int(row[2]) for row in rows)


def describe_page(
    connection: Connection, run_uid: str, *, status: str | None, after: int, limit: int
) -> list[TargetDescription]:
    """Return a page of a run's targets in the order they were named, those after a number."""
    statement = sa.select(*(targets.c[name] for name in TargetDescription.__dataclass_fields__))
    found = statement.where(targets.c.run_uid == run_uid, targets.c.number > after)
    if status is not None:
        found = found.where(targets.c.status == status)
    ordered = found.order_by(targets.c.number, targets.c.uid).limit(limit)
    return [TargetDescription(*row) for row in connection.execute(ordered)]


def has_ended_in_vain() -> sa.ColumnElement[bool]:
    """The run of a target was cancelled, terminated or lost, or its workflow failed."""
    return sa.exists().where(runs.c.uid == targets.c.run_uid, runs.c.status.in_(sorted(ENDED_IN_VAIN)))


def is_open(status: TargetStatus) -> sa.ColumnElement[bool]:
    """The target is in this status, in which it has not ended: the index of open targets finds it."""
    return IS_OPEN_TARGET & (targets.c.status == constant(status))
