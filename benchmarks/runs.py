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

The floor of a kind is a job of RQ that does the two transactions of a run in bare SQL, with the same connection model
(`benchmarks.floor`). A kind's share of it is the floor's CPU divided by ours: of the workers and of the servers
(PostgreSQL and Valkey). All kinds are measured in turn within each round. `steps` are the CPU and the page faults of a
plain horse of RQ, of the floor and of ours, and of each step of the floor. The aim is 0.85 of the floor.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import sqlalchemy as sa
from redis import Redis
from rq import Queue

from benchmarks.floor import STEPS
from benchmarks.horse import FIGURES
from benchmarks.lab import (
    DATABASES,
    Lab,
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
from benchmarks.processes import Cost, build_gate, celery_worker, cost_behind_gate, rq_worker, worker
from rqsched import Cron
from rqsched.kernel.store.tables import runs
from rqsched.testing import ManualClock
from tests.support.processes import Process, wait_until
from tests.support.warm import cold

KINDS = ("fork", "class", "rqsched", "simple", "pool", "runners")
PRELOAD = ["-c", "rqsched.preload"]
OUR_CLASS = ["-w", "rqsched.rq.Worker"]
FLOOR: Mapping[str, tuple[str, Sequence[str]]] = {
    "fork": ("connect", []),
    "pool": ("connect", []),
    "simple": ("keep", []),
    "runners": ("keep", []),
    "class": ("ask", ["-w", "benchmarks.floor.WritingWorker"]),
    "rqsched": ("ask", ["-w", "benchmarks.floor.WritingWorker"]),
}
"""The job of the floor of each kind, and the options of its worker."""
PATIENCE = 900


@dataclass(frozen=True)
class Kind:
    """One kind of worker."""

    name: str
    count: int
    """How many runs or jobs it executes in a round."""
    workers: int
    """How many of its workers take them from the queue."""

    def ours(self, place: Lab, database: str, options: Sequence[str] = ()) -> Cost:
        """Measure our runs."""
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
                words = ["--concurrency", str(self.workers)] if self.name == "runners" else []
                process = worker(place, database_url, f"ours-{time.time_ns()}", *words, queue.name)
            else:
                own = OUR_CLASS if self.name == "class" else PRELOAD
                process = self._rq(place, queue, database_url, [*own, *options])
            return self._cost(place, queue, process, lambda: succeeded(runtime) >= self.count)

    def floor(self, place: Lab, database: str, options: Sequence[str] = ()) -> Cost:
        """Measure RQ's jobs with the two transactions of a run in bare SQL."""
        due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
        clock = ManualClock(due - timedelta(seconds=1))
        with place.runtime(database, clock) as runtime:
            fill(runtime, self.count, Cron(f"{due.minute} {due.hour} * * *"))
            clock.set(due)
            fire_all(runtime, self.count)
            uids = runtime.database.read(lambda c: c.execute(sa.select(runs.c.uid, runs.c.schedule_uid)).all())
            queue = Queue("benchmark-floor", connection=runtime.transport.redis)
            job, own = FLOOR[self.name]
            path = f"benchmarks.floor.{job}"
            queue.enqueue_many([Queue.prepare_data(path, args=tuple(pair), result_ttl=0) for pair in uids])
            words = ["-c", "benchmarks.floor", *own, *options]
            process = self._rq(place, queue, runtime.settings.database_url, words)
            return self._cost(place, queue, process, lambda: succeeded(runtime) >= self.count)

    def theirs(self, place: Lab, options: Sequence[str] = ()) -> Cost:
        """Measure RQ's own jobs."""
        redis = Redis.from_url(place.valkey.url)
        redis.flushall()
        queue = Queue("benchmark-noops", connection=redis)
        keys = [job.key for job in put_noops(queue, self.count)]
        process = self._rq(place, queue, options=options)
        return self._cost(place, queue, process, lambda: not redis.exists(*keys))

    def celery(self, place: Lab) -> Cost:
        """Measure Celery's tasks, in as many processes."""
        from benchmarks import celery_tasks as tasks  # noqa: PLC0415 - where it is installed

        redis = Redis.from_url(place.valkey.url)
        redis.flushall()
        with tasks.app.connection_for_write(place.valkey.url) as connection:
            for task, count in ((tasks.hold, self.workers), (tasks.noop, self.count)):
                for _ in range(count):
                    task.apply_async(connection=connection)
        process = celery_worker(place, f"celery-{time.time_ns()}", self.workers)
        wait = partial(_wait, lambda: not redis.exists(tasks.QUEUE, tasks.UNACKNOWLEDGED))
        return cost_behind_gate(self.count, redis, self.workers, process, wait, _servers(place))

    def peers(self, others: Sequence[Kind]) -> Mapping[str, Callable[[Lab], Cost]]:
        """Return the peers of this kind by their names in the figures."""
        if self.name != "runners":
            return {"rq": self.theirs}
        beside: dict[str, Callable[[Lab], Cost]] = {
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
            "runners": ["-n", str(self.workers), "-w", "rq.SimpleWorker"],
        }[self.name]
        command = "worker-pool" if self.name in {"pool", "runners"} else "worker"
        words = ["--quiet", *own, *options]
        return rq_worker(place, database_url, f"rq-{time.time_ns()}", words, queue.name, command=command)

    def _cost(
        self, place: Lab, queue: Queue, process: AbstractContextManager[Process], have_ended: Callable[[], bool]
    ) -> Cost:
        build_gate(queue, self.workers)
        wait = partial(_wait, have_ended)
        return cost_behind_gate(self.count, queue.connection, self.workers, process, wait, _servers(place))


def _wait(have_ended: Callable[[], bool]) -> None:
    wait_until(have_ended, timeout=PATIENCE, interval=0.02, what="the end of the last run")


def _servers(place: Lab) -> list[int]:
    assert place.postgres.process is not None, "started"
    return [place.valkey.pid, place.postgres.process.pid]


def main() -> None:
    given = arguments(__doc__, kinds=",".join(KINDS), forked=50, simple=250, workers=os.cpu_count() or 1, rounds=5)
    counts = {"simple": given.simple, "runners": given.simple * given.workers}
    kinds = [
        Kind(name, counts.get(name, given.forked), given.workers if name in {"pool", "runners"} else 1)
        for name in KINDS
    ]
    wanted = [kind for kind in kinds if kind.name in given.kinds.split(",")]
    with cold(), lab() as place:
        sides: dict[tuple[str, str], Callable[[], Cost]] = {}
        for kind in wanted:
            for name, peer in kind.peers(kinds).items():
                sides[kind.name, name] = partial(peer, place)
            for database in DATABASES:
                sides[kind.name, database] = partial(kind.ours, place, database)
                sides[kind.name, f"{database} floor"] = partial(kind.floor, place, database)
        found: dict[tuple[str, str], list[Cost]] = {side: [] for side in sides}
        for _ in range(given.rounds):
            for side, measure in sides.items():
                found[side].append(measure())
        steps = measure_steps(place, kinds[0]) if kinds[0] in wanted else {}
    figures = {kind.name: describe(kind, list(kind.peers(kinds)), found) for kind in wanted}
    aim = "half of RQ's rate for each kind; runners: SimpleWorker's, and 4 times that of `rq worker`; 0.85 of the floor"
    report("runs", vars(given), {"kinds": figures, "steps": steps, "aim": aim})


def describe(kind: Kind, peers: Sequence[str], found: Mapping[tuple[str, str], Sequence[Cost]]) -> dict[str, object]:
    """Return the figures of one kind."""

    def rates(side: str) -> list[float]:
        return [one.rate for one in found[kind.name, side]]

    def cpu(side: str) -> list[float]:
        return [one.cpu_ms + one.servers_ms for one in found[kind.name, side]]

    floors = {database: f"{database} floor" for database in DATABASES}
    return {
        "runs_per_second": {database: summary(rates(database)) for database in DATABASES},
        "floor_per_second": {database: summary(rates(floors[database])) for database in DATABASES},
        **{f"{name}_jobs_per_second": summary(rates(name)) for name in peers},
        **{
            f"ratio_to_{name}": {database: paired(rates(database), rates(name)) for database in DATABASES}
            for name in peers
        },
        "cpu_ms": {
            side: {
                "workers": summary([one.cpu_ms for one in found[kind.name, side]]),
                "servers": summary([one.servers_ms for one in found[kind.name, side]]),
            }
            for side in (*DATABASES, *floors.values(), *peers)
        },
        "share_of_floor": {
            database: {
                "cpu": paired(cpu(floors[database]), cpu(database)),
                "rate": paired(rates(database), rates(floors[database])),
            }
            for database in DATABASES
        },
    }


def measure_steps(place: Lab, plain: Kind) -> dict[str, object]:
    """Measure where the time of a plain horse goes: CPU and page faults, of whole horses and of the floor's steps."""
    measuring = ["-w", "benchmarks.horse.MeasuringWorker"]
    horses, steps = {"rq": _of_horses(place, partial(plain.theirs, place, measuring))}, {}
    for database in DATABASES:
        horses[database] = _of_horses(place, partial(plain.ours, place, database, measuring))
        os.environ[STEPS] = str(place.folder / f"steps-{database}")
        horses[f"{database} floor"] = _of_horses(place, partial(plain.floor, place, database, measuring))
        found = iter(_medians(Path(os.environ.pop(STEPS))))
        steps[database] = {
            name: {"cpu_ms": round(next(found), 2), "page_faults": next(found)}
            for name in ("connect", "claim", "end", "close")
        }
    return {"horses": horses, "floor": steps}


def _of_horses(place: Lab, measure: Callable[[], object]) -> dict[str, float]:
    figures = place.folder / f"horses-{time.time_ns()}"
    os.environ[FIGURES] = str(figures)
    measure()
    del os.environ[FIGURES]
    _, faults, cpu = _medians(figures)
    return {"cpu_ms": round(cpu, 1), "page_faults": faults}


def _medians(figures: Path) -> list[float]:
    """Return the median of each column; the first line, of a cold process, is left out."""
    rows = [[float(word) for word in line.split()] for line in figures.read_text().splitlines()]
    return [statistics.median(column) for column in zip(*(rows[1:] or rows), strict=True)]


if __name__ == "__main__":
    main()
