"""Workflows, and jobs of RQ alone, that benchmarks let workers execute."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from redis import Redis
from rq import get_current_job

from rqsched import workflow

NOTES = "benchmark:notes"
NOOP = "benchmark-noop"
EACH = "benchmark-each"
TARGETS = "BENCHMARK_TARGETS"
"""The variable with the number of targets that a fan-out names."""


@workflow(NOOP)
def noop() -> None:
    """Do nothing."""


def name_targets() -> Iterator[str]:
    """Name as many targets as the benchmark wants."""
    return map(str, range(int(os.environ[TARGETS])))


@workflow(EACH, targets=name_targets)
def noop_each(target: str) -> None:
    """Do nothing with a target."""


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
