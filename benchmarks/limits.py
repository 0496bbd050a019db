"""Runs a second of groups of which only so many run at once (docs/limits.md), beside runs without a limit, in turn.

    python -m benchmarks.limits --rounds 3
    python -m benchmarks.limits --runs 500 --runners 2 --clients 32

`runners`: what `rqsched worker --concurrency` executes of one group of 100, with two runners and with eight. The aim is
at least 0.8 of its rate without a limit. `clients`: processes that claim, end and grant on PostgreSQL and
execute nothing: without a limit, with one group of 100, and with 1 000 groups of 1. All runs have been fired before the
clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any, cast

import sqlalchemy as sa
from rq import Queue

from benchmarks.lab import Lab, alternate, arguments, fill, fire_all, lab, minutes, paired, report, succeeded, summary
from benchmarks.processes import at_the_line, rate_of, worker
from rqsched import Cron
from rqsched.config import Settings
from rqsched.features.limits import store as limits
from rqsched.features.limits.decide import Bounds
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import publish_end, write_end
from rqsched.kernel.decide.ids import parse_run_job_id
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store.tables import runs, schedules
from rqsched.testing import ManualClock
from tests.support.processes import wait_until

NUMBER = 100
GROUPS = 1_000
PATIENCE = 900
POSTGRES = "postgres"


def prepare(runtime: Runtime, clock: ManualClock, count: int, groups: int) -> None:
    """Fire one run of each of `count` schedules; they are of so many groups, none for 0."""
    due = clock.now() + timedelta(seconds=1)
    fill(runtime, count, Cron(f"{due.minute} {due.hour} * * *"))
    if groups:
        number = NUMBER if groups == 1 else 1
        uids = sorted(runtime.database.read(lambda connection: connection.scalars(sa.select(schedules.c.uid)).all()))

        def join(connection: sa.Connection) -> None:
            for at in range(groups):
                limits.make(connection, f"default/g{at}", Bounds(number), clock.now())
                mine = sa.update(schedules).where(schedules.c.uid.in_(uids[at::groups]))
                connection.execute(mine.values(limit_group=f"default/g{at}"))

        runtime.database.transact(join)
    clock.set(due)
    fire_all(runtime, count)
    # They were granted by a clock that stands still.
    fresh = sa.update(runs).where(runs.c.granted_at.is_not(None)).values(granted_at=datetime.now(UTC))
    runtime.database.transact(lambda connection: connection.execute(fresh))


def by_runners(place: Lab, count: int, runners: int, groups: int) -> float:
    """Measure the runs that a worker's runners execute in a second."""
    clock = ManualClock(datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1) - timedelta(seconds=1))
    with place.runtime(POSTGRES, clock) as runtime:
        prepare(runtime, clock, count, groups)
        queue = Queue(runtime.settings.default_queue, connection=runtime.transport.redis)
        process = worker(
            place, runtime.settings.database_url, f"w-{time.time_ns()}", "--concurrency", str(runners), queue.name
        )
        wait = partial(wait_until, lambda: succeeded(runtime) >= count, timeout=PATIENCE, what="the last run")
        return rate_of(count, queue, runners, process, wait)


def by_clients(place: Lab, count: int, clients: int, groups: int) -> float:
    """Measure the runs that processes claim and end in a second."""
    clock = ManualClock(datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1) - timedelta(seconds=1))
    with place.runtime(POSTGRES, clock) as runtime:
        prepare(runtime, clock, count, groups)
        urls = runtime.settings.database_url, runtime.redis_url
        with at_the_line(clients, claim_and_end, *urls, count) as (begin, _):
            begin()
            began = time.perf_counter()
            wait_until(lambda: succeeded(runtime) >= count, timeout=PATIENCE, what="the last run")
            return count / (time.perf_counter() - began)


def claim_and_end(gate: Barrier, database_url: str, redis_url: str, count: int) -> None:
    """Be a client: claim the queued runs, and end them at once."""
    runtime = make_runtime(Settings(database_url=database_url, redis_url=redis_url))
    redis, key = runtime.transport.redis, f"rq:queue:{runtime.settings.default_queue}"
    runtime.now()
    gate.wait()
    done = AttemptResult(AttemptOutcome.SUCCEEDED)
    while (taken := cast("tuple[bytes, bytes] | None", redis.blpop([key], timeout=1))) or succeeded(runtime) < count:
        job = None if taken is None else parse_run_job_id(taken[1].decode())
        claim = None if job is None else claim_run(runtime, job)
        if claim is not None:
            publish_end(runtime, write_end(runtime, claim, done, patience=runtime.end_patience))


def main() -> None:
    given = arguments(__doc__, runs=1_000, runners="2,8", clients=32, rounds=3)
    figures: dict[str, Any] = {}
    with lab() as place:
        for number in [int(one) for one in given.runners.split(",") if one]:
            kinds = {"free": 0, "limited": 1}
            sides = {name: partial(by_runners, place, given.runs, number, groups) for name, groups in kinds.items()}
            figures[f"{number} runners"] = measure(given.rounds, sides)
        if given.clients:
            kinds = {"free": 0, "limited": 1, "groups_of_1": GROUPS}
            sides = {
                name: partial(by_clients, place, 2 * given.runs, given.clients, groups)
                for name, groups in kinds.items()
            }
            figures[f"{given.clients} clients"] = measure(given.rounds, sides)
    report("limits", vars(given), {"figures": figures, "aim": "limited runners: at least 0.8 of free ones"})


def measure(rounds: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, Any]:
    """Measure the sides in turn, and each beside the free one."""
    found = alternate(rounds, sides)
    rates = {name: summary(samples) for name, samples in found.items()}
    return rates | {f"{name}_to_free": paired(found[name], found["free"]) for name in found if name != "free"}


if __name__ == "__main__":
    main()
