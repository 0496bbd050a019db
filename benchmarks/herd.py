"""The herd: schedules all due at one instant, until the last run is on its queue; against RQ's scheduler.

    python -m benchmarks.herd --schedules 10000 --rounds 3

RQ's scheduler only moves ids from the set to the list, without a database; it takes 1 000 a second by design, so its
time is measured with its own pause between the passes. The aim is at most half its time. Ours is measured with one
dispatcher and with two processes of one each, as two workers have them; a queue of RQ never has two schedulers.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis
from rq import Queue
from rq.scheduler import RQScheduler

from benchmarks.lab import (
    DATABASES,
    Lab,
    alternate,
    arguments,
    fill,
    lab,
    minutes,
    ratio,
    report,
    summary,
)
from benchmarks.processes import at_the_line
from rqsched import Cron
from rqsched.config import Settings
from rqsched.dispatcher import Dispatcher
from rqsched.runtime import Runtime
from rqsched.testing import ManualClock
from tests.processes import wait_until


def ours(place: Lab, kind: str, count: int, processes: int = 1) -> float:
    """Let dispatchers fire the herd; they start when all are ready, and the last run on its queue ends the time."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
    with place.runtime(kind, ManualClock(due - timedelta(seconds=1))) as runtime:
        fill(runtime, count, Cron(f"{due.minute} {due.hour} * * *"))
        runs = Queue(runtime.settings.default_queue, connection=runtime.transport.redis)
        with at_the_line(processes, _dispatch, runtime.settings) as (go, _):
            go()
            started = time.perf_counter()
            wait_until(lambda: runs.count >= count, timeout=600, interval=0.01, what="every run on its queue")
            return time.perf_counter() - started


def _dispatch(gate: Any, settings: Settings) -> None:
    dispatcher = Dispatcher(Runtime(settings))
    gate.wait()
    while True:
        dispatcher.run_once() or time.sleep(0.01)


def theirs(place: Lab, count: int) -> float:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    queue = Queue("herd", connection=redis)
    due = datetime.now(UTC) - timedelta(seconds=5)
    for start in range(0, count, 1_000):
        for _ in range(start, min(start + 1_000, count)):
            queue.schedule_job(queue.create_job("time.time"), due)
    scheduler = RQScheduler([queue], connection=redis, logging_level="ERROR")
    scheduler.acquire_locks()
    started = time.perf_counter()
    scheduler.enqueue_scheduled_jobs()
    while queue.count < count:
        time.sleep(scheduler.interval)
        scheduler.enqueue_scheduled_jobs()
    elapsed = time.perf_counter() - started
    scheduler.release_locks()
    return elapsed


def main() -> None:
    given = arguments(__doc__, schedules=10_000, rounds=3)
    with lab() as place:
        sides = {kind: (lambda kind=kind: ours(place, kind, given.schedules)) for kind in DATABASES}
        sides["postgres_two_dispatchers"] = lambda: ours(place, "postgres", given.schedules, 2)
        samples = alternate(given.rounds, {"rq_scheduler": lambda: theirs(place, given.schedules), **sides})
    figures = {
        "seconds": {name: summary(values, 2) for name, values in samples.items()},
        "ratio_to_rq_scheduler": {kind: ratio(samples[kind], samples["rq_scheduler"]) for kind in sides},
        "aim": "at most 0.5",
    }
    report("herd", vars(given), figures)


if __name__ == "__main__":
    main()
