"""Executed runs a second of a no-op workflow, against RQ's no-op job on the same kind of worker in the same run.

    python -m benchmarks.runs --forked 200 --simple 1000 --rounds 5

The kinds: `fork` is `rq worker` and `simple` RQ's SimpleWorker, ours with `-c rqsched.preload`; `rqsched` is
`rqsched worker`, beside `rq worker`; `pool` is `rq worker-pool` with one worker per core. All runs are on their queue
and all workers are started, warm and idle before the clock starts: it measures neither fires nor start-up. The clock
ends when the last run is recorded as ended in SQL, or RQ's last job is finished. The aim is at least half of RQ's rate
for each kind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

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
PEERS = {"fork": "fork", "rqsched": "fork", "simple": "simple", "pool": "pool"}
"""The kind of RQ's own worker that each kind of ours stands beside."""
PATIENCE = 900


def ours(place: Lab, kind: str, database: str, count: int, workers: int) -> float:
    due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
    clock = ManualClock(due - timedelta(seconds=1))
    with place.runtime(database, clock) as runtime:
        fill(runtime, count, Cron(f"{due.minute} {due.hour} * * *"))
        clock.set(due)
        fire_all(runtime, count)
        queue = Queue(runtime.settings.default_queue, connection=runtime.transport.redis)
        build_gate(queue, workers)
        with our_worker(place, kind, runtime.settings.database_url, queue.name, workers):
            return rate(queue.connection, count, workers, lambda: succeeded(runtime) >= count)


def our_worker(
    place: Lab, kind: str, database_url: str | None, queue: str, workers: int
) -> AbstractContextManager[Process]:
    name = f"ours-{kind}-{time.time_ns()}"
    if kind == "rqsched":
        return worker(place, database_url, name, queue)
    return plain_worker(place, kind, database_url, name, queue, workers, ["-c", "rqsched.preload"])


def theirs(place: Lab, kind: str, count: int, workers: int) -> float:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    queue = Queue("benchmark-noops", connection=redis)
    keys = [job.key for job in put_noops(queue, count)]
    build_gate(queue, workers)
    with plain_worker(place, kind, None, f"rq-{kind}-{time.time_ns()}", queue.name, workers, []):
        return rate(redis, count, workers, lambda: not redis.exists(*keys))


def plain_worker(
    place: Lab, kind: str, database_url: str | None, name: str, queue: str, workers: int, options: list[str]
) -> AbstractContextManager[Process]:
    own = {"fork": [], "simple": ["-w", "rq.SimpleWorker"], "pool": ["-n", str(workers)]}[kind]
    command = "worker-pool" if kind == "pool" else "worker"
    return rq_worker(place, database_url, name, ["--quiet", *own, *options], queue, command=command)


def rate(redis: Redis, count: int, workers: int, has_ended: Callable[[], bool]) -> float:
    """Open the gate; return how many a second were executed until all had ended."""
    begun = open_gate(redis, workers)
    wait_until(has_ended, timeout=PATIENCE, interval=0.02, what="the end of the last run")
    return count / (time.perf_counter() - begun)


def main() -> None:
    given = arguments(__doc__, forked=200, simple=1_000, workers=os.cpu_count() or 1, rounds=3)
    with lab() as place:
        samples = alternate(given.rounds, sides(place, given))
    ratios = {
        kind: {base: paired(samples[f"{kind} {base}"], samples[f"rq {PEERS[kind]}"]) for base in DATABASES}
        for kind in KINDS
    }
    figures = {
        "runs_per_second": {kind: {base: summary(samples[f"{kind} {base}"]) for base in DATABASES} for kind in KINDS},
        "rq_jobs_per_second": {kind: summary(samples[f"rq {kind}"]) for kind in dict.fromkeys(PEERS.values())},
        "ratio_to_rq": ratios,
        "aim": "at least 0.5 for each kind",
    }
    report("runs", vars(given), figures)


def sides(place: Lab, given: Any) -> dict[str, Callable[[], float]]:
    """Give what is measured in turn: each kind of worker on one database, on RQ alone, on the other database."""
    found: dict[str, Callable[[], float]] = {}
    for kind in KINDS:
        count = given.simple if kind == "simple" else given.forked
        workers = given.workers if kind == "pool" else 1
        one, other = (partial(ours, place, kind, base, count, workers) for base in DATABASES)
        found[f"{kind} {DATABASES[0]}"] = one
        found.setdefault(f"rq {PEERS[kind]}", partial(theirs, place, PEERS[kind], count, workers))
        found[f"{kind} {DATABASES[1]}"] = other
    return found


if __name__ == "__main__":
    main()
