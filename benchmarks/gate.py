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
    pass_through(job.connection)


def pass_through(redis: Redis) -> None:
    """Wait at the gate until it is opened."""
    redis.incr(WAITING)
    if redis.blpop([OPEN], timeout=PATIENCE) is None:
        raise TimeoutError("nobody opened the gate")
