"""Executed runs a second of a no-op workflow, against RQ's no-op job on the same kind of worker in the same run.

    python -m benchmarks.runs --rounds 5
    python -m benchmarks.runs --kinds fork,simple --forked 50 --simple 250

The kinds: `fork` is `rq worker`, `simple` RQ's SimpleWorker and `pool` is `rq worker-pool` with one worker per core,
ours with `-c rqsched.preload`; `class` is `rq worker -w rqsched.rq.Worker` beside `rq worker`; `rqsched` is `rqsched
worker` beside `rq worker --with-scheduler`; `runners` is `rqsched worker --concurrency` with one runner per core,
beside one SimpleWorker, one `rq worker` and, where Celery is installed, its prefork pool of as many processes with late
acknowledgement. All runs are on their queue and all workers are started, warm and idle
before the clock starts: it measures neither fires nor start-up. The clock ends when the last run is recorded as ended
in SQL, or RQ's last job is finished. The aim is at least half of RQ's rate for each kind; of runners at least one
SimpleWorker, and four times one `rq worker`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec

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
from benchmarks.processes import celery_worker, rate_behind_gate, rate_of, rq_worker, worker
from rqsched import Cron
from rqsched.testing import ManualClock
from tests.support.processes import Process, wait_until

KINDS = ("fork", "class", "rqsched", "simple", "pool", "runners")
PRELOAD = ["-c", "rqsched.preload"]
OUR_CLASS = ["-w", "rqsched.rq.Worker"]
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
            if self.name in {"rqsched", "runners"}:
                options = ["--concurrency", str(self.workers)] if self.name == "runners" else []
                process = worker(place, database_url, f"ours-{time.time_ns()}", *options, queue.name)
            else:
                process = self._rq(place, queue, database_url, OUR_CLASS if self.name == "class" else PRELOAD)
            return self._rate(queue, process, lambda: succeeded(runtime) >= self.count)

    def theirs(self, place: Lab) -> float:
        """Measure RQ's own jobs a second."""
        redis = Redis.from_url(place.valkey.url)
        redis.flushall()
        queue = Queue("benchmark-noops", connection=redis)
        keys = [job.key for job in put_noops(queue, self.count)]
        return self._rate(queue, self._rq(place, queue), lambda: not redis.exists(*keys))

    def celery(self, place: Lab) -> float:
        """Measure Celery's tasks a second, in as many processes."""
        from benchmarks import celery_tasks as tasks  # noqa: PLC0415 - where it is installed

        redis = Redis.from_url(place.valkey.url)
        redis.flushall()
        with tasks.app.connection_for_write(place.valkey.url) as connection:
            for task, count in ((tasks.hold, self.workers), (tasks.noop, self.count)):
                for _ in range(count):
                    task.apply_async(connection=connection)
        process = celery_worker(place, f"celery-{time.time_ns()}", self.workers)
        wait = partial(_wait, lambda: not redis.exists(tasks.QUEUE, tasks.UNACKNOWLEDGED))
        return rate_behind_gate(self.count, redis, self.workers, process, wait)

    def peers(self, others: Sequence[Kind]) -> Mapping[str, Callable[[Lab], float]]:
        """Return the peers of this kind by their names in the figures."""
        if self.name != "runners":
            return {"rq": self.theirs}
        beside: dict[str, Callable[[Lab], float]] = {
            f"rq_{kind.name}": kind.theirs for kind in others if kind.name in {"simple", "fork"}
        }
        return beside | ({"celery": self.celery} if find_spec("celery") else {})

    def _rq(
        self, place: Lab, queue: Queue, database_url: str | None = None, options: Sequence[str] = ()
    ) -> AbstractContextManager[Process]:
        own = {
            "fork": [],
            "class": [],
            "rqsched": ["--with-scheduler"],
            "simple": ["-w", "rq.SimpleWorker"],
            "pool": ["-n", str(self.workers)],
        }[self.name]
        command = "worker-pool" if self.name == "pool" else "worker"
        words = ["--quiet", *own, *options]
        return rq_worker(place, database_url, f"rq-{time.time_ns()}", words, queue.name, command=command)

    def _rate(self, queue: Queue, process: AbstractContextManager[Process], have_ended: Callable[[], bool]) -> float:
        return rate_of(self.count, queue, self.workers, process, partial(_wait, have_ended))


def _wait(have_ended: Callable[[], bool]) -> None:
    wait_until(have_ended, timeout=PATIENCE, interval=0.02, what="the end of the last run")


def main() -> None:
    given = arguments(__doc__, kinds=",".join(KINDS), forked=50, simple=250, workers=os.cpu_count() or 1, rounds=5)
    counts = {"simple": given.simple, "runners": given.simple * given.workers}
    kinds = [
        Kind(name, counts.get(name, given.forked), given.workers if name in {"pool", "runners"} else 1)
        for name in KINDS
    ]
    figures = {}
    with lab() as place:
        for kind in kinds:
            if kind.name in given.kinds.split(","):
                figures[kind.name] = measure(place, kind, kind.peers(kinds), given.rounds)
    aim = "a ratio of at least 0.5 for each kind; runners: at least 1 to SimpleWorker and 4 to `rq worker`"
    report("runs", vars(given), {"kinds": figures, "aim": aim})


def measure(place: Lab, kind: Kind, peers: Mapping[str, Callable[[Lab], float]], rounds: int) -> dict[str, object]:
    """Measure one kind on each database and its peers, in turn."""
    one, other = (partial(kind.ours, place, database) for database in DATABASES)
    theirs = {name: partial(peer, place) for name, peer in peers.items()}
    found = alternate(rounds, {DATABASES[0]: one, **theirs, DATABASES[1]: other})
    return {
        "runs_per_second": {database: summary(found[database]) for database in DATABASES},
        **{f"{name}_jobs_per_second": summary(found[name]) for name in peers},
        **{
            f"ratio_to_{name}": {database: paired(found[database], found[name]) for database in DATABASES}
            for name in peers
        },
    }


if __name__ == "__main__":
    main()
