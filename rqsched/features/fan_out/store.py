"""The rows of targets: record, enqueue, claim, end, retry and count them.

Every function works inside the caller's transaction and does not use Redis. A target is dispatched once, because its
uid is computed from its run and its id. It is handled once, because `claim` is one conditional UPDATE. It ends once,
because its end is written only with the token of that claim. On PostgreSQL, claim and end are one statement each, which
can also run without a transaction. A pass of reconcile skips rows that another transaction holds; the next pass finds
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.progress import TargetDescription
from rqsched.features.limits.rate_starts import count_starts, take_back
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, derived_uid
from rqsched.kernel.decide.model import ENDED_IN_VAIN, OPEN_TARGETS, RunStatus, TargetStatus
from rqsched.kernel.queries.pages import counting, newest_since, page_by_uid
from rqsched.kernel.store.dialect import POSTGRES, dialect_of
from rqsched.kernel.store.rows import columns_of, insert_rows
from rqsched.kernel.store.tables import (
    HAS_OPEN_TARGETS,
    IS_OPEN_TARGET,
    constant,
    is_free_for,
    is_held_by,
    of_schedule,
    runs,
    schedules,
    targets,
)

_ENDED_BADLY = [TargetStatus.FAILED.value, TargetStatus.LOST.value]


class Batch(NamedTuple):
    """The properties that the targets of one run share."""

    run_uid: str
    """The uid of the run, or a new uid for a fan-out started by hand."""
    workflow: str
    """The workflow that handles a target."""
    at: datetime
    """The run's occurrence."""
    timeout: int
    """How many seconds one target may take."""
    schedule_uid: str | None = None
    """The schedule of the run; None for a fan-out started by hand."""
    queue: str | None = None
    """The queue of the jobs; None for the default queue."""
    connection: str | None = None
    """The named Redis of that queue; None for the main Redis."""
    max_parallel: int | None = None
    """The maximum number of targets that are on their queue or handled at once; None sets no limit."""
    is_named: bool = False
    """Whether an earlier attempt of the run has named all targets."""
    limit_group: str | None = None
    """The key of the group whose limit applies to each target; None without a limit."""


class RunName(NamedTuple):
    """The names of a run, for texts that people read."""

    namespace: str
    """The namespace of its schedule."""
    schedule_id: str
    """Its schedule."""
    occurrence_at: datetime
    """Its nominal time."""
    attempt: int
    """Its current attempt."""


class Target(NamedTuple):
    """One target, with the values that its job needs."""

    uid: str
    """Its uid, computed from the run and the target's id."""
    run_uid: str
    """The run that named it."""
    schedule_uid: str | None
    """The schedule of that run; None for a fan-out started by hand."""
    target_id: str
    """The id that the resolver named."""
    workflow: str
    """The workflow that handles it."""
    timeout: int
    """How many seconds one attempt may take."""
    queue: str | None
    """The queue of its job; None for the default one."""
    connection: str | None
    """The named Redis of that queue; None for the main one."""
    delivery: int
    """The number of the job that carries it."""
    attempt: int
    """1, 2, 3 ...: the number of the current attempt."""
    max_parallel: int | None
    """The maximum number of targets of its run that are on their queue or handled at once; None sets no limit."""
    blocked_at: datetime | None
    """When a worker first could not find the workflow of the target; None if the target is not blocked."""
    number: int
    """1, 2, 3 ... in the order in which the targets of its run were named."""
    limit_group: str | None = None
    """The key of the group in which it needs a place before it gets a job; None without a limit."""
    is_rated: bool = False
    """Whether its group had a rate when it got its place, so that its start is counted."""

    @property
    def job_id(self) -> TargetJobId:
        """The id of its present job."""
        return TargetJobId(self.uid, self.delivery)


TARGET_COLUMNS = [targets.c[name] for name in Target._fields]
"""The columns of a Target."""


def _has_ended_in_vain() -> sa.ColumnElement[bool]:
    """Return the condition that the run of a target was cancelled, terminated or lost, or failed in its workflow."""
    return sa.exists().where(runs.c.uid == targets.c.run_uid, runs.c.status.in_(sorted(ENDED_IN_VAIN)))


