"""Memory of the processes of `rqsched worker`: the private memory of each, and its share of all memory.

    python -m benchmarks.worker_memory --concurrency 1,4,16 --runs 50

After so many runs for each runner, from `smaps_rollup` (Linux). The peers are one `rq worker` and one SimpleWorker that
have executed as many no-op jobs, each with the worker it forked of.

Then the share of all memory of workers that have no run yet, one and `--workers` of them: `rqsched worker`, `rq worker`
with the preload, `rq worker`; and of `rqsched web`, which has answered once.

And the work horses of `rqsched worker` on each database, and of `rq worker`: medians of the memory of one at its end.
Private memory is shared with no other process: pages that it has written to, and pages that its worker has written to
meanwhile. The aim is at most 10 MB on PostgreSQL.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psutil
from redis import Redis
from rq import Queue

from benchmarks.horse import FIGURES, read_memory
from benchmarks.lab import (
    DATABASES,
    Lab,
    arguments,
    fill,
    fire_all,
    lab,
    minutes,
    put_noops,
    report,
    succeeded,
)
from benchmarks.processes import rq_worker, web, worker
from rqsched import Cron
from rqsched.testing import ManualClock
from tests.support.processes import Process, process_tree, wait_until
from tests.support.warm import cold

PATIENCE = 900
SETTLE = 3
"""Seconds after which a process that was just started rests."""
KIB = 1 << 10


def read_all(pid: int) -> list[tuple[str, float, float]]:
    """Read name, private and proportional MiB of a process and those below it, but for a horse about to be gone."""
    found = []
    for process in process_tree(pid):
        with suppress(OSError, psutil.NoSuchProcess):
            memory = read_memory(process.pid)
            found.append((process.name(), memory["Private"] / KIB, memory["Pss"] / KIB))
    return found


def describe(found: Sequence[tuple[str, float, float]]) -> dict[str, object]:
    """Add up the processes of each kind."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for name, private, share in found:
        kinds.setdefault("runner" if name.startswith("rqsched-run-") else name, []).append((private, share))
    each = {
        kind: {
            "processes": len(some),
            "private_mib": round(sum(one for one, _ in some) / len(some), 1),
            "pss_mib": round(sum(one for _, one in some) / len(some), 1),
        }
        for kind, some in kinds.items()
    }
    return {"all_pss_mib": round(sum(share for _, _, share in found), 1), "each": each}


def ours(place: Lab, count: int, each: int) -> dict[str, object]:
    """Measure a worker with so many runners; 0 is one that forks for each run."""
    words = ["--concurrency", str(count)] if count else []
    return execute_ours(place, "postgres", max(count, 1) * each, *words)


def execute_ours(place: Lab, database: str, runs: int, *words: str) -> dict[str, object]:
    """Let a worker execute so many runs; return the memory of its processes."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
    clock = ManualClock(due - timedelta(seconds=1))
    with place.runtime(database, clock) as runtime:
        fill(runtime, runs, Cron(f"{due.minute} {due.hour} * * *"))
        clock.set(due)
        fire_all(runtime, runs)
        process: AbstractContextManager[Process]
        process = worker(place, runtime.settings.database_url, f"memory-{time.time_ns()}", *words)
        with process as started:
            wait_until(lambda: succeeded(runtime) >= runs, timeout=PATIENCE, what="the last run")
            return describe(read_all(started.pid))


def theirs(place: Lab, each: int, *words: str) -> dict[str, object]:
    """Measure a worker of RQ."""
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    queue = Queue("benchmark-noops", connection=redis)
    keys = [job.key for job in put_noops(queue, each)]
    with rq_worker(place, None, f"rq-{time.time_ns()}", ["--quiet", *words], queue.name) as started:
        wait_until(lambda: not redis.exists(*keys), timeout=PATIENCE, what="the last job")
        return describe(read_all(started.pid))


def horses(execute: Callable[[], object], figures: Path) -> dict[str, object]:
    """Return the figures that horses wrote while this was executed; the first is left out."""
    os.environ[FIGURES] = str(figures)
    execute()
    found = [[float(word) for word in line.split()] for line in figures.read_text().splitlines()]
    later = found[1:] or found
    private, faults, cpu = (statistics.median(column) for column in zip(*later, strict=True))
    return {"private_mb": round(private * KIB / 1e6, 1), "page_faults": faults, "cpu_ms": round(cpu, 1)}


def measure_horses(place: Lab, runs: int) -> dict[str, object]:
    """Measure the work horses of `rqsched worker` on each database, and of `rq worker`."""
    own = ["--worker-class", "benchmarks.horse.MeasuringWorker"]
    measured = {
        database: horses(partial(execute_ours, place, database, runs, *own), place.folder / f"horses-{database}")
        for database in DATABASES
    }
    peer = partial(theirs, place, runs, "-w", "benchmarks.horse.MeasuringWorker")
    return {**measured, "rq worker": horses(peer, place.folder / "horses-rq")}


def idle(place: Lab, count: int, start: Callable[[str], AbstractContextManager[Process]]) -> object:
    """Start so many workers; return the MiB of all of them, and of each, once they are registered and do nothing."""
    redis = Redis.from_url(place.valkey.url)
    redis.flushdb()
    with ExitStack() as stack:
        started = [stack.enter_context(start(f"idle-{time.time_ns()}")) for _ in range(count)]
        wait_until(lambda: redis.scard("rq:workers") >= count, timeout=PATIENCE, what=f"{count} workers")
        time.sleep(SETTLE)
        shares = [share for process in started for _, _, share in read_all(process.pid)]
    return {"pss_mib": round(sum(shares), 1), "pss_mib_each": round(sum(shares) / count, 1), "processes": len(shares)}


def measure_idle(place: Lab, most: int) -> dict[str, object]:
    """Measure one worker of each kind and many, and `rqsched web`, on each database."""
    figures: dict[str, object] = {}
    counts = sorted({1, most})
    for count in counts:
        figures[f"{count} x rq worker"] = idle(place, count, _rq_worker(place, None, "default"))
    for database in DATABASES:
        url = place.database_url(database)
        for count in counts:
            figures[f"{database}: {count} x rqsched worker"] = idle(place, count, partial(worker, place, url))
            preload = _rq_worker(place, url, "-c", "rqsched.preload", "rqsched", "default")
            figures[f"{database}: {count} x rq worker with preload"] = idle(place, count, preload)
        with web(place, url, f"web-{database}") as (process, is_ready):
            wait_until(is_ready, timeout=PATIENCE, what="the first answer")
            time.sleep(SETTLE)
            figures[f"{database}: rqsched web"] = describe(read_all(process.pid))
    return figures


def _rq_worker(place: Lab, url: str | None, *words: str) -> Callable[[str], AbstractContextManager[Process]]:
    return lambda name: rq_worker(place, url, name, ["--quiet"], *words)


def main() -> None:
    given = arguments(__doc__, concurrency="1,4,16", runs=50, workers=20)
    with cold(), lab() as place:
        figures = {f"concurrency {n}": ours(place, int(n), given.runs) for n in given.concurrency.split(",")}
        figures["a fork per run"] = ours(place, 0, given.runs)
        figures["rq worker"] = theirs(place, given.runs)
        figures["rq SimpleWorker"] = theirs(place, given.runs, "-w", "rq.SimpleWorker")
        without_a_run = measure_idle(place, given.workers)
        at_their_end = measure_horses(place, given.runs)
    aim = "a horse of at most 10 MB on PostgreSQL"
    report("worker_memory", vars(given), {"memory": figures, "idle": without_a_run, "horses": at_their_end, "aim": aim})


if __name__ == "__main__":
    main()
