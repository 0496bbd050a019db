"""The herd: schedules all due at one instant, until the last run is on its queue, and until the last run has ended.

    python -m benchmarks.herd --schedules 10000 --executed 1000 --rounds 3

Until all are queued: RQ's scheduler only moves ids from the set to the list, without a database; it takes 1 000 a
second by design, so its time is measured with its own pause between the passes. The aim is at most half its time. Ours
is measured with one dispatcher and with two processes of one each, as two workers have them; a queue of RQ never has
two schedulers.

Until all have ended: a second herd, measured from its due instant, of no-op runs on one `rqsched worker`
beside no-op jobs on one `rq worker --with-scheduler`. Both fork for each run or job, both are started and idle before.
The aim is at most twice RQ's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from redis import Redis
from rq import Queue
from rq.job import Job
from rq.scheduler import RQScheduler

from benchmarks.lab import (
    DATABASES,
    Lab,
    alternate,
    arguments,
    fill,
    lab,
    minutes,
    paired,
    ratio,
    report,
    succeeded,
    summary,
)
from benchmarks.processes import at_the_line, build_gate, open_gate, rq_worker, worker
from rqsched import Cron, Every
from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.dispatcher import Dispatcher, collecting_seldom
from rqsched.testing import ManualClock
from tests.support.processes import wait_until

PATIENCE = 1_800
PEER = "rq_scheduler"


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
    dispatcher = Dispatcher(make_runtime(settings))
    gate.wait()
    with collecting_seldom():
        while True:
            if not dispatcher.run_once():
                time.sleep(0.01)


def theirs(place: Lab, count: int) -> float:
    queue = _empty_queue(place)
    _schedule(queue, count, datetime.now(UTC) - timedelta(seconds=5))
    scheduler = RQScheduler([queue], connection=queue.connection, logging_level="ERROR")
    scheduler.acquire_locks()
    started = time.perf_counter()
    scheduler.enqueue_scheduled_jobs()
    while queue.count < count:
        time.sleep(scheduler.interval)
        scheduler.enqueue_scheduled_jobs()
    elapsed = time.perf_counter() - started
    scheduler.release_locks()
    return elapsed


def ours_ended(place: Lab, kind: str, count: int) -> float:
    """Let an idle `rqsched worker` fire and execute the herd; returns seconds from due to the last recorded end."""
    with place.runtime(kind) as runtime:
        queue = Queue(runtime.settings.default_queue, connection=runtime.transport.redis)
        with worker(place, runtime.settings.database_url, f"herd-{time.time_ns()}", queue.name):
            _warm_up(queue)
            due = _soon(count)
            fill(runtime, count, Every(timedelta(days=1), anchor=due))
            return _seconds_until(lambda: succeeded(runtime) >= count, due)


def theirs_ended(place: Lab, count: int) -> float:
    """Let an idle `rq worker --with-scheduler` do as many jobs; returns seconds from due to the last one's end."""
    queue = _empty_queue(place)
    with rq_worker(place, None, f"herd-{time.time_ns()}", ["--quiet", "--with-scheduler"], queue.name):
        _warm_up(queue)
        due = _soon(count)
        keys = [job.key for job in _schedule(queue, count, due)]
        return _seconds_until(lambda: not queue.connection.exists(*keys), due)


def _warm_up(queue: Queue) -> None:
    build_gate(queue)
    open_gate(queue.connection)


def _soon(count: int) -> datetime:
    """Return an instant that is still to come when so many have been scheduled."""
    return datetime.now(UTC) + timedelta(seconds=5 + count / 250)


def _seconds_until(have_ended: Callable[[], bool], due: datetime) -> float:
    ahead = (due - datetime.now(UTC)).total_seconds()
    if ahead < 0:
        raise RuntimeError(f"the herd was due {-ahead:.1f} s before all of it was scheduled; take a smaller one")
    time.sleep(ahead)
    wait_until(have_ended, timeout=PATIENCE, interval=0.02, what="the end of the last run")
    return (datetime.now(UTC) - due).total_seconds()


def _empty_queue(place: Lab) -> Queue:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    return Queue("herd", connection=redis)


def _schedule(queue: Queue, count: int, due: datetime) -> list[Job]:
    return [queue.schedule_job(queue.create_job("time.time", result_ttl=0), due) for _ in range(count)]


def main() -> None:
    given = arguments(__doc__, schedules=10_000, executed=1_000, rounds=3)
    with lab() as place:
        sides = {kind: partial(ours, place, kind, given.schedules) for kind in DATABASES}
        sides["postgres_two_dispatchers"] = partial(ours, place, "postgres", given.schedules, 2)
        queued = alternate(given.rounds, {PEER: partial(theirs, place, given.schedules), **sides})
        ends = {kind: partial(ours_ended, place, kind, given.executed) for kind in DATABASES}
        ended = alternate(given.rounds, {PEER: partial(theirs_ended, place, given.executed), **ends})
    figures = {
        "seconds": {name: summary(values, 2) for name, values in queued.items()},
        "ratio_to_rq_scheduler": {kind: ratio(queued[kind], queued[PEER]) for kind in sides},
        "aim": "at most 0.5",
        "until_ended": {
            "seconds": {name: summary(values, 2) for name, values in ended.items()},
            "ratio_to_rq_scheduler": {kind: paired(ended[kind], ended[PEER]) for kind in ends},
            "aim": "at most 2",
        },
    }
    report("herd", vars(given), figures)


if __name__ == "__main__":
    main()
