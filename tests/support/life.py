"""The life of a schedule by the kernel alone: it fires, its runs fail, are retried and end, and so does the schedule.

`python -m tests.support.life DATABASE_URL REDIS_URL` lives it in this process, with work horses that it forks.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import rq
from rq import Queue

from rqsched.clock import Clock
from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.kernel.chain import create, option_checks
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.runtime import Runtime, using
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.queries import runs
from rqsched.kernel.store import changes
from rqsched.run.rq_worker import make_run_worker_class
from rqsched.run.warm_up import warm_up
from rqsched.when.members import Every
from rqsched.workflows import Registry, current_run, make_workflow
from tests.support.narrow import present

MINUTE = timedelta(minutes=1)
START = datetime(2026, 1, 15, 12, tzinfo=UTC)
LIVED = {
    "schedule": "done",
    "runs": [["failed", 2], ["succeeded", 2]],
    "seen": ["active retrying", "active succeeded", "done retrying", "done failed"],
}
"""The report of a life: the statuses of the schedule and of its runs at the end, and after each step."""


class _Clock(Clock):
    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        return self.time


def main(database_url: str, redis_url: str) -> None:
    """Live one life, and print what was seen."""
    clock = _Clock()
    settings = Settings(database_url=database_url, redis_url=redis_url, redis_timeout=0)
    runtime = make_runtime(settings, clock=clock, workflows=Registry())
    runtime.transport.redis.flushall()
    with closing(runtime), using(runtime):
        print(json.dumps(live(runtime, clock)))


def live(runtime: Runtime, clock: _Clock) -> dict[str, object]:
    """Let one schedule fire twice: the first run fails once, and the second one in every attempt."""
    runtime.workflows.add(make_workflow("note", _note))
    options = {"retry": RetryPolicy(base=MINUTE, max_retries=1), "max_runs": 2, "overlap": "allow_all"}
    definition = option_checks.new_definition(runtime, "note", Every(10 * MINUTE), options, is_external=False)
    uid = create.create(runtime, ScheduleRequest(Named("default", "report"), definition)).uid
    recover(runtime)
    warm_up(runtime)
    seen = list[str]()
    for span in (10 * MINUTE, 2 * MINUTE) * 2:
        clock.time += span
        runtime.transport.redis.flushall()
        recover(runtime)
        Dispatcher(runtime).run_once()
        _work(runtime)
        seen.append(_told(runtime, uid))
    schedule = present(runtime.database.read(lambda connection: changes.find(connection, uid)))
    found = runtime.database.read(lambda connection: runs.list_runs(connection, uid, limit=10)).items
    return {"schedule": schedule.status, "runs": [[run.status, run.attempt] for run in found], "seen": seen}


def _note() -> None:
    run = current_run()
    if run.attempt == 1 or run.occurrence_at > START + 15 * MINUTE:
        raise RuntimeError("as the test wants it")


def _work(runtime: Runtime) -> None:
    worker = make_run_worker_class(rq.Worker)([Queue("default", connection=runtime.transport.redis)])
    worker.runtime = runtime  # type: ignore[attr-defined]
    worker.work(burst=True, logging_level="CRITICAL")


def _told(runtime: Runtime, uid: str) -> str:
    schedule = present(runtime.database.read(lambda connection: changes.find(connection, uid)))
    newest = runtime.database.read(lambda connection: runs.list_runs(connection, uid, limit=1)).items[0]
    return f"{schedule.status} {newest.status}"


if __name__ == "__main__":
    main(*sys.argv[1:])
