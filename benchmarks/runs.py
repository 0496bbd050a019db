"""Executed runs a second of a no-op workflow, against RQ's no-op job on the same kind of worker in the same run.

    python -m benchmarks.runs --rounds 5
    python -m benchmarks.runs --kinds fork,simple --forked 50 --simple 250

The kinds: `fork` is `rq worker`, `simple` RQ's SimpleWorker and `pool` is `rq worker-pool` with one worker per core,
ours with `-c rqsched.preload`; `rqsched` is `rqsched worker`, beside `rq worker --with-scheduler`. All runs are on
their queue and all workers are started, warm and idle before the clock starts: it measures neither fires nor start-up.
The clock ends when the last run is recorded as ended in SQL, or RQ's last job is finished. The aim is at least half of
RQ's rate for each kind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from redis import Redis
from rq import Queue

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
from benchmarks.processes import build_gate, open_gate, rq_worker, worker
from rqsched import Cron
from rqsched.testing import ManualClock
from tests.support.processes import Process, wait_until

KINDS = ("fork", "rqsched", "simple", "pool")
PRELOAD = ["-c", "rqsched.preload"]
PATIENCE = 900


@dataclass(frozen=True)
class Kind:
    """One kind of worker."""

    name: str
    count: int
    """How many runs or jobs it executes in a round."""
    workers: int
    """How many of its workers take them from the queue."""

    def ours(self, place: Lab, database: str) -> float:
        """Measure our runs a second."""
        due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
        clock = ManualClock(due - timedelta(seconds=1))
        with place.runtime(database, clock) as runtime:
            fill(runtime, self.count, Cron(f"{due.minute} {due.hour} * * *"))
            clock.set(due)
            fire_all(runtime, self.count)
            queue = Queue(runtime.settings.default_queue, connection=runtime.transport.redis)
            database_url = runtime.settings.database_url
            process: AbstractContextManager[Process]
            if self.name == "rqsched":
                process = worker(place, database_url, f"ours-{time.time_ns()}", queue.name)
            else:
                process = self._rq(place, queue, database_url, PRELOAD)
            return self._rate(queue, process, lambda: succeeded(runtime) >= self.count)

    def theirs(self, place: Lab) -> float:
        """Measure RQ's own jobs a second."""
        redis = Redis.from_url(place.valkey.url)
        redis.flushall()
        queue = Queue("benchmark-noops", connection=redis)
        keys = [job.key for job in put_noops(queue, self.count)]
        return self._rate(queue, self._rq(place, queue), lambda: not redis.exists(*keys))

    def _rq(
        self, place: Lab, queue: Queue, database_url: str | None = None, options: Sequence[str] = ()
    ) -> AbstractContextManager[Process]:
        own = {
            "fork": [],
            "rqsched": ["--with-scheduler"],
            "simple": ["-w", "rq.SimpleWorker"],
            "pool": ["-n", str(self.workers)],
        }[self.name]
        command = "worker-pool" if self.name == "pool" else "worker"
        words = ["--quiet", *own, *options]
        return rq_worker(place, database_url, f"rq-{time.time_ns()}", words, queue.name, command=command)

    def _rate(self, queue: Queue, process: AbstractContextManager[Process], have_ended: Callable[[], bool]) -> float:
        build_gate(queue, self.workers)
        with process:
            begun = open_gate(queue.connection, self.workers)
            wait_until(have_ended, timeout=PATIENCE, interval=0.02, what="the end of the last run")
            return self.count / (time.perf_counter() - begun)


def main() -> None:
    given = arguments(__doc__, kinds=",".join(KINDS), forked=50, simple=250, workers=os.cpu_count() or 1, rounds=5)
    kinds = [
        Kind(name, given.simple if name == "simple" else given.forked, given.workers if name == "pool" else 1)
        for name in given.kinds.split(",")
    ]
    samples: dict[str, dict[str, list[float]]] = {}
    with lab() as place:
        for kind in kinds:
            one, other = (partial(kind.ours, place, database) for database in DATABASES)
            sides = {DATABASES[0]: one, "rq": partial(kind.theirs, place), DATABASES[1]: other}
            samples[kind.name] = alternate(given.rounds, sides)
    figures = {
        name: {
            "runs_per_second": {database: summary(found[database]) for database in DATABASES},
            "rq_jobs_per_second": summary(found["rq"]),
            "ratio_to_rq": {database: paired(found[database], found["rq"]) for database in DATABASES},
        }
        for name, found in samples.items()
    }
    report("runs", vars(given), {"kinds": figures, "aim": "a ratio of at least 0.5 for each kind"})


if __name__ == "__main__":
    main()