def _is_open(status: TargetStatus) -> sa.ColumnElement[bool]:
    """Return the condition that a target has this open status, in a form that uses the index of open targets."""
    return IS_OPEN_TARGET & (targets.c.status == constant(status))


def record(
    connection: Connection, batch: Batch, named: Sequence[str | tuple[str, str | None]], first: int, now: datetime
) -> None:
    """Insert targets as waiting, numbered from `first` on; existing targets of the run are left unchanged.

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
        "limit_group": batch.limit_group,
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
    """Set the unsuccessful targets of runs to waiting, for runs that are retried on request.

    All waiting targets of these runs also get the present group of the schedule.
    """
    again = targets.c.attempt + sa.case((targets.c.status.in_(_ENDED_BADLY), 1), else_=0)
    connection.execute(
        sa.update(targets)
        .where(dialect_of(connection).one_of(targets.c.run_uid, run_uids))
        .where(targets.c.status.in_([*_ENDED_BADLY, TargetStatus.CANCELLED.value, TargetStatus.WAITING.value]))
        .values(status=TargetStatus.WAITING.value, attempt=again, delivery=targets.c.delivery + 1, error=None)
        .values(dict.fromkeys(("token", "queued_at", "deadline_at", "ended_at", "retry_at", "blocked_at")))
        .values(limit_group=of_schedule(schedules.c.limit_group, targets))
        .values(dict.fromkeys(("limit_at", "granted_at", "passed_at", "passed_count")))
        .values(is_rated=False)
    )


def last_number(connection: Connection, run_uid: str) -> int:
    """Return the number of a run's last target; 0 if it has no targets."""
    statement = sa.select(sa.func.max(targets.c.number)).where(targets.c.run_uid == run_uid)
    return connection.execute(statement).scalar_one() or 0


def first_waiting(connection: Connection, run_uid: str) -> tuple[int, int | None] | None:
    """Return the number and the `max_parallel` of a run's first target that is not on its queue yet, or None."""
    found = sa.select(targets.c.number, targets.c.max_parallel).where(*_waits(run_uid))
    row = connection.execute(found.order_by(targets.c.number).limit(1)).first()
    return None if row is None else (row.number, row.max_parallel)


def take_chunk(connection: Connection, job: BatchJobId, limit: int, now: datetime) -> tuple[list[Target], int | None]:
    """Make the next targets of a run pending; returns them and the number of the target after them.

    Returns no targets if `job` does not name the first waiting target, because another delivery of the job was first.
    """
    statement = sa.select(*TARGET_COLUMNS, targets.c.number).where(*_waits(job.run_uid), ~_has_ended_in_vain())
    ordered = statement.order_by(targets.c.number, targets.c.uid).limit(limit + 1).with_for_update()
    rows = connection.execute(ordered).all()
    if not rows or rows[0].number != job.number or rows[0].max_parallel is not None:
        return [], None
    chunk = [Target(*row[:-1]) for row in rows[:limit]]
    _enqueue(connection, chunk, now)
    return chunk, rows[limit].number if len(rows) > limit else None


def pending(connection: Connection, before: datetime, after: str | None, limit: int) -> tuple[list[Target], str | None]:
    """Return a page of targets that should be on their queue since `before`, and the next cursor.

    A target that waits in line for a place of its group has no job, and no `queued_at`.
    """
    statement = sa.select(*TARGET_COLUMNS).where(_is_open(TargetStatus.PENDING), targets.c.queued_at <= before)
    rows, cursor = page_by_uid(connection, statement, targets.c.uid, after, limit)
    return [Target(*row) for row in rows], cursor


