"""Targets of fan-outs, one row each, counted by query. This module knows neither Redis nor machines.

Every function works inside the caller's transaction. A target is handled once because `claim` is one conditional
UPDATE; it is dispatched once because its uid is computed from its run and its id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.ids import BatchJobId, derived_uid
from rqsched.core.model import RunStatus, TargetStatus
from rqsched.store.bulk import insert_rows
from rqsched.store.changes import one_of
from rqsched.store.tables import HAS_OPEN_TARGETS, IS_OPEN_TARGET, constant, runs, schedules, targets

LOST = "its process vanished: it neither ended nor ran out of time"
"""The error of a target whose deadline passed without a result."""
GIVEN_UP = "its run ended before it began"
"""The error of a target that no process began."""
_WITHOUT_SUCCESS = [
    status.value for status in (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED, RunStatus.LOST)
]


@dataclass(frozen=True, slots=True)
class Batch:
    """What the targets of one run have in common."""

    run_uid: str
    """The uid of the run, or a new one for a fan-out started by hand."""
    workflow: str
    """The workflow whose `each` handles a target."""
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


@dataclass(frozen=True, slots=True)
class RunName:
    """What people know the run of targets by."""

    namespace: str
    """The namespace of its schedule."""
    schedule_id: str
    """Its schedule."""
    occurrence_at: datetime
    """Its nominal time."""
    attempt: int
    """Its current attempt."""


@dataclass(frozen=True, slots=True)
class Target:
    """One target, as its job needs it."""

    uid: str
    """Computed from the run and the target's id."""
    run_uid: str
    """The run that named it."""
    target_id: str
    """The id that the resolver named."""
    workflow: str
    """The workflow whose `each` handles it."""
    timeout: int
    """Seconds it may take."""
    queue: str | None
    """The queue of its job; None for the default one."""
    connection: str | None
    """The named Redis of that queue; None for the main one."""


_TARGET = [targets.c[name] for name in Target.__dataclass_fields__]


def record(connection: Connection, batch: Batch, target_ids: Sequence[str], first: int, now: datetime) -> None:
    """Insert targets as waiting, numbered from `first` on; those that the run has already are left unchanged."""
    shared = {
        "run_uid": batch.run_uid,
        "schedule_uid": batch.schedule_uid,
        "workflow": batch.workflow,
        "queue": batch.queue,
        "connection": batch.connection,
        "timeout": batch.timeout,
        "status": TargetStatus.WAITING.value,
        "created_at": now,
    }
    rows = [
        {"uid": derived_uid(batch.at, batch.run_uid, target_id), "number": first + index, "target_id": target_id}
        for index, target_id in enumerate(target_ids)
    ]
    insert_rows(connection, targets, [shared | row for row in rows], or_ignore=True)


def wait_again(connection: Connection, run_uids: Sequence[str]) -> None:
    """Let the targets of runs that are retried on request wait again which have not been handled with success."""
    connection.execute(
        sa.update(targets)
        .where(one_of(targets.c.run_uid, run_uids, connection))
        .where(targets.c.status.in_(["failed", "lost", "cancelled"]))
        .values(status="waiting", token=None, error=None, queued_at=None, deadline_at=None, ended_at=None)
    )


def last_number(connection: Connection, run_uid: str) -> int:
    """Return the number of a run's last target; 0 when it has none."""
    statement = sa.select(sa.func.max(targets.c.number)).where(targets.c.run_uid == run_uid)
    return connection.execute(statement).scalar_one() or 0


def first_waiting(connection: Connection, run_uid: str) -> int | None:
    """Return the number of the first target that is not on its queue yet; None when all are."""
    first: int | None = connection.execute(
        sa.select(sa.func.min(targets.c.number)).where(*_waits(run_uid))
    ).scalar_one()
    return first


def take_chunk(connection: Connection, job: BatchJobId, limit: int, now: datetime) -> tuple[list[Target], int | None]:
    """Make the next targets of a run pending; returns them and the number of the target after them.

    Returns none when `job` does not name the first waiting target: another delivery of the job was first.
    """
    statement = sa.select(*_TARGET, targets.c.number).where(*_waits(job.run_uid), ~_has_ended_in_vain())
    ordered = statement.order_by(targets.c.number, targets.c.uid).limit(limit + 1).with_for_update()
    rows = connection.execute(ordered).all()
    if not rows or rows[0].number != job.number:
        return [], None
    chunk = [Target(*row[:-1]) for row in rows[:limit]]
    mine = one_of(targets.c.uid, [target.uid for target in chunk], connection)
    connection.execute(sa.update(targets).where(mine).values(status=TargetStatus.PENDING.value, queued_at=now))
    return chunk, rows[limit].number if len(rows) > limit else None


