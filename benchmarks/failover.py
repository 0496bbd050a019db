"""Failover: the pause of fires after SIGKILL of the process that promotes them.

    python -m benchmarks.failover --rounds 5 --peer 1

With a second worker alive (all links, and the links that the dead worker had leased), and by a restart of the only one;
against RQ alone, `rq worker --with-scheduler --maintenance-interval 5 --worker-ttl 20` with jobs of its own, in the
same run (minutes: leave it out with `--peer 0`). Aims: other links within 250 ms, leased ones within the lease +
0.5 s, by restart 5 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from redis import Redis
from rq import Queue

from benchmarks.flows import NOTES
from benchmarks.lab import Lab, arguments, fill, lab, report, summary
from benchmarks.processes import rq_worker, worker
from rqsched import Every
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import LinkId, parse_link_id
from rqsched.kernel.store.tables import runs
from tests.support.processes import Process, wait_until

TUNED = ["--with-scheduler", "--maintenance-interval", "5", "--worker-ttl", "20"]
SCHEDULES, LEASED = 40, 3
PEER_JOBS, PEER_TIMEOUT = 1_800, 900


@dataclass
class Scene:
    """Workers at work on schedules that are due twenty times a second."""

    runtime: Runtime
    workers: list[Process]
    start: Callable[[], Process]
    """Starts one more."""


@contextmanager
def scene(place: Lab, given: Any, workers: int) -> Iterator[Scene]:
    with place.runtime("postgres") as runtime, ExitStack() as stack:

        def start() -> Process:
            name = f"worker-{time.time_ns()}"
            return stack.enter_context(worker(place, runtime.settings.database_url, name, "default"))

        started = [start() for _ in range(workers)]
        time.sleep(given.warmup)
        spread(runtime)
        time.sleep(given.settle)
        yield Scene(runtime, started, start)


def spread(runtime: Runtime) -> None:
    """Create schedules that together are due twenty times a second."""
    begun = runtime.now()
    for number in range(SCHEDULES):
        anchor = begun + timedelta(seconds=2 * number / SCHEDULES)
        spec = Every(timedelta(seconds=2), anchor=anchor)
        fill(runtime, 1, spec, prefix=f"fail-{number}-", overlap="allow_all")  # fires must not wait for slow runs


def fired(runtime: Runtime, since: datetime, uids: set[str] | None = None) -> list[tuple[datetime, datetime]]:
    statement = sa.select(runs.c.created_at, runs.c.due_at).where(runs.c.kind == "scheduled", runs.c.created_at > since)
    if uids is not None:
        statement = statement.where(runs.c.schedule_uid.in_(uids))
    found = runtime.database.read(lambda connection: connection.execute(statement).all())
    return sorted((created, due) for created, due in found)


def gap_after(runtime: Runtime, killed_at: datetime, timeout: float) -> float:
    """Seconds from the kill to the first fire after it."""
    wait_until(lambda: fired(runtime, killed_at), timeout=timeout, what="a fire after the kill")
    return (fired(runtime, killed_at)[0][0] - killed_at).total_seconds()


def second_alive(place: Lab, given: Any) -> dict[str, float]:
    with scene(place, given, 2) as at:
        at.workers[0].kill_tree()
        killed_at = at.runtime.now()
        first_fire = gap_after(at.runtime, killed_at, 60)
        time.sleep(given.settle)
        late = [(created - due).total_seconds() for created, due in fired(at.runtime, killed_at)]
    return {"first_fire": first_fire, "latest": max(late)}


def leased(place: Lab, given: Any) -> float:
    """Seconds from due to fire of a link that a process leased and then died with, two workers alive; the longest."""
    with scene(place, given, 2) as at:
        lease, begun, taken = at.runtime.settings.link_lease, at.runtime.now(), set[str]()
        while len(taken) < LEASED:  # faster than the dispatchers now and then; it never fires the links that it takes
            links = at.runtime.transport.lease(now=at.runtime.now(), lease=lease, limit=1)
            taken |= {link.uid for text in links if isinstance(link := parse_link_id(text), LinkId)}
        time.sleep(lease.total_seconds() + 1)
        wait_until(lambda: len(fired(at.runtime, begun, taken)) >= LEASED, timeout=60, what="fires of the leased links")
        late = [(created - due).total_seconds() for created, due in fired(at.runtime, begun, taken)]
    return max(late)


def by_restart(place: Lab, given: Any) -> float:
    with scene(place, given, 1) as at:
        killed_at = at.runtime.now()
        at.workers[0].kill_tree()
        at.start()
        return gap_after(at.runtime, killed_at, 60)


def by_rq(place: Lab, given: Any, *, has_second: bool) -> float:
    """Seconds until RQ itself promotes a job again that was due after the kill; one is due every half second."""
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    queue = Queue("plain", connection=redis)
    with ExitStack() as stack:
        one = start_rq(stack, place)
        time.sleep(given.warmup)
        if has_second:
            start_rq(stack, place)
        begun = time.time()
        for due in (begun + number / 2 for number in range(PEER_JOBS)):
            queue.enqueue_at(datetime.fromtimestamp(due, UTC), "benchmarks.flows.note", due, result_ttl=0)
        wait_until(lambda: notes(redis, begun), timeout=30, what="a job promoted by RQ's scheduler")
        time.sleep(given.settle)
        one.kill_tree()
        killed_at = time.time()
        if not has_second:
            start_rq(stack, place)
        wait_until(lambda: notes(redis, killed_at), timeout=PEER_TIMEOUT, what="a job promoted after the kill")
        return notes(redis, killed_at)[0] - killed_at


def notes(redis: Redis, since: float) -> list[float]:
    """When jobs ran that were due after `since`, in Unix seconds."""
    noted = (text.split() for text in redis.lrange(NOTES, 0, -1))
    return [float(ran) for due, ran in noted if float(due) > since]


def start_rq(stack: ExitStack, place: Lab) -> Process:
    return stack.enter_context(rq_worker(place, None, f"rq-{time.time_ns()}", TUNED, "plain"))


def main() -> None:
    given = arguments(__doc__, rounds=5, peer=1, warmup=4, settle=5)
    with lab() as place:
        alive = [second_alive(place, given) for _ in range(given.rounds)]
        with_lease = [leased(place, given) for _ in range(given.rounds)]
        restarts = [by_restart(place, given) for _ in range(given.rounds)]
        peers = {
            "second_worker_alive": [by_rq(place, given, has_second=True) for _ in range(given.peer)],
            "by_restart": [by_rq(place, given, has_second=False) for _ in range(given.peer)],
        }
    found = {
        "second_worker_alive": {
            "first_fire": summary([one["first_fire"] for one in alive], 3),
            "latest_link": summary([one["latest"] for one in alive], 3),
            "leased_link": summary(with_lease, 3),
        },
        "by_restart": summary(restarts, 3),
        "rq_worker_with_scheduler_tuned": {name: summary(values, 1) for name, values in peers.items() if values},
    }
    aims = "second worker: 0.25 s, leased links 2.5 s; by restart: 5 s"
    report("failover", vars(given), {"seconds": found, "aim": aims})


if __name__ == "__main__":
    main()