def unfinished_batches(connection: Connection, before: datetime) -> list[tuple[BatchJobId, Target]]:
    """For each fan-out with targets left to dispatch, return the job that continues it and its first waiting target.

    Fan-outs whose workflow has not returned are left out, because the next attempt may first name more targets.
    """
    is_by_hand = runs.c.uid.is_(None) & targets.c.schedule_uid.is_(None) & (targets.c.created_at <= before)
    is_over = (runs.c.status == RunStatus.SUCCEEDED.value) | HAS_OPEN_TARGETS | is_by_hand
    joined = targets.outerjoin(runs, runs.c.uid == targets.c.run_uid)
    first = sa.select(targets.c.run_uid, sa.func.min(targets.c.number).label("number")).select_from(joined)
    named = first.where(_is_open(TargetStatus.WAITING), is_over).group_by(targets.c.run_uid).subquery()
    same = (targets.c.run_uid == named.c.run_uid) & (targets.c.number == named.c.number)
    statement = sa.select(named.c.run_uid, named.c.number, *TARGET_COLUMNS).select_from(named.join(targets, same))
    return [(BatchJobId(row[0], row[1]), Target(*row[2:])) for row in connection.execute(statement)]


def names_of(connection: Connection, run_uids: Collection[str]) -> dict[str, RunName]:
    """Return the names of runs by uid. Fan-outs that were started by hand have no run and are left out."""
    columns = schedules.c.namespace, schedules.c.schedule_id, runs.c.occurrence_at, runs.c.attempt
    statement = sa.select(runs.c.uid, *columns).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    found = statement.where(dialect_of(connection).one_of(runs.c.uid, sorted(set(run_uids))))
    return {row[0]: RunName(*row[1:]) for row in connection.execute(found)}


def take_free(connection: Connection, run_uid: str, limit: int, now: datetime) -> list[Target]:
    """Make as many waiting targets of a run pending as its `max_parallel` allows.

    The caller has locked the run's first target (`lock_first`).
    """
    # Use `max_parallel` of the first waiting target. Earlier targets may have been named before the schedule had this
    # option.
    first = first_waiting(connection, run_uid)
    if first is None or (most := first[1]) is None:
        return []
    is_taken = targets.c.status.in_([TargetStatus.PENDING.value, TargetStatus.RUNNING.value])
    taken = sa.select(sa.func.count()).where(targets.c.run_uid == run_uid, is_taken)
    free = min(most - connection.execute(taken).scalar_one(), limit)
    return take_waiting(connection, run_uid, free, now) if free > 0 else []


def take_waiting(connection: Connection, run_uid: str, limit: int, now: datetime) -> list[Target]:
    """Make the next waiting targets of a run pending, except targets that another transaction holds."""
    found = (
        sa.select(*TARGET_COLUMNS)
        .where(*_waits(run_uid), ~_has_ended_in_vain())
        .order_by(targets.c.number, targets.c.uid)
    )
    ordered = found.limit(limit).with_for_update(skip_locked=True)
    chunk = [Target(*row) for row in connection.execute(ordered)]
    _enqueue(connection, chunk, now)
    return chunk


def _enqueue(connection: Connection, chunk: Sequence[Target], now: datetime) -> None:
    if chunk:
        mine = dialect_of(connection).one_of(targets.c.uid, [target.uid for target in chunk])
        # Test each target, because one attempt of a run may have named targets with a group, and a later attempt
        # targets without a group.
        needs_place = targets.c.limit_group.is_not(None)
        since = sa.func.coalesce(targets.c.limit_at, now, type_=targets.c.limit_at.type)
        pending = sa.update(targets).where(mine).values(status=TargetStatus.PENDING.value)
        connection.execute(
            pending.values(
                limit_at=sa.case((needs_place, since)),
                queued_at=sa.case((~needs_place, sa.literal(now, targets.c.queued_at.type))),
                granted_at=None,
                passed_at=None,
            )
        )


def _waits(run_uid: str) -> tuple[sa.ColumnElement[bool], ...]:
    return targets.c.run_uid == run_uid, targets.c.status == constant(TargetStatus.WAITING)


