"""Workers and queues: who is alive and what it does, how deep queues are, and how the last hour went."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import quantiles

from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.worker import BaseWorker
from starlette.responses import Response

from rqsched.dashboard.visit import Visit
from rqsched.store import overview
from rqsched.transport import telemetry

_log = logging.getLogger(__name__)
_HOUR = timedelta(hours=1)
_MOST_RUNS = 5_000
_MOST_WORKERS = 200


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """One RQ worker."""

    name: str
    """Its name."""
    state: str
    """`busy`, `idle`, `suspended` or `started`."""
    queues: list[str]
    """What it listens on, the most urgent first."""
    heartbeat_at: datetime | None
    """Its last sign of life."""
    job_id: str | None
    """What it executes now."""
    version: str
    """The version of RQ."""


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """One queue of RQ."""

    name: str
    """Its name."""
    depth: int
    """Jobs that wait."""
    workers: int
    """Workers that listen on it."""
    head_since: datetime | None
    """Since when the job that is taken next has waited; None when none waits."""


def show(visit: Visit) -> Response:
    """Show workers, queues and the last hour."""
    problem, workers, queues, dispatchers, passes = "", [], [], [], {}
    try:
        workers = _workers(visit)
        queues = _queues(visit, workers)
        transport = visit.scheduler.runtime.transport
        dispatchers = telemetry.live_dispatchers(transport.redis, transport.control.name)
        passes = telemetry.read_passes(transport.redis, transport.control.name)
    except (RedisError, OSError) as error:
        _log.warning("Redis does not answer: %s", error, extra={"action": "dashboard_redis"})
        problem = "Redis does not answer, so workers and queues cannot be shown."
    return visit.page(
        "system.html", problem=problem, workers=workers, queues=queues, dispatchers=dispatchers, passes=passes,
        hour=_last_hour(visit),
    )  # fmt: skip


def _workers(visit: Visit) -> list[LiveWorker]:
    found = Worker.all(connection=visit.scheduler.runtime.transport.redis)[:_MOST_WORKERS]
    return sorted((_worker(worker) for worker in found), key=lambda one: one.name)


def _worker(worker: BaseWorker) -> LiveWorker:
    beat = worker.last_heartbeat
    return LiveWorker(
        worker.name, str(getattr(worker.get_state(), "value", worker.get_state())), worker.queue_names(),
        beat and (beat if beat.tzinfo else beat.replace(tzinfo=UTC)), worker.get_current_job_id(), worker.version or "",
    )  # fmt: skip


def _queues(visit: Visit, workers: list[LiveWorker]) -> list[LiveQueue]:
    redis = visit.scheduler.runtime.transport.redis
    names = {queue.name for queue in Queue.all(connection=redis)} | {name for one in workers for name in one.queues}
    queues = [Queue(name, connection=redis) for name in sorted(names)]
    return [
        LiveQueue(queue.name, queue.count, sum(queue.name in one.queues for one in workers), _head_since(queue))
        for queue in queues
    ]


def _head_since(queue: Queue) -> datetime | None:
    ids = queue.get_job_ids(0, 1)
    try:
        at = Job.fetch(ids[0], connection=queue.connection).enqueued_at if ids else None
    except NoSuchJobError:
        return None
    return at and (at if at.tzinfo else at.replace(tzinfo=UTC))


def deserted_queues(visit: Visit) -> dict[str, int]:
    """Return how many jobs wait on each queue that no worker listens on; dispatchers see to the control queue."""
    transport = visit.scheduler.runtime.transport
    return {
        queue.name: depth
        for queue in Queue.all(connection=transport.redis)
        if queue.name != transport.control.name and (depth := queue.count) and not Worker.count(queue=queue)
    }


def _last_hour(visit: Visit) -> dict[str, object]:
    start = visit.now - _HOUR
    end = visit.now + timedelta(seconds=1)
    found = visit.read(lambda c: overview.runs_between(c, visit.namespace, start, end, _MOST_RUNS))
    outlines = [run for _, run in found]
    first = [run for run in outlines if run.attempt == 1]
    late = [(run.started_at - run.due_at).total_seconds() for run in first if run.started_at and run.due_at]
    cuts = quantiles(late, n=20) if len(late) > 1 else late * 19
    return {
        "runs": len(found), "is_capped": len(found) == _MOST_RUNS,
        "failed": sum(run.status in {"failed", "lost"} for run in outlines),
        "p50": cuts[9] if cuts else None, "p95": cuts[18] if cuts else None,
    }  # fmt: skip
