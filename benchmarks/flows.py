"""Workflows, and jobs of RQ alone, that benchmarks let workers execute."""

from __future__ import annotations

import time

from redis import Redis
from rq import get_current_job

from rqsched import workflow

NOTES = "benchmark:notes"
NOOP = "benchmark-noop"


@workflow(NOOP)
def noop() -> None:
    """Do nothing."""


def note(due: float) -> None:
    """Note when a job ran that was due at `due`, both in Unix seconds."""
    job = get_current_job()
    assert job is not None
    redis: Redis = job.connection
    redis.rpush(NOTES, f"{due} {time.time()}")


@workflow("benchmark-long", timeout=3_600)
def long(seconds: float) -> None:
    """Hold the worker's horse for so long."""
    time.sleep(seconds)