def promote(
    connection: Connection, now: datetime, limit: int, run_uid: str | None = None
) -> tuple[list[Target], list[Target]]:
    """Make due retrying and blocked targets pending again, of one run or of all runs.

    Returns the targets that are pending now, and the targets that wait because of `max_parallel`. Rows that another
    transaction holds are left to the next caller.
    """
    found = sa.select(*TARGET_COLUMNS, targets.c.status).where(_is_put_off(), targets.c.retry_at <= now)
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
    """Make retrying or blocked targets pending, or waiting if they have `max_parallel`. Each gets a new job number."""
    is_limited = targets.c.max_parallel.is_not(None)
    needs_place = targets.c.limit_group.is_not(None)
    is_retry = targets.c.status == constant(TargetStatus.RETRYING)
    connection.execute(
        sa.update(targets)
        .where(dialect_of(connection).one_of(targets.c.uid, uids))
        .values(
            status=sa.case((is_limited, TargetStatus.WAITING.value), else_=TargetStatus.PENDING.value),
            attempt=targets.c.attempt + sa.case((is_retry, 1), else_=0),
            delivery=targets.c.delivery + 1,
            queued_at=sa.case((is_limited | needs_place, None), else_=sa.literal(now, targets.c.queued_at.type)),
            granted_at=None,
            passed_at=None,
            retry_at=None,
            token=None,
        )
    )


def _is_put_off() -> sa.ColumnElement[bool]:
    put_off = [constant(TargetStatus.RETRYING), constant(TargetStatus.BLOCKED)]
    return IS_OPEN_TARGET & targets.c.status.in_(put_off)


def exists_of(connection: Connection, run_uid: str) -> bool:
    """Return whether this database has the run, or targets of it."""
    has_targets = sa.exists().where(targets.c.run_uid == run_uid)
    is_known = sa.exists().where(runs.c.uid == run_uid)
    return connection.execute(sa.select(has_targets | is_known)).scalar_one()


def has_open(connection: Connection, run_uid: str) -> bool:
    """Return whether any target of a run has not ended."""
    found = sa.select(targets.c.uid).where(targets.c.run_uid == run_uid, IS_OPEN_TARGET).limit(1)
    return connection.execute(found).first() is not None


class TargetName(NamedTuple):
    """The names of a target of a schedule's run."""

    target_id: str
    """Its id within the run."""
    run_uid: str
    """The run."""
    schedule_id: str
    """The id of the run's schedule."""
    started_at: datetime | None
    """When its newest attempt began."""


def names_of_targets(connection: Connection, namespace: str, uids: Sequence[str]) -> dict[str, TargetName]:
    """Return the names of these targets by uid. Targets of other namespaces are left out."""
    columns = targets.c.target_id, targets.c.run_uid, schedules.c.schedule_id, targets.c.started_at
    statement = (
        sa.select(targets.c.uid, *columns)
        .join(schedules, schedules.c.uid == targets.c.schedule_uid)
        .where(targets.c.uid.in_(uids), schedules.c.namespace == namespace)
    )
    return {uid: TargetName(*rest) for uid, *rest in connection.execute(statement)} if uids else {}


class TargetFlow(NamedTuple):
    """The progress of a target through a queue."""

    queue: str | None
    """The queue; None is the default one."""
    was_queued: bool
    """Whether the target was put on the queue."""
    has_ended: bool
    """Whether it has ended."""
    started_at: datetime | None
    """When its newest attempt began."""
    ended_at: datetime | None
    """When it ended."""

    @property
    def took(self) -> float:
        """The seconds that its newest attempt took; 0 before its end."""
        return (
            0.0
            if self.started_at is None or self.ended_at is None
            else (self.ended_at - self.started_at).total_seconds()
        )


def newest_flow(
    connection: Connection, namespace: str | None, start: datetime, most: int
) -> tuple[list[TargetFlow], datetime]:
    """Read at most `most` of the newest targets since `start`, and return those in the namespace (None: in any).

    Also returns the time since which the result is complete.
    """
    is_among, since = newest_since(connection, targets, start, most)
    has = targets.c.queued_at.is_not(None), targets.c.ended_at.is_not(None)
    of_it = [] if namespace is None else [of_schedule(schedules.c.namespace, targets) == namespace]
    statement = sa.select(targets.c.queue, *has, targets.c.started_at, targets.c.ended_at).where(is_among, *of_it)
    statement = statement.order_by(targets.c.uid.desc()).limit(most)
    return [TargetFlow(*row) for row in connection.execute(statement)], since


def first_error(connection: Connection, run_uid: str) -> str | None:
    """Return the error of a run's first target that failed or was lost, or None."""
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


