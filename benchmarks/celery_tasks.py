"""The tasks of a Celery worker beside which `runs` is measured, where Celery is installed: a no-op, and the gate.

A task is acknowledged when it has ended, as a run is recorded. Nothing of ours is imported but the gate's names.
"""

from __future__ import annotations

import os

from celery import Celery
from redis import Redis

from benchmarks.gate import pass_through

QUEUE = "celery"
UNACKNOWLEDGED = "unacked"
"""Redis keys of Celery's transport: the waiting tasks, and the taken tasks that are not acknowledged."""

app = Celery("benchmarks", broker=os.environ.get("RQSCHED_REDIS_URL"))
app.conf.update(task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


@app.task(name="hold")  # type: ignore[untyped-decorator]
def hold() -> None:
    """Hold the process at the gate."""
    with Redis.from_url(os.environ["RQSCHED_REDIS_URL"]) as redis:
        pass_through(redis)
