"""Real processes for the benchmarks that need workers: started, and ended by pid."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.lab import Lab
from tests.processes import Process, running


def environment(place: Lab, database_url: str) -> dict[str, str]:
    """Give the environment of a worker on the lab's servers; the benchmarks' workflows are imported."""
    return {
        **os.environ,
        "RQSCHED_DATABASE_URL": database_url,
        "RQSCHED_REDIS_URL": place.valkey.url,
        "RQSCHED_IMPORTS": "benchmarks.lab,benchmarks.flows",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }


@contextmanager
def worker(place: Lab, database_url: str, name: str, *queues: str) -> Iterator[Process]:
    """Run an `rqsched worker` inside the block."""
    command = [sys.executable, "worker.py", *queues]
    with running(command, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process


@contextmanager
def rq_worker(place: Lab, database_url: str, name: str, options: Sequence[str], *queues: str) -> Iterator[Process]:
    """Run a plain `rq worker` inside the block."""
    command = [str(Path(sys.executable).parent / "rq"), "worker", "--url", place.valkey.url, *options, *queues]
    with running(command, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process
