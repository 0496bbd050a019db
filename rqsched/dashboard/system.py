"""The page of workers and queues: who is alive and what it does, how deep queues are, how the last hour went."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from redis.exceptions import RedisError
from starlette.responses import Response

from rqsched.dashboard import queues
from rqsched.dashboard.queues import LastHour, LiveQueue, LiveWorker
from rqsched.dashboard.visit import Visit
from rqsched.transport import telemetry
from rqsched.transport.telemetry import LiveDispatcher

_log = logging.getLogger(__name__)
_REPAIRS = {
    "links": "links armed", "next_times": "next times set", "retimed": "next times of a new timezone database",
    "deliveries": "runs enqueued again", "retries": "retry links armed", "lost": "lost runs settled",
    "blocked": "blocked runs given up", "drained": "waiting runs started", "backfills": "backfills continued",
    "targets": "targets delivered again or failed", "overdue": "schedules found without a success in time",
    "notifications": "notifications delivered again or failed", "failed": "rows that could not be repaired",
}  # fmt: skip
"""What a reconcile pass does, in words."""


@dataclass
class _Alive:
    """What Redis tells."""

    workers: list[LiveWorker] = field(default_factory=list)
    queues: list[LiveQueue] = field(default_factory=list)
    dispatchers: list[LiveDispatcher] = field(default_factory=list)
    passes: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def repairs(self) -> list[tuple[str, int]]:
        """What was repaired since Redis remembers, and how often; nothing else."""
        done = [(words, int(self.passes.get(name, 0))) for name, words in _REPAIRS.items()]
        pruned = sum(count for name, count in self.passes.items() if name.startswith(telemetry.PRUNED))
        return [(words, count) for words, count in (*done, ("rows pruned", int(pruned))) if count]


def show(visit: Visit) -> Response:
    """Show workers, queues and the last hour."""
    hour = queues.read_last_hour(visit)
    try:
        alive = _alive(visit, hour)
    except (RedisError, OSError) as error:
        _log.warning("Redis does not answer: %s", error, extra={"action": "dashboard_redis"})
        alive = _Alive(problem="Redis does not answer, so workers and queues cannot be shown.")
    return visit.page("system.html", hour=hour, alive=alive)


def _alive(visit: Visit, hour: LastHour) -> _Alive:
    transport = visit.scheduler.runtime.transport
    found = queues.read_workers(visit)
    shown = queues.show_queues(visit, found, hour)
    workers = queues.show_workers(visit, found, [queue.name for queue in shown])
    dispatchers = telemetry.live_dispatchers(transport.redis, transport.control.name)
    passes = telemetry.read_passes(transport.redis, transport.control.name) if visit.sees_all else {}
    return _Alive(workers, shown, dispatchers, passes)
