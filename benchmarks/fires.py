"""Fires per second of one dispatcher, against RQ's SimpleWorker doing no-op jobs in the same run (one, and two).

    python -m benchmarks.fires --links 10000 --rounds 3

A fire is the whole of it: lease, row lock, decision, run and audit event, durable commit (fsync on), run job on its
queue, next link armed. The aim is at least 5 x one SimpleWorker on PostgreSQL.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks.lab import (
    DATABASES,
    START,
    Lab,
    alternate,
    arguments,
    fill,
    fire_all,
    lab,
    minutes,
    put_noops,
    ratio,
    report,
    summary,
    work_noops,
)
from benchmarks.processes import at_the_line
from rqsched import Cron
from rqsched.testing import ManualClock


def fires(place: Lab, kind: str, links: int) -> float:
    clock = ManualClock(START)
    with place.runtime(kind, clock) as runtime:
        fill(runtime, links, Cron("1 12 * * *"))
        clock.advance(minutes(1))
        return links / fire_all(runtime, links)


def simple(place: Lab, jobs: int) -> float:
    Redis.from_url(place.valkey.url).flushall()
    return jobs / work_noops(place.valkey.url, jobs)


def two_simple(place: Lab, jobs: int) -> float:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    queue = Queue("benchmark-noops", connection=redis)
    put_noops(queue, jobs)
    with at_the_line(2, _work, place.valkey.url) as (go, workers):
        go()
        started = perf_counter()
        for worker in workers:
            worker.join()
        return jobs / (perf_counter() - started)


def _work(gate: Any, url: str) -> None:
    redis = Redis.from_url(url)
    worker = SimpleWorker([Queue("benchmark-noops", connection=redis)], connection=redis)
    gate.wait()
    worker.work(burst=True, logging_level="ERROR")


def main() -> None:
    given = arguments(__doc__, links=10_000, jobs=2_000, rounds=3)
    with lab() as place:
        samples = alternate(
            given.rounds,
            {
                "simple": lambda: simple(place, given.jobs),
                "postgres": lambda: fires(place, "postgres", given.links),
                "two_simple": lambda: two_simple(place, given.jobs),
                "sqlite": lambda: fires(place, "sqlite", given.links),
            },
        )
    figures = {
        "fires_per_second": {kind: summary(samples[kind]) for kind in DATABASES},
        "rq_jobs_per_second": {"simple": summary(samples["simple"]), "two_simple": summary(samples["two_simple"])},
        "ratio_to_one_simple_worker": {kind: ratio(samples[kind], samples["simple"]) for kind in DATABASES},
        "ratio_to_two_simple_workers": {kind: ratio(samples[kind], samples["two_simple"]) for kind in DATABASES},
        "aim": "postgres: at least 5 x one SimpleWorker",
    }
    report("fires", vars(given), figures)


if __name__ == "__main__":
    main()