def count_each_to(connection: Connection, run_uid: str, most: int) -> dict[str, int]:
    """Count a run's targets by status, each status up to `most`."""
    mine: sa.Select[Any] = sa.select(sa.literal_column("1")).where(targets.c.run_uid == run_uid)
    counts = [counting(mine.where(targets.c.status == constant(status)), most) for status in TargetStatus]
    row = connection.execute(sa.select(*(one.scalar_subquery() for one in counts))).one()
    return {status.value: number for status, number in zip(TargetStatus, row, strict=True) if number}


def count_lately(connection: Connection, run_uid: str, since: datetime) -> tuple[dict[str, int], int]:
    """Count a run's targets by status. Also count the targets that ended since an instant."""
    lately = sa.func.coalesce(sa.func.sum(sa.case((targets.c.ended_at >= since, 1), else_=0)), 0)
    statement = sa.select(targets.c.status, sa.func.count(), lately).where(targets.c.run_uid == run_uid)
    rows = connection.execute(statement.group_by(targets.c.status)).all()
    return {row[0]: row[1] for row in rows}, sum(int(row[2]) for row in rows)


def describe_page(
    connection: Connection, run_uid: str, *, status: str | None, after: int, limit: int
) -> list[TargetDescription]:
    """Return a page of a run's targets whose number is above `after`, in the order they were named."""
    statement = sa.select(*(targets.c[name] for name in TargetDescription.__dataclass_fields__))
    found = statement.where(targets.c.run_uid == run_uid, targets.c.number > after)
    if status is not None:
        found = found.where(targets.c.status == status)
    ordered = found.order_by(targets.c.number, targets.c.uid).limit(limit)
    return [TargetDescription(*row) for row in connection.execute(ordered)]


class ClaimedTarget(NamedTuple):
    """A target that a process may handle now."""

    target: Target
    """The target, as its job needs it."""
    payload: str | None
    """The JSON of its payload; None without one."""
    started_at: datetime
    """When the attempt began. It is later than the start of the previous attempt, even if clocks differ."""
    run: tuple[RunStatus, int] | None
    """The status and the attempt of its run; None when the fan-out was started by hand."""


GIVEN_UP = "its run ended before it began"
"""The error of a target that had not begun when its run ended."""
_IS_RUNNING = _is_open(TargetStatus.RUNNING)
# These statements claim and end every target. They are built only once, because building them for each target would
# take three times as long.
_CLAIM_OF = (
    sa.select(*TARGET_COLUMNS, targets.c.payload, targets.c.token, targets.c.started_at, targets.c.granted_at)
    .add_columns(runs.c.status, runs.c.attempt)
    .select_from(targets.outerjoin(runs, runs.c.uid == targets.c.run_uid))
    .where(targets.c.uid == sa.bindparam("of"))
)
_TOKEN: sa.BindParameter[str] = sa.bindparam("by")
_CLAIM = (
    sa.update(targets)
    .where(targets.c.uid == sa.bindparam("of"), targets.c.delivery == sa.bindparam("delivered"))
    .where(is_free_for(targets, _TOKEN))
    .where(targets.c.limit_group.is_(None) | targets.c.granted_at.is_not(None))
    .values(status=TargetStatus.RUNNING.value, token=_TOKEN, worker=sa.bindparam("worker_name"))
    .values(started_at=sa.bindparam("begun"), deadline_at=sa.bindparam("deadline"))
)
_OF_RUN = [
    sa.select(runs.c[name]).where(runs.c.uid == targets.c.run_uid).correlate(targets).scalar_subquery()
    for name in ("status", "attempt")
]
_BEGAN = POSTGRES.after(
    targets.c.started_at, sa.bindparam("begun", type_=targets.c.started_at.type), targets.c.granted_at
)
_CLAIM_RETURNING = _CLAIM.values(
    started_at=sa.case((is_held_by(targets, _TOKEN), targets.c.started_at), else_=_BEGAN),
    deadline_at=sa.bindparam("begun", type_=targets.c.started_at.type)
    + sa.func.make_interval(0, 0, 0, 0, 0, 0, targets.c.timeout, type_=sa.Interval),
).returning(*TARGET_COLUMNS, targets.c.payload, targets.c.started_at, *_OF_RUN)
"""The claim in one statement (PostgreSQL). Subqueries read the run, because a fan-out started by hand has no run."""
_MINE = targets.alias("mine")
_LOCK = sa.select(_MINE.c.uid).where(_MINE.c.uid == sa.bindparam("of"))
_IS_UNLOCKED = (
    targets.c.uid == _LOCK.with_for_update(key_share=True, skip_locked=True).correlate(None).scalar_subquery()
)
"""The condition that the row is not locked. If an autocommitted statement waited for a lock, its times would be too
early."""
_CLAIM_UNCOUNTED = _CLAIM_RETURNING.where(~targets.c.is_rated, _IS_UNLOCKED)
_ENDED_BY = ("status", "error", "retry_at", "blocked_at", "ended_at")
_FINISH = (
    sa.update(targets)
    .where(targets.c.uid == sa.bindparam("of"), is_held_by(targets, _TOKEN))
    .values({name: sa.bindparam(f"new_{name}") for name in _ENDED_BY})
)
_OTHERS = targets.alias("others")
_NOT_BEGUN = (
    sa.select(_OTHERS.c.uid)
    .where(_OTHERS.c.run_uid == sa.bindparam("run"))
    .where(_OTHERS.c.status.in_([constant(status) for status in OPEN_TARGETS if status is not TargetStatus.RUNNING]))
    .limit(1)
)
_FINISH_RETURNING = _FINISH.returning(_NOT_BEGUN.exists())
"""Records the end, and returns whether other targets have not begun (PostgreSQL)."""
_FINISH_ALONE = _FINISH_RETURNING.where(_IS_UNLOCKED)


