"""External runs: workers of any language claim them, show that they live, and say how they ended.

A claim is one conditional update under a row lock; its end is settled like that of every other run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as counter

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.chain.execution import settle_run
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import new_uid
from rqsched.core.model import Change, Run, RunStatus, Schedule
from rqsched.core.settle import AttemptResult
from rqsched.errors import RunNotFoundError
from rqsched.store import changes
from rqsched.store.rows import RUN_COLUMNS, SELECT_RUNS, SELECT_SCHEDULES, to_run, to_schedule
from rqsched.store.tables import IS_UNFINISHED, constant, runs, schedules

_IS_WAITING = IS_UNFINISHED & (runs.c.status == constant(RunStatus.PENDING)) & (runs.c.executor == "external")
_IS_ACTIVE = IS_UNFINISHED & (runs.c.status == constant(RunStatus.RUNNING)) & (runs.c.executor == "external")


@dataclass(frozen=True, slots=True)
class Claimed:
    """One run for an external worker, with the schedule that started it."""

    run: Run
    """The run as it is after the claim."""
    schedule: Schedule
    """The schedule that started it."""


def claim(runtime: Runtime, queues: Sequence[str], worker_id: str, *, namespace: str, count: int = 1) -> list[Claimed]:
    """Hand up to `count` waiting external runs of these queues to a worker; each attempt goes to one worker only.

    The most important come first, then the oldest. A claim whose answer the database lost is found again.
    """
    token = new_uid(runtime.now())
    tries = counter(1)

    def work(connection: Connection) -> list[Claimed]:
        is_again = next(tries) > 1
        if is_again and (held := _held(connection, token)):
            return held
        uids = list(connection.execute(_waiting(runtime, queues, namespace, count)).scalars())
        return _take(connection, uids, _start(runtime, worker_id, token)) if uids else []

    return runtime.database.transact(work)


def _start(runtime: Runtime, worker_id: str, token: str) -> dict[str, object]:
    now = runtime.now()
    return {"status": "running", "token": token, "worker": worker_id, "started_at": now, "heartbeat_at": now}


def _waiting(runtime: Runtime, queues: Sequence[str], namespace: str, count: int) -> sa.Select[str]:
    name = sa.func.coalesce(runs.c.queue, runtime.settings.default_queue)
    return (
        sa.select(runs.c.uid)
        .where(_IS_WAITING, name.in_(list(queues)), _is_in(namespace))
        .order_by(runs.c.priority.desc(), runs.c.queued_at, runs.c.uid)
        .limit(count)
        .with_for_update(key_share=True, skip_locked=True, of=runs)
    )


def _is_in(namespace: str) -> sa.ColumnElement[bool]:
    return (
        sa.select(schedules.c.uid)
        .where(schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace)
        .exists()
    )


def _take(connection: Connection, uids: Sequence[str], start: dict[str, object]) -> list[Claimed]:
    """Start locked runs; returns them in the order of the uids."""
    update = sa.update(runs).where(changes.one_of(runs.c.uid, uids, connection)).values(**start).returning(*RUN_COLUMNS)
    started = {run.uid: run for run in (to_run(row) for row in connection.execute(update))}
    return _with_schedules(connection, [started[uid] for uid in uids])


def _held(connection: Connection, token: str) -> list[Claimed]:
    statement = SELECT_RUNS.where(_IS_ACTIVE, runs.c.token == token).order_by(runs.c.uid)
    return _with_schedules(connection, [to_run(row) for row in connection.execute(statement)])


def _with_schedules(connection: Connection, found: Sequence[Run]) -> list[Claimed]:
    uids = sorted({run.schedule_uid for run in found})
    statement = SELECT_SCHEDULES.where(changes.one_of(schedules.c.uid, uids, connection))
    known = {schedule.uid: schedule for schedule in (to_schedule(row) for row in connection.execute(statement))}
    return [Claimed(run, known[run.schedule_uid]) for run in found]


def find(runtime: Runtime, uid: str, namespace: str) -> Claimed:
    """Read a run of a namespace, also one that is not external; raises RunNotFoundError."""

    def work(connection: Connection) -> Claimed:
        run = changes.find_run(connection, uid)
        schedule = None if run is None else changes.find(connection, run.schedule_uid)
        if run is None or schedule is None or schedule.namespace != namespace:
            raise RunNotFoundError(uid)
        return Claimed(run, schedule)

    return runtime.database.read(work)


def finish(runtime: Runtime, run: Run, attempt_result: AttemptResult) -> Change | None:
    """End the attempt that a worker holds according to `run` as it was read; None when it no longer does."""

    def is_same(current: Run) -> bool:
        is_held = current.executor == "external" and current.status is RunStatus.RUNNING
        return is_held and current.attempt == run.attempt and current.token == run.token

    return settle_run(runtime, run.uid, attempt_result, fence=is_same)


def heartbeat(runtime: Runtime, worker_id: str, uids: Sequence[str], *, namespace: str) -> tuple[list[str], list[str]]:
    """Note that a worker executes these runs; returns those that still are its, and those it should stop."""
    distinct = list(dict.fromkeys(uids))

    def work(connection: Connection) -> set[str]:
        is_named = changes.one_of(runs.c.uid, distinct, connection)
        mine = sa.select(runs.c.uid).where(is_named, _IS_ACTIVE, runs.c.worker == worker_id, _is_in(namespace))
        # In the order everyone locks runs in: two heartbeats, or one and a fire that cancels, never deadlock.
        locked = mine.order_by(runs.c.uid).with_for_update(key_share=True, of=runs)
        alive = list(connection.execute(locked).scalars())
        beat = sa.update(runs).where(changes.one_of(runs.c.uid, alive, connection))
        connection.execute(beat.values(heartbeat_at=runtime.now()))
        return set(alive)

    alive = runtime.database.transact(work) if distinct else set()
    return [uid for uid in distinct if uid in alive], [uid for uid in distinct if uid not in alive]
