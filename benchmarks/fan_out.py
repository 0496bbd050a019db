"""Targets of a fan-out handled a second, against RQ's no-op jobs on the same kind of worker in the same run.

    python -m benchmarks.fan_out --rounds 5
    python -m benchmarks.fan_out --kinds simple --targets 5000 --databases sqlite

One run names all targets, and a no-op workflow is called for each in a job of its own. The kinds: `simple` is RQ's
SimpleWorker, ours with `-c rqsched.preload`; `runners` is `rqsched worker --concurrency` with one runner per core,
beside `rq worker-pool` with as many SimpleWorkers. All workers are started, warm and idle before the clock starts. Ours
includes that the run is claimed, its targets are named and put on the queue chunk by chunk, and that its end is
recorded; RQ's jobs are on their queue already. The aim is half of RQ's rate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from redis import Redis
from rq import Queue

from benchmarks.flows import EACH, TARGETS
from benchmarks.lab import (
    DATABASES,
    Lab,
    alternate,
    arguments,
    fill,
    fire_all,
    lab,
    minutes,
    paired,
    put_noops,
    report,
    succeeded,
    summary,
)
from benchmarks.processes import rate_of, rq_worker, worker
from rqsched import Cron
from rqsched.testing import ManualClock
from tests.support.processes import Process, wait_until

KINDS = ("simple", "runners")
PATIENCE = 3_600


@dataclass(frozen=True)
class Kind:
    """One kind of worker."""

    name: str
    targets: int
    """How many targets or jobs it handles in a round."""
    workers: int
    """How many of its workers take them from the queue."""

    def ours(self, place: Lab, database: str) -> float:
        """Measure targets a second."""
        due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
        clock = ManualClock(due - timedelta(seconds=1))
        with place.runtime(database, clock) as runtime:
            fill(runtime, 1, Cron(f"{due.minute} {due.hour} * * *"), workflow=EACH)
            clock.set(due)
            fire_all(runtime, 1)
            queue = Queue(runtime.settings.default_queue, connection=runtime.transport.redis)
            process: AbstractContextManager[Process]
            name, url = f"ours-{time.time_ns()}", runtime.settings.database_url
            if self.name == "runners":
                words = ["--concurrency", str(self.workers), queue.name]
                process = worker(place, url, name, *words)
            else:
                words = ["--quiet", "-w", "rq.SimpleWorker", "-c", "rqsched.preload"]
                process = rq_worker(place, url, name, words, queue.name)
            return self._rate(queue, process, lambda: succeeded(runtime) == 1)

    def theirs(self, place: Lab) -> float:
        """Measure RQ's own jobs a second."""
        redis = Redis.from_url(place.valkey.url)
        redis.flushall()
        queue = Queue("benchmark-noops", connection=redis)
        put_noops(queue, self.targets)
        command = "worker" if self.name == "simple" else "worker-pool"
        many = ["-n", str(self.workers)] if self.name == "runners" else []
        words = ["--quiet", "-w", "rq.SimpleWorker", *many]
        process = rq_worker(place, None, f"rq-{time.time_ns()}", words, queue.name, command=command)
        return self._rate(queue, process, partial(_is_empty, redis))

    def _rate(self, queue: Queue, process: AbstractContextManager[Process], have_ended: Callable[[], bool]) -> float:
        wait = partial(wait_until, have_ended, timeout=PATIENCE, interval=0.05, what="the end of the last one")
        return rate_of(self.targets, queue, self.workers, process, wait)


def _is_empty(redis: Redis) -> bool:
    """Tell whether every job is finished and forgotten."""
    return next(redis.scan_iter("rq:job:*", 1_000), None) is None


def main() -> None:
    given = arguments(
        __doc__,
        kinds=",".join(KINDS),
        databases=",".join(DATABASES),
        targets=2_000,
        workers=os.cpu_count() or 1,
        rounds=5,
    )
    os.environ[TARGETS] = str(given.targets)
    figures = {}
    with lab() as place:
        for name in given.kinds.split(","):
            kind = Kind(name, given.targets, given.workers if name == "runners" else 1)
            figures[name] = measure(place, kind, given.databases.split(","), given.rounds)
    report("fan_out", vars(given), {"kinds": figures, "aim": "a ratio of at least 0.5 for each kind"})


def measure(place: Lab, kind: Kind, databases: list[str], rounds: int) -> dict[str, object]:
    """Measure one kind on each database and RQ's, in turn."""
    ours = {database: partial(kind.ours, place, database) for database in databases}
    found = alternate(rounds, {"rq": partial(kind.theirs, place), **ours})
    return {
        "targets_per_second": {database: summary(found[database]) for database in databases},
        "rq_jobs_per_second": summary(found["rq"]),
        "ratio": {database: paired(found[database], found["rq"]) for database in databases},
    }


if __name__ == "__main__":
    main()