def lock(connection: Connection, uid: str) -> None:
    """Lock a target, so that the time of its start or end is read after the wait for the lock."""
    connection.execute(_LOCK.with_for_update(key_share=True), {"of": uid})


def lock_waiting(connection: Connection, run_uid: str, limit: int) -> None:
    """Lock the next waiting targets of a run, so that the time of their enqueuing is read after the wait."""
    statement = sa.select(targets.c.uid).where(*_waits(run_uid)).order_by(targets.c.number, targets.c.uid)
    connection.execute(statement.limit(limit).with_for_update())


def lock_first(connection: Connection, run_uid: str) -> None:
    """Lock the first target of a run, so that no two transactions count the same free places (`take_free`)."""
    mutex = sa.select(targets.c.uid).where(targets.c.run_uid == run_uid)
    connection.execute(mutex.order_by(targets.c.number, targets.c.uid).limit(1).with_for_update())


def claim(
    connection: Connection,
    job: TargetJobId,
    token: str,
    now: datetime,
    worker: str | None = None,
    *,
    is_alone: bool = False,
) -> ClaimedTarget | None:
    """Make a pending target running, held by `token`; return None if it could not be claimed.

    This is one statement on PostgreSQL. A second statement writes the start if the start counts in the rate of the
    group. `is_alone` means that the statement is not in a transaction. Then, on PostgreSQL, a target is not claimed if
    its start counts, or if another transaction holds it. If the answer is lost, a call with the same token returns the
    same result.
    """
    mine = _mine(job, token, now, worker)
    if not dialect_of(connection).joins_writes:
        found = connection.execute(_CLAIM_OF, {"of": job.uid}).first()
        if found is None:
            return None
        begun = max(now, found.granted_at or now)
        begun = begun if found.started_at is None else max(begun, found.started_at + timedelta(microseconds=1))
        if found.token == token:
            begun = found.started_at
        mine |= {"begun": begun, "deadline": now + timedelta(seconds=found.timeout)}
        if not connection.execute(_CLAIM, mine).rowcount:
            return None
    elif (found := connection.execute(_CLAIM_UNCOUNTED if is_alone else _CLAIM_RETURNING, mine).first()) is None:
        return None
    else:
        begun = found.started_at
    run_status, run_attempt = found[-2:]
    run = None if run_status is None else (RunStatus(run_status), run_attempt)
    target = Target(*found[: len(TARGET_COLUMNS)])
    if target.is_rated:
        count_starts(connection, [(target, begun)])
    return ClaimedTarget(target, found.payload, begun, run)


