"""External runs: workers of any language claim them, show that they live, and say how they ended.

A claim is one conditional update under a row lock; its end goes through the one `settle()` like every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from . import store
from .errors import RunNotFoundError
from .rows import RUN_COLUMNS, to_run
from .runs import settle_run
from .runtime import Runtime
from .settlement import Verdict
from .state import Change, Run, RunStatus, Schedule
from .tables import IS_UNFINISHED, constant, runs, schedules


@dataclass(frozen=True, slots=True)
class Claimed:
    """One run an external worker took, with the schedule that started it."""

    run: Run
    schedule: Schedule


def claim(runtime: Runtime, queues: Sequence[str], worker_id: str, *, namespace: str, count: int = 1) -> list[Claimed]:
    """Hand up to `count` waiting external runs of these queues to a worker, the oldest first; each to one worker."""

    def work(connection: Connection) -> list[Claimed]:
        now = runtime.now()
        found = [to_run(row) for row in connection.execute(_waiting(runtime, queues, namespace, count))]
        facts = {"token": worker_id_token(worker_id), "worker": worker_id, "started_at": now, "heartbeat_at": now}
        for run in found:
            connection.execute(sa.update(runs).where(runs.c.uid == run.uid).values(status="running", **facts))
        return [_claimed(connection, run.uid) for run in found]

    return runtime.database.transact(work)


def _waiting(runtime: Runtime, queues: Sequence[str], namespace: str, count: int) -> sa.Select[tuple[object, ...]]:
    name = sa.func.coalesce(runs.c.queue, runtime.settings.default_queue)
    mine = sa.select(schedules.c.uid).where(schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace)
    return (
        sa.select(*RUN_COLUMNS)
        .where(IS_UNFINISHED, runs.c.status == constant(RunStatus.PENDING), runs.c.executor == "external")
        .where(name.in_(list(queues)), mine.exists())
        .order_by(runs.c.queued_at, runs.c.uid)
        .limit(count)
        .with_for_update(key_share=True, skip_locked=True, of=runs)
    )


def _claimed(connection: Connection, uid: str) -> Claimed:
    run = store.find_run(connection, uid)
    schedule = None if run is None else store.find(connection, run.schedule_uid)
    if run is None or schedule is None:
        raise RunNotFoundError(uid)
    return Claimed(run, schedule)


def worker_id_token(worker_id: str) -> str:
    """Cut a worker's id to what a token holds."""
    return worker_id[:26]


def find(runtime: Runtime, uid: str, namespace: str) -> Claimed:
    """Read a run of a namespace; raises RunNotFoundError."""
    found = runtime.database.read(lambda connection: _claimed(connection, uid))
    if found.schedule.namespace != namespace:
        raise RunNotFoundError(uid)
    return found


def finish(runtime: Runtime, run: Run, verdict: Verdict) -> Change | None:
    """End the attempt a worker holds; None when it is not running (any more)."""

    def is_same(current: Run) -> bool:
        return current.status is RunStatus.RUNNING and current.attempt == run.attempt and current.token == run.token

    return settle_run(runtime, run.uid, verdict, fence=is_same)


def heartbeat(runtime: Runtime, worker_id: str, uids: Sequence[str], *, namespace: str) -> tuple[list[str], list[str]]:
    """Note that a worker executes these runs; returns those that still are its, and those it should stop."""

    def work(connection: Connection) -> set[str]:
        mine = sa.select(schedules.c.uid).where(
            schedules.c.uid == runs.c.schedule_uid, schedules.c.namespace == namespace
        )
        statement = (
            sa.update(runs)
            .where(store.one_of(runs.c.uid, uids, connection), runs.c.status == "running", mine.exists())
            .where(runs.c.worker == worker_id, runs.c.executor == "external")
            .values(heartbeat_at=runtime.now())
            .returning(runs.c.uid)
        )
        return set(connection.execute(statement).scalars())

    alive = runtime.database.transact(work) if uids else set()
    return [uid for uid in uids if uid in alive], [uid for uid in uids if uid not in alive]
