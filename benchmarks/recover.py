"""Recovering stale schedules after Redis lost everything, against raw pipelined `schedule_job` of as many ids.

    python -m benchmarks.recover --schedules 100000 --rounds 3

The aim is at most twice the peer's time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from redis import Redis
from rq import Queue

from benchmarks.lab import (
    DATABASES,
    START,
    Lab,
    alternate,
    analyse,
    arguments,
    fill,
    lab,
    minutes,
    ratio,
    report,
    summary,
)
from rqsched import Cron
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.testing import ManualClock


def ours(place: Lab, kind: str, count: int) -> float:
    clock = ManualClock(START)
    with place.runtime(kind, clock) as runtime:
        fill(runtime, count, Cron("1 12 * * *"), arm=False)
        analyse(runtime)
        runtime.transport.redis.flushall()
        clock.advance(minutes(10))
        started = time.perf_counter()
        found = recover(runtime)
        elapsed = time.perf_counter() - started
        if found.links != count:
            raise RuntimeError(f"{found.links} of {count} links were armed")
        return elapsed


def theirs(place: Lab, count: int) -> float:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    queue = Queue("peer", connection=redis)
    due = datetime.now(UTC) + timedelta(hours=1)
    started = time.perf_counter()
    for start in range(0, count, 500):
        with redis.pipeline(transaction=False) as pipe:
            for number in range(start, min(start + 500, count)):
                job = queue.create_job("time.time", job_id=f"peer-{number}")
                queue.schedule_job(job, due, pipeline=pipe, unique=True)
            pipe.execute()
    return time.perf_counter() - started


def main() -> None:
    given = arguments(__doc__, schedules=100_000, rounds=3)
    with lab() as place:
        sides = {kind: (lambda kind=kind: ours(place, kind, given.schedules)) for kind in DATABASES}
        samples = alternate(given.rounds, {"rq_schedule_job": lambda: theirs(place, given.schedules), **sides})
    figures = {
        "seconds": {name: summary(values, 2) for name, values in samples.items()},
        "ratio_to_rq_schedule_job": {kind: ratio(samples[kind], samples["rq_schedule_job"]) for kind in DATABASES},
        "aim": "at most 2",
    }
    report("recover", vars(given), figures)


if __name__ == "__main__":
    main()