def _mine(job: TargetJobId, token: str, now: datetime, worker: str | None) -> dict[str, Any]:
    return {"of": job.uid, "delivered": job.delivery, "by": token, "worker_name": worker, "begun": now}


class Unclaimed(NamedTuple):
    """A target that could not be claimed."""

    asks: str | None
    """The group to ask for a new place, if the target lost its place; None for another reason."""
    is_ready: bool
    """Whether a claim in a transaction can succeed: the start counts in a rate, or another transaction held the row."""


def find_unclaimed(connection: Connection, job: TargetJobId) -> Unclaimed | None:
    """Return why a target could not be claimed; None if there is no such target."""
    is_ready = targets.c.status == constant(TargetStatus.PENDING), targets.c.delivery == job.delivery
    group = sa.case((sa.and_(*is_ready, targets.c.granted_at.is_(None)), targets.c.limit_group), else_=None)
    has_place = sa.and_(*is_ready, targets.c.limit_group.is_(None) | targets.c.granted_at.is_not(None))
    row = connection.execute(sa.select(group, has_place).where(targets.c.uid == job.uid)).first()
    return None if row is None else Unclaimed(*row)


def finish(
    connection: Connection, target: Target, token: str, end: TargetEnd, now: datetime, *, is_alone: bool = False
) -> tuple[bool, list[Target]] | None:
    """Record how an attempt ended, unless `token` does not hold the target any more.

    Returns whether the target may have been the last of its run, and the target that takes its place under
    `max_parallel`. The target was not the last if other targets wait for a process. Whether other targets run can be
    read only after the commit. This is one statement on PostgreSQL, unless a place is filled, or the start of a blocked
    target is removed from a rate. `is_alone` means that the statement is not in a transaction. Then None means that
    nothing was written, for example because another transaction holds the target.
    """
    new = {f"new_{name}": value for name, value in _end_values(end, now).items()}
    given = {"of": target.uid, "by": token, **new}
    if not dialect_of(connection).joins_writes or target.max_parallel is not None:
        is_done = connection.execute(_FINISH, given).rowcount > 0
        _give_back(connection, target, token, end)
        return _after(connection, target, now, has_place=is_done)
    statement = _FINISH_ALONE if is_alone else _FINISH_RETURNING
    others_wait = connection.execute(statement, {**given, "run": target.run_uid}).scalar_one_or_none()
    if is_alone and others_wait is None:
        return None
    _give_back(connection, target, token, end)
    return not others_wait, []


def _give_back(connection: Connection, target: Target, token: str, end: TargetEnd) -> None:
    """Remove the recorded start of a target that is blocked now, so that it counts in no rate."""
    if end.status is TargetStatus.BLOCKED and target.is_rated:
        is_mine = targets.c.uid == target.uid, targets.c.token == token, targets.c.status == end.status.value
        begun = connection.execute(sa.select(targets.c.started_at).where(*is_mine)).scalars()
        take_back(connection, [(target, at) for at in begun])


def lose(connection: Connection, target: Target, end: TargetEnd, now: datetime) -> tuple[bool, list[Target]]:
    """Record the end of an attempt whose process died. Returns the same values as `finish`."""
    gone = sa.update(targets).where(targets.c.uid == target.uid, targets.c.delivery == target.delivery, _IS_RUNNING)
    is_done = connection.execute(gone.values(**_end_values(end, now))).rowcount > 0
    return _after(connection, target, now, has_place=is_done)


def _after(connection: Connection, target: Target, now: datetime, *, has_place: bool) -> tuple[bool, list[Target]]:
    is_limited = target.max_parallel is not None and has_place
    following = take_waiting(connection, target.run_uid, 1, now) if is_limited else []
    if following:
        return False, following
    return connection.execute(_NOT_BEGUN, {"run": target.run_uid}).first() is None, []