def names_of(connection: Connection, run_uids: Collection[str]) -> dict[str, RunName]:
    """Return what runs are known by, by their uids; fan-outs that were started by hand have no run."""
    columns = schedules.c.namespace, schedules.c.schedule_id, runs.c.occurrence_at, runs.c.attempt
    statement = sa.select(runs.c.uid, *columns).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    found = statement.where(one_of(runs.c.uid, sorted(set(run_uids)), connection))
    return {row[0]: RunName(*row[1:]) for row in connection.execute(found)}


def _waits(run_uid: str) -> tuple[sa.ColumnElement[bool], ...]:
    return targets.c.run_uid == run_uid, targets.c.status == constant(TargetStatus.WAITING)


def claim(connection: Connection, uid: str, token: str, now: datetime) -> Target | None:
    """Make a pending target running, held by `token`; None when it could not be claimed."""
    found = connection.execute(sa.select(*_TARGET).where(targets.c.uid == uid)).first()
    if found is None:
        return None
    target = Target(*found)
    # A commit whose answer was lost is repeated: then the row holds this very token.
    is_mine = (targets.c.status == TargetStatus.RUNNING.value) & (targets.c.token == token)
    values = {"status": TargetStatus.RUNNING.value, "token": token}
    deadline = now + timedelta(seconds=target.timeout)
    is_free = (targets.c.status == TargetStatus.PENDING.value) | is_mine
    claimed = sa.update(targets).where(targets.c.uid == uid, is_free).values(**values, deadline_at=deadline)
    return target if connection.execute(claimed).rowcount else None


def exists(connection: Connection, uid: str) -> bool:
    """Return whether there is such a target."""
    return connection.execute(sa.select(sa.exists().where(targets.c.uid == uid))).scalar_one()


def exists_of(connection: Connection, run_uid: str) -> bool:
    """Return whether a run has targets, or is known and has none yet."""
    has_targets = sa.exists().where(targets.c.run_uid == run_uid)
    is_known = sa.exists().where(runs.c.uid == run_uid)
    return connection.execute(sa.select(has_targets | is_known)).scalar_one()


def finish(
    connection: Connection, target: Target, token: str, status: TargetStatus, *, now: datetime, error: str | None = None
) -> bool:
    """Record how a target ended, unless `token` does not hold it any more; returns whether it may be the last one.

    It is not while others wait for a process. Those that run at this moment are seen after the commit only.
    """
    running = targets.c.status == TargetStatus.RUNNING.value
    statement = sa.update(targets).where(targets.c.uid == target.uid, targets.c.token == token, running)
    connection.execute(statement.values(status=status.value, error=error, ended_at=now))
    not_begun = IS_OPEN_TARGET & (targets.c.status != constant(TargetStatus.RUNNING))
    found = sa.select(targets.c.uid).where(targets.c.run_uid == target.run_uid, not_begun).limit(1)
    return connection.execute(found).first() is None


def has_open(connection: Connection, run_uid: str) -> bool:
    """Tell whether a target of a run has not ended."""
    found = sa.select(targets.c.uid).where(targets.c.run_uid == run_uid, IS_OPEN_TARGET).limit(1)
    return connection.execute(found).first() is not None


def first_error(connection: Connection, run_uid: str) -> str | None:
    """Return the error of the first target of a run that failed; None when none did."""
    failed = targets.c.run_uid == run_uid, targets.c.status == TargetStatus.FAILED.value
    found = sa.select(targets.c.error).where(*failed).order_by(targets.c.number).limit(1)
    error: str | None = connection.execute(found).scalar_one_or_none()
    return error


def count(connection: Connection, run_uid: str) -> dict[str, int]:
    """Count a run's targets by status."""
    statement = sa.select(targets.c.status, sa.func.count()).where(targets.c.run_uid == run_uid)
    rows = connection.execute(statement.group_by(targets.c.status)).all()
    return {row[0]: row[1] for row in rows}


