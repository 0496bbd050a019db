"""External runs in SQL: claimed, held and kept alive by workers of any language.

A claim is one conditional update under a row lock. Every function works inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.model import Run, RunStatus, Schedule
from rqsched.store.changes import one_of
from rqsched.store.rows import RUN_COLUMNS, SELECT_RUNS, SELECT_SCHEDULES, to_run, to_schedule
from rqsched.store.tables import IS_UNFINISHED, constant, runs, schedules

_IS_WAITING = IS_UNFINISHED & (runs.c.status == constant(RunStatus.PENDING)) & (runs.c.executor == "external")
_IS_ACTIVE = IS_UNFINISHED & (runs.c.status == constant(RunStatus.RUNNING)) & (runs.c.executor == "external")


def lock_waiting(
    connection: Connection, queues: Sequence[str], *, namespace: str, default_queue: str, limit: int
) -> list[str]:
    """Lock waiting runs of these queues, skipping those that others hold.

    The queues are tried in the order given; on each the most important come first, then the oldest. A run without a
    queue waits on `default_queue`.
    """
    queue = sa.func.coalesce(runs.c.queue, default_queue)
    order = sa.case({name: place for place, name in enumerate(dict.fromkeys(queues))}, value=queue)
    statement = (
        sa.select(runs.c.uid)
        .where(_IS_WAITING, queue.in_(list(queues)), _is_in(namespace))
        .order_by(order, runs.c.priority.desc(), runs.c.queued_at, runs.c.uid)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True, of=runs)
    )
    return list(connection.execute(statement).scalars())


def start(connection: Connection, uids: Sequence[str], values: Mapping[str, Any]) -> list[tuple[Run, Schedule]]:
    """Write the start of locked runs; returns them in the order of the uids, each with its schedule."""
    if not uids:
        return []
    update = sa.update(runs).where(one_of(runs.c.uid, uids, connection)).values(**values).returning(*RUN_COLUMNS)
    started = {run.uid: run for run in (to_run(row) for row in connection.execute(update))}
    return _with_schedules(connection, [started[uid] for uid in uids])


def held_by(connection: Connection, token: str) -> list[tuple[Run, Schedule]]:
    """Return the active runs that a claim with this token started, each with its schedule."""
    statement = SELECT_RUNS.where(_IS_ACTIVE, runs.c.token == token).order_by(runs.c.uid)
    return _with_schedules(connection, [to_run(row) for row in connection.execute(statement)])


def _with_schedules(connection: Connection, found: Sequence[Run]) -> list[tuple[Run, Schedule]]:
    uids = sorted({run.schedule_uid for run in found})
    statement = SELECT_SCHEDULES.where(one_of(schedules.c.uid, uids, connection))
    known = {schedule.uid: schedule for schedule in (to_schedule(row) for row in connection.execute(statement))}
    return [(run, known[run.schedule_uid]) for run in found]


def record_heartbeats(
    connection: Connection, uids: Sequence[str], *, worker_id: str, namespace: str, now: datetime, held_until: datetime
) -> set[str]:
    """Record that a worker executes these runs until then; returns the uids of those that are still its own.

    What was claimed without the name of a worker belongs to whoever names it.
    """
    is_named = one_of(runs.c.uid, uids, connection)
    is_mine = (runs.c.worker == worker_id) | runs.c.worker.is_(None)
    mine = sa.select(runs.c.uid).where(is_named, _IS_ACTIVE, is_mine, _is_in(namespace))
    # In the order in which all runs are locked: two heartbeats, or one and a fire that cancels, never deadlock.
    locked = mine.order_by(runs.c.uid).with_for_update(key_share=True, of=runs)
    alive = list(connection.execute(locked).scalars())
    values = {"heartbeat_at": now, "held_until": held_until}
    connection.execute(sa.update(runs).where(one_of(runs.c.uid, alive, connection)).values(**values))
    return set(alive)


def _is_in(namespace: str) -> sa.ColumnElement[bool]:
    is_parent = schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
    return sa.select(schedules.c.uid).where(*is_parent).exists()
