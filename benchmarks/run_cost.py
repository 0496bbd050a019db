"""The cost of one run from fire to recorded success: SQL statements, Redis commands and CPU, and RQ's share of it.

    python -m benchmarks.run_cost --runs 200

Counted in one process with RQ's SimpleWorker; the peer is the same worker doing no-op jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa
from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks.lab import START, Lab, arguments, fill, fire_all, lab, minutes, report, work_noops
from rqsched import Cron
from rqsched.kernel.chain.runtime import Runtime, using
from rqsched.testing import ManualClock


class Counter:
    """Counts the statements of an engine and the commands of a Redis."""

    def __init__(self, runtime: Runtime) -> None:
        self.statements = 0
        self._redis = runtime.transport.redis
        sa.event.listen(runtime.database.engine, "before_cursor_execute", self._count)

    def _count(self, *_: object) -> None:
        self.statements += 1

    def commands(self) -> int:
        """How many commands Redis has processed."""
        return int(self._redis.info("stats")["total_commands_processed"])


def measure(place: Lab, kind: str, count: int) -> dict[str, dict[str, float]]:
    clock = ManualClock(START)
    with place.runtime(kind, clock) as runtime:
        fill(runtime, count, Cron("1 12 * * *"))
        clock.advance(minutes(1))
        counter = Counter(runtime)
        fire = _cost(counter, lambda: fire_all(runtime, count), count)
        queue = Queue("default", connection=runtime.transport.redis)
        worker = SimpleWorker([queue], connection=runtime.transport.redis)
        with using(runtime):
            run = _cost(counter, lambda: worker.work(burst=True, logging_level="ERROR"), count)
        return {"fire": fire, "run": run}


def _cost(counter: Counter, call: Callable[[], object], count: int) -> dict[str, float]:
    statements, commands, cpu = counter.statements, counter.commands(), time.process_time()
    call()
    return {
        "sql_statements": round((counter.statements - statements) / count, 2),
        "redis_commands": round((counter.commands() - commands) / count, 2),
        "cpu_ms": round((time.process_time() - cpu) / count * 1000, 3),
    }


def rq_alone(place: Lab, count: int) -> dict[str, float]:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    commands, cpu = int(redis.info("stats")["total_commands_processed"]), time.process_time()
    work_noops(place.valkey.url, count)
    done = int(redis.info("stats")["total_commands_processed"]) - commands
    return {"redis_commands": round(done / count, 2), "cpu_ms": round((time.process_time() - cpu) / count * 1000, 3)}


def main() -> None:
    given = arguments(__doc__, runs=200)
    with lab() as place:
        found = {kind: measure(place, kind, given.runs) for kind in ("postgres", "sqlite")}
        figures = {"per_run": found, "rq_noop_job": rq_alone(place, given.runs)}
    report("run_cost", vars(given), figures)


if __name__ == "__main__":
    main()
