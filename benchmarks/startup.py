"""Start-up: the CPU of a command from its start to its answer, beside `python -c "import sqlalchemy, rq"`.

    python -m benchmarks.startup --rounds 10

The CPU of the whole process, its end included, on databases with one schedule: seconds on the clock say more about what
else the machine does. The modules are compiled before. The aim is at most 1.5, and for `list` on SQLite 1.0.
Another peer is `rq info`.

And the CPU of processes and of all below them until they are of use: a worker until its first run has ended, beside
`rq worker` until its first job has, and `rqsched web` until it answers.
"""

from __future__ import annotations

import compileall
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from redis import Redis
from rq import Queue

from benchmarks.lab import DATABASES, Lab, arguments, fill, lab, minutes, paired, put_noops, report, succeeded, summary
from benchmarks.processes import cpu_of, rq_worker, web, worker
from rqsched import Cron
from rqsched.testing import ManualClock
from tests.support.child import BIN
from tests.support.processes import Process, rqsched_command, wait_until
from tests.support.warm import cold

PEER = "import sqlalchemy, rq"
IMPORTS = ("import rqsched", "import rqsched.client", "import rqsched.api.scheduler")
COMMANDS = (
    ["--version"],
    ["--help"],
    ["list"],
    ["list", "-o", "json"],
    ["describe", "a"],
    ["pause", "a"],
    ["resume", "a"],
    ["history", "a"],
    ["doctor"],
    ["create", "--help"],
)
PATIENCE = 300
PRELOAD, QUEUES = ["-c", "rqsched.preload", "--quiet"], ("rqsched", "default")
_HAS_TROUBLE = 1
"""The exit code of a doctor that sees no worker."""


def cpu(words: Sequence[str | Path], environment: dict[str, str]) -> float:
    """Run a process to its end; returns its milliseconds of CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(word) for word in words], env={**os.environ, **environment}, capture_output=True, check=False
    )
    if done.returncode not in {0, _HAS_TROUBLE if "doctor" in words else 0}:
        raise RuntimeError(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1_000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def cpu_until(process: AbstractContextManager[Process], is_done: Callable[[], object], what: str) -> float:
    """Start a process; return the milliseconds of CPU that it and those below it have taken when it is done."""
    with process as started:
        wait_until(is_done, timeout=PATIENCE, what=what)
        return cpu_of([started.pid])


def first_run(place: Lab, database: str, number: int, *, is_ours: bool) -> float:
    """Measure `rqsched worker`, or `rq worker` with the preload, until it has fired a due schedule and run it."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) - minutes(1)
    with place.runtime(database, ManualClock(due - timedelta(seconds=1))) as runtime:
        fill(runtime, 1, Cron(f"{due.minute} {due.hour} * * *"))
        url, name = runtime.settings.database_url, f"first-run-{number}"
        process = worker(place, url, name) if is_ours else rq_worker(place, url, name, PRELOAD, *QUEUES)
        return cpu_until(process, lambda: succeeded(runtime), "the first run")


def first_job(place: Lab, number: int) -> float:
    """Measure `rq worker` until it has done one job."""
    redis = Redis.from_url(place.valkey.url)
    redis.flushdb()
    queue = Queue("benchmark-noops", connection=redis)
    (job,) = put_noops(queue, 1)
    process = rq_worker(place, None, f"first-job-{number}", ["--quiet"], queue.name)
    return cpu_until(process, lambda: not redis.exists(job.key), "the first job")


def first_answer(place: Lab, url: str, number: int) -> float:
    """Measure `rqsched web` until it is ready."""
    with web(place, url, f"first-answer-{number}") as (process, is_ready):
        wait_until(is_ready, timeout=PATIENCE, what="the first answer")
        return cpu_of([process.pid])


def main() -> None:
    given = arguments(__doc__, rounds=10, started=3)
    compileall.compile_dir(Path(__file__).parents[1] / "rqsched", quiet=1)
    found: dict[str, list[float]] = {}
    with cold(), lab() as place:
        environments = {
            kind: {
                "RQSCHED_DATABASE_URL": place.database_url(kind),
                "RQSCHED_REDIS_URL": f"{place.valkey.url}/{number}",
            }
            for number, kind in enumerate(DATABASES)
        }
        for environment in environments.values():
            cpu(rqsched_command("create", "a", "time.time", "--every", "1h"), environment)
        numbers = count()
        for _ in range(given.rounds):
            found.setdefault("peer", []).append(cpu([sys.executable, "-c", PEER], {}))
            found.setdefault("rq info", []).append(cpu([BIN / "rq", "info", "--url", place.valkey.url], {}))
            for code in IMPORTS:
                found.setdefault(code, []).append(cpu([sys.executable, "-c", code], {}))
            for kind, environment in environments.items():
                for words in COMMANDS:
                    name = f"{kind}: {' '.join(words)}"
                    found.setdefault(name, []).append(cpu(rqsched_command(*words), environment))
                create = rqsched_command("create", f"n{next(numbers)}", "time.time", "--every", "1h")
                found.setdefault(f"{kind}: create", []).append(cpu(create, environment))
        until: dict[str, list[float]] = {}
        for number in range(given.started):
            until.setdefault("rq worker: first job", []).append(first_job(place, number))
            for kind, environment in environments.items():
                for name, is_ours in (("rqsched worker", True), ("rq worker with preload", False)):
                    taken = first_run(place, kind, next(numbers), is_ours=is_ours)
                    until.setdefault(f"{kind}: {name}: first run", []).append(taken)
                taken = first_answer(place, environment["RQSCHED_DATABASE_URL"], next(numbers))
                until.setdefault(f"{kind}: rqsched web: first answer", []).append(taken)
    peer = found.pop("peer")
    report(
        "startup",
        vars(given),
        {
            "cpu_ms": {"peer": summary(peer), **{name: summary(one) for name, one in found.items()}},
            "ratio": {name: paired(one, peer) for name, one in found.items()},
            "cpu_ms_until": {name: summary(one) for name, one in until.items()},
            "aim": "each at most 1.5; list on SQLite at most 1.0",
        },
    )


if __name__ == "__main__":
    main()
