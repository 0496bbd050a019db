"""Lateness: fire start minus due, in milliseconds, of schedules at mixed sub-second times.

    python -m benchmarks.lateness --seconds 300 --schedules 20

Idle, with a long run executing on the same worker, and with eight workers; beside `rq worker --with-scheduler` serving
the same links, and APScheduler 3 in a process of its own. Aims: p50 at most 5 ms, p99 at most 20 ms, never early.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from rq import Queue

from benchmarks.lab import Lab, arguments, fill, lab, report
from benchmarks.processes import rq_worker, worker
from rqsched import Every
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.store.tables import runs

PLAIN = ["--with-scheduler"]
APSCHEDULER = """
import json, sys, time
from datetime import datetime, timedelta, timezone
from apscheduler.schedulers.background import BackgroundScheduler
seconds, count, every = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
late, scheduler = [], BackgroundScheduler(timezone=timezone.utc)
begun = datetime.now(timezone.utc)
def fire(start):
    now = datetime.now(timezone.utc)
    late.append(((now - start).total_seconds() % every) * 1000)
for number in range(count):
    start = begun + timedelta(seconds=1 + every * number / count)
    scheduler.add_job(fire, "interval", seconds=every, start_date=start, args=[start])
scheduler.start(); time.sleep(seconds); scheduler.shutdown(wait=False); print(json.dumps(late))
"""


def measure(place: Lab, given: Any, *, workers: int = 1, plain: bool = False, busy: bool = False) -> list[float]:
    with place.runtime("postgres") as runtime, ExitStack() as stack:
        url = runtime.settings.database_url
        for number in range(workers):
            name = f"worker-{time.time_ns()}-{number}"
            if plain:
                stack.enter_context(rq_worker(place, url, name, PLAIN, "rqsched", "default"))
            else:
                stack.enter_context(worker(place, url, name, "default"))
        time.sleep(given.warmup)
        if busy:
            hold(runtime, given.seconds + 5)
        begun = runtime.now()
        for number in range(given.schedules):
            anchor = begun + timedelta(seconds=1 + given.every * number / given.schedules)
            spec = Every(timedelta(seconds=given.every), anchor=anchor)
            fill(runtime, 1, spec, prefix=f"late-{number}-", overlap="allow_all")
        time.sleep(given.seconds)
        return lateness(runtime, begun)


def hold(runtime: Runtime, seconds: float) -> None:
    """Let the worker's horse be busy for the whole measurement."""
    queue = Queue("default", connection=runtime.transport.redis)
    queue.enqueue("benchmarks.flows.long", seconds, job_timeout=int(seconds) + 60)


def lateness(runtime: Runtime, since: datetime) -> list[float]:
    statement = sa.select(runs.c.created_at, runs.c.due_at).where(runs.c.kind == "scheduled", runs.c.due_at >= since)
    rows = runtime.database.read(lambda connection: connection.execute(statement).all())
    return [(fired - due).total_seconds() * 1000 for fired, due in rows]


def apscheduler(given: Any) -> list[float]:
    command = [sys.executable, "-c", APSCHEDULER, str(given.seconds), str(given.schedules), str(given.every)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(late) for late in json.loads(done.stdout)]


def figures(late: list[float]) -> dict[str, Any]:
    ranked = sorted(late)
    if not ranked:
        return {"fires": 0}

    def at(share: float) -> float:
        return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 1)

    return {"fires": len(ranked), "p50": at(0.5), "p99": at(0.99), "max": at(1), "earliest": at(0)}


def main() -> None:
    given = arguments(__doc__, seconds=300, schedules=20, every=5, warmup=5, crowd=8)
    with lab() as place:
        found = {
            "idle": figures(measure(place, given)),
            "long_run_executing": figures(measure(place, given, busy=True)),
            "eight_workers": figures(measure(place, given, workers=given.crowd)),
            "rq_worker_with_scheduler": figures(measure(place, given, plain=True)),
            "apscheduler_3": figures(apscheduler(given)),
        }
    aims = "p50 at most 5 ms, p99 at most 20 ms, never early"
    report("lateness", vars(given), {"milliseconds": found, "measured_at": datetime.now(UTC).isoformat(), "aim": aims})


if __name__ == "__main__":
    main()