def page(
    connection: Connection, run_uid: str, *, status: str | None = None, after: int = 0, limit: int = 100
) -> list[dict[str, Any]]:
    """Return a page of a run's targets in the order they were named, those after a number."""
    names = "number", "target_id", "status", "error", "ended_at"
    statement = sa.select(*(targets.c[name] for name in names))
    found = statement.where(targets.c.run_uid == run_uid, targets.c.number > after)
    if status is not None:
        found = found.where(targets.c.status == status)
    ordered = found.order_by(targets.c.number, targets.c.uid).limit(limit)
    return [dict(row) for row in connection.execute(ordered).mappings()]


def pending(connection: Connection, before: datetime, after: str | None, limit: int) -> tuple[list[Target], str | None]:
    """Return a page of targets that should be on their queue since `before`, and the next cursor."""
    status = IS_OPEN_TARGET & (targets.c.status == constant(TargetStatus.PENDING))
    statement = sa.select(*_TARGET).where(status, targets.c.queued_at <= before)
    if after is not None:
        statement = statement.where(targets.c.uid > after)
    rows = [Target(*row) for row in connection.execute(statement.order_by(targets.c.uid).limit(limit))]
    return rows, rows[-1].uid if len(rows) == limit else None


def unfinished_batches(connection: Connection, before: datetime) -> list[tuple[BatchJobId, Target]]:
    """Return the fan-outs with targets left to dispatch: the job that continues each, and its first waiting target.

    Fan-outs whose workflow has not returned are left out: the next attempt may name further targets first.
    """
    is_by_hand = runs.c.uid.is_(None) & targets.c.schedule_uid.is_(None) & (targets.c.created_at <= before)
    is_over = (runs.c.status == RunStatus.SUCCEEDED.value) | HAS_OPEN_TARGETS | is_by_hand
    joined = targets.outerjoin(runs, runs.c.uid == targets.c.run_uid)
    first = sa.select(targets.c.run_uid, sa.func.min(targets.c.number).label("number")).select_from(joined)
    named = first.where(_is_waiting(), is_over).group_by(targets.c.run_uid).subquery()
    same = (targets.c.run_uid == named.c.run_uid) & (targets.c.number == named.c.number)
    statement = sa.select(named.c.run_uid, named.c.number, *_TARGET).select_from(named.join(targets, same))
    return [(BatchJobId(row[0], row[1]), Target(*row[2:])) for row in connection.execute(statement)]


def lose_silent(connection: Connection, before: datetime, now: datetime) -> int:
    """Fail running targets whose deadline was before an instant; returns how many."""
    return _fail_free(connection, (_is_running(), targets.c.deadline_at < before), LOST, now)


def give_up(connection: Connection, now: datetime) -> int:
    """Fail targets that have not begun and whose run ended without success; returns how many."""
    not_begun = IS_OPEN_TARGET & (targets.c.status != constant(TargetStatus.RUNNING))
    return _fail_free(connection, (not_begun, _has_ended_in_vain()), GIVEN_UP, now)


def _fail_free(connection: Connection, found: Sequence[sa.ColumnElement[bool]], error: str, now: datetime) -> int:
    """Fail the targets found, but for those that another transaction holds: the next pass finds them."""
    free = sa.select(targets.c.uid).where(*found).order_by(targets.c.uid)
    uids = list(connection.execute(free.with_for_update(skip_locked=True)).scalars())
    if uids:
        failed = sa.update(targets).where(one_of(targets.c.uid, uids, connection))
        connection.execute(failed.values(**_failed(error, now)))
    return len(uids)


def lose(connection: Connection, uid: str, error: str, now: datetime, token: str | None = None) -> None:
    """Fail a running target, whichever process holds it; with a `token`, only if that one holds it."""
    is_held = [] if token is None else [targets.c.token == token]
    running = sa.update(targets).where(targets.c.uid == uid, _is_running(), *is_held)
    connection.execute(running.values(**_failed(error, now)))


def _has_ended_in_vain() -> sa.ColumnElement[bool]:
    """The run of a target was cancelled, terminated or lost, or its workflow failed."""
    return sa.exists().where(runs.c.uid == targets.c.run_uid, runs.c.status.in_(_WITHOUT_SUCCESS))


def _is_waiting() -> sa.ColumnElement[bool]:
    return IS_OPEN_TARGET & (targets.c.status == constant(TargetStatus.WAITING))


def _is_running() -> sa.ColumnElement[bool]:
    return IS_OPEN_TARGET & (targets.c.status == constant(TargetStatus.RUNNING))


def _failed(error: str, now: datetime) -> dict[str, Any]:
    return {"status": TargetStatus.FAILED.value, "error": error, "ended_at": now}