def find_running(connection: Connection, job: TargetJobId, token: str | None = None) -> Target | None:
    """Return the target of `job` if `job` is its present job and a process handles it, else None.

    With a `token`, return it only if that token holds it.
    """
    found = sa.select(*TARGET_COLUMNS).where(targets.c.uid == job.uid, targets.c.delivery == job.delivery, _IS_RUNNING)
    row = connection.execute(found if token is None else found.where(targets.c.token == token)).first()
    return None if row is None else Target(*row)


def is_held(connection: Connection, uid: str, token: str) -> bool:
    """Return whether a token holds a running target whose run has not ended."""
    held = sa.exists().where(targets.c.uid == uid, is_held_by(targets, token), ~_has_ended_in_vain())
    return connection.execute(sa.select(held)).scalar_one()


def _end_values(end: TargetEnd, now: datetime) -> dict[str, Any]:
    """Return the values that an end of an attempt writes."""
    return {
        "status": end.status.value,
        "error": end.error,
        "retry_at": end.retry_at,
        "blocked_at": end.blocked_at,
        "ended_at": now if end.has_ended else None,
    }


@dataclass(frozen=True, slots=True)
class EndStep:
    """One step of a repair, which ends some targets."""

    decide: Callable[[Connection, Target], TargetEnd]
    """Decides about a target: another attempt, or its end."""
    now: datetime
    """The present time."""
    limit: int
    """The maximum number of targets of one transaction."""


def end_silent(connection: Connection, before: datetime, step: EndStep) -> list[str]:
    """End the attempts of running targets whose deadline was before an instant; returns the uids of their runs."""
    return _end_free(connection, (_IS_RUNNING, targets.c.deadline_at < before), step)


def end_blocked(connection: Connection, before: datetime, step: EndStep) -> list[str]:
    """End targets that have been blocked since an instant or longer; returns the uids of their runs."""
    return _end_free(connection, (_is_open(TargetStatus.BLOCKED), targets.c.blocked_at <= before), step)


def _end_free(connection: Connection, found: Sequence[sa.ColumnElement[bool]], step: EndStep) -> list[str]:
    free = sa.select(*TARGET_COLUMNS).where(*found).order_by(targets.c.uid).limit(step.limit)
    rows = [Target(*row) for row in connection.execute(free.with_for_update(skip_locked=True))]
    for target in rows:
        mine = sa.update(targets).where(targets.c.uid == target.uid)
        connection.execute(mine.values(**_end_values(step.decide(connection, target), step.now)))
    return [target.run_uid for target in rows]


def give_up(connection: Connection, now: datetime, run_uids: Collection[str] | None = None) -> int:
    """Cancel targets that no process handles and whose run ended without success; return their number.

    `run_uids` restricts this to some runs; None means all runs.
    """
    not_begun = IS_OPEN_TARGET & (targets.c.status != constant(TargetStatus.RUNNING))
    free = sa.select(targets.c.uid).where(not_begun, _has_ended_in_vain()).order_by(targets.c.uid)
    if run_uids is not None:
        free = free.where(dialect_of(connection).one_of(targets.c.run_uid, sorted(run_uids)))
    uids = list(connection.execute(free.with_for_update(skip_locked=True)).scalars())
    if uids:
        error = sa.func.coalesce(targets.c.error, GIVEN_UP)
        values = {"status": TargetStatus.CANCELLED.value, "error": error, "ended_at": now, "retry_at": None}
        connection.execute(
            sa.update(targets).where(dialect_of(connection).one_of(targets.c.uid, uids)).values(**values)
        )
    return len(uids)


def rehearse(connection: Connection, uid: str, now: datetime) -> None:
    """Execute the statements of a claim and an end for a `uid` without a target, so that they are compiled."""
    claim(connection, TargetJobId(uid), uid, now)
    if not dialect_of(connection).joins_writes:
        connection.execute(_CLAIM, {**_mine(TargetJobId(uid), uid, now, None), "deadline": now})
    target = Target(uid, uid, None, "", "", 1, None, None, 1, 1, None, None, 1)
    finish(
        connection, target, uid, TargetEnd(TargetStatus.SUCCEEDED), now, is_alone=dialect_of(connection).joins_writes
    )
