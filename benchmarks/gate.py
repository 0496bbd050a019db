"""A job that holds the worker which performs it. Plain RQ workers import this, so it imports nothing but RQ."""

from __future__ import annotations

from redis import Redis
from rq import get_current_job

WAITING = "benchmark:waiting"
OPEN = "benchmark:open"
PATIENCE = 120
"""Seconds a worker waits at the gate, and a benchmark for its workers."""


def hold() -> None:
    """Count the worker as waiting, and hold it until the gate is opened for it."""
    job = get_current_job()
    assert job is not None
    redis: Redis = job.connection
    redis.incr(WAITING)
    if redis.blpop([OPEN], timeout=PATIENCE) is None:
        raise TimeoutError("nobody opened the gate")
