"""Say in one line why a run waits: for a thaw, for its code, for a limit, for an earlier run, or for a worker."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from redis.exceptions import RedisError

from rqsched.api import outages, processes
from rqsched.api import runs as run_queries
from rqsched.api.database import Connection
from rqsched.api.runs import MOST_AHEAD, RunOutline
from rqsched.dashboard.rendering import ago
from rqsched.dashboard.visit import Visit
from rqsched.types import Freeze, Run, RunStatus

_log = logging.getLogger(__name__)


class Wait(NamedTuple):
    """The reason why one run waits."""

    text: str
    """The reason, as words that follow the word "waits"."""
    path: str = ""
    """The page about the reason; empty if there is no such page."""


def waits_of(visit: Visit, runs: Iterable[Run]) -> dict[str, Wait]:
    """Return, by the uid of each waiting run, why it waits. Other runs are left out."""
    found = [run for run in runs if run.status in {RunStatus.PENDING, RunStatus.BUFFERED, RunStatus.RETRYING}]
    if not found:
        return {}
    buffered = {run.schedule_uid for run in found if run.status is RunStatus.BUFFERED}

    def read(connection: Connection) -> tuple[list[Run], dict[str, RunOutline]]:
        return run_queries.with_places(connection, found), run_queries.runs_ahead(connection, buffered)

    waiting, ahead = visit.read(read)
    listening = _listening(visit) if any(run.status is RunStatus.PENDING for run in waiting) else None
    return {run.uid: _wait(visit, run, ahead, listening) for run in waiting}


def _wait(visit: Visit, run: Run, ahead: Mapping[str, RunOutline], listening: Collection[str] | None) -> Wait:
    if run.is_blocked:
        return Wait(f"for a worker that has its code: {run.blocked_reason}")
    if visit.all_frozen is not None:
        return Wait(_told("until everything is thawed", visit.all_frozen))
    if visit.freeze is not None:
        return Wait(_told("until the namespace is thawed", visit.freeze))
    if run.status is RunStatus.RETRYING:
        return Wait(f"for its next attempt, {ago(run.retry_at, visit.now)}" if run.retry_at else "for its next attempt")
    if run.status is RunStatus.BUFFERED:
        if (first := ahead.get(run.schedule_uid)) is None:
            return Wait("for the run ahead of it")
        return Wait(f"behind run #{first.number}", f"/runs/{first.uid}")
    if run.is_in_line:
        place = run.place_in_line or MOST_AHEAD + 1
        where = f"number {place}" if place <= MOST_AHEAD else f"behind more than {MOST_AHEAD}"
        return Wait(f"in line for limit {run.limit}, {where}", f"/limits/{quote(str(run.limit))}")
    return _for_worker(run, run.queue or visit.scheduler.settings.default_queue, listening)


def _for_worker(run: Run, queue: str, listening: Collection[str] | None) -> Wait:
    if run.executor == "external":
        return Wait(f"for an external worker of {queue}")
    if run.connection is not None:
        return Wait(f"for a worker on {queue} of the connection {run.connection}")
    if listening is None:
        return Wait(f"for a worker on {queue}; whether one is alive is not known", "/system")
    is_served = queue in listening
    return Wait(f"for a free worker on {queue}" if is_served else f"for a worker: none is alive on {queue}", "/system")


def _told(text: str, freeze: Freeze) -> str:
    return text + (f"; frozen by {freeze.by}" if freeze.by else "") + (f" ({freeze.reason})" if freeze.reason else "")


def _listening(visit: Visit) -> frozenset[str] | None:
    """Return the queues on which a worker listens; None if Redis does not answer."""
    try:
        found = processes.live_workers(visit.scheduler.runtime.transport.redis)
    except RedisError as error:
        _log.debug("workers are not known: %s", outages.told(error), extra={"action": "dashboard_redis"})
        return None
    return frozenset(name for worker in found for name in worker.queues)
