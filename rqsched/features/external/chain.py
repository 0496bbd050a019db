"""External runs: workers in any language claim them, send heartbeats, and report their ends.

A claim is one conditional update under a row lock. The end is settled like the end of every other run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count as counter
from typing import Any

from rqsched.errors import RunNotFoundError
from rqsched.features.limits import chain as limits
from rqsched.features.notifications.outbox import Outbox
from rqsched.kernel.chain.run_log import log_start
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.settle_decision import AttemptResult
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.database import Connection


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """One run for an external worker, with the schedule that started it."""

    run: Run
    """The run after the claim."""
    schedule: Schedule
    """The schedule that started it."""


def claim(
    runtime: Runtime,
    queues: Sequence[str],
    worker_id: str | None,
    *,
    namespace: str,
    count: int = 1,
    held_for: timedelta | None = None,
) -> list[ClaimedRun]:
    """Claim up to `count` waiting external runs of these queues for a worker. Each attempt goes to only one worker.

    The queues are read in the given order. On each queue, runs with a higher priority come first, then older runs. The
    worker must send its first heartbeat within `held_for` (None: the setting `ojs_visibility`). If the database's
    answer to a claim is lost, the next try finds the claim. While everything is frozen, no run is claimed.
    """
    if runtime.freezes.look(with_sql=False):
        return []
    token = new_uid(runtime.now())
    tries = counter(1)
    owed: list[str] = []
    asking: list[tuple[str, str]] = []

    def work(connection: Connection) -> list[ClaimedRun]:
        is_again = next(tries) > 1
        found = claims.external_held_by(connection, token) if is_again else []
        if not found:
            default = runtime.settings.default_queue
            now = runtime.now()
            waiting = claims.lock_waiting_external(
                connection, queues, namespace=namespace, default_queue=default, now=now, limit=count
            )
            uids = [uid for uid, group in waiting if group is None]
            asking[:] = [(uid, group) for uid, group in waiting if group is not None]
            start: dict[str, Any] = {"token": token, "worker": worker_id, "started_at": now, "heartbeat_at": now}
            start["held_until"] = _held_until(runtime, now, held_for)
            found = claims.start_external(connection, uids, {"status": RunStatus.RUNNING.value} | start)
            involved = runtime.features.involved([schedule for _, schedule in found], [run for run, _ in found])
            owed[:] = [uid for feature in involved for uid in feature.claimed(connection, found, at=now)]
        return [ClaimedRun(run, schedule) for run, schedule in found]

    claimed = runtime.database.transact(work)
    for one in claimed:
        log_start(one.schedule, one.run)
    Outbox(runtime).dispatch(owed, runtime.now())
    # A run under a limit has lost its place if no worker claimed it in time. It gets a new place now, or waits in line.
    got = [limits.ask(runtime, uid, group) for uid, group in asking]
    if any(got):
        rest = count - len(claimed)
        claimed += claim(runtime, queues, worker_id, namespace=namespace, count=rest, held_for=held_for)
    return claimed


def _held_until(runtime: Runtime, now: datetime, held_for: timedelta | None) -> datetime:
    return now + (runtime.settings.ojs_visibility if held_for is None else held_for)


def find(runtime: Runtime, uid: str, namespace: str) -> ClaimedRun:
    """Read a run of a namespace, external or not; raises RunNotFoundError."""
    found = runtime.database.read(lambda connection: changes.find_with_schedule(connection, uid))
    if found is None or found[0].namespace != namespace:
        raise RunNotFoundError(uid)
    schedule, run = found
    return ClaimedRun(run, schedule)


def finish(runtime: Runtime, run: Run, attempt_result: AttemptResult) -> Change | None:
    """End the attempt of a claimed `run`. Return None if the worker has lost the claim since `run` was read."""

    def is_same(current: Run) -> bool:
        is_that_attempt = current.executor == "external" and current.attempt == run.attempt
        return is_that_attempt and current.is_held_by(run.token)

    return settle_run(runtime, run.uid, attempt_result, fence=is_same)


def heartbeat(
    runtime: Runtime, worker_id: str, uids: Sequence[str], *, namespace: str, held_for: timedelta | None = None
) -> tuple[list[str], list[str]]:
    """Record a heartbeat of a worker for its runs. Return the runs that it still holds, and the runs that it must stop.

    The next heartbeat must come within `held_for` (None: the setting `ojs_visibility`).
    """
    distinct = list(dict.fromkeys(uids))

    def work(connection: Connection) -> set[str]:
        locked = claims.lock_external(connection, distinct, worker_id=worker_id, namespace=namespace)
        now = runtime.now()
        held_until = _held_until(runtime, now, held_for)
        claims.record_external_heartbeats(connection, locked, now=now, held_until=held_until)
        return set(locked)

    alive = runtime.database.transact(work) if distinct else set()
    return [uid for uid in distinct if uid in alive], [uid for uid in distinct if uid not in alive]
