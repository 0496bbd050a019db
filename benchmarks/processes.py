"""Real processes for the benchmarks that need workers: started, and ended by pid."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from benchmarks.lab import Lab
from tests.processes import Process, running


def environment(place: Lab, database_url: str | None) -> dict[str, str]:
    """Give the environment of a worker on the lab's servers; the benchmarks' workflows are imported."""
    return {
        **os.environ,
        **({"RQSCHED_DATABASE_URL": database_url} if database_url else {}),
        "RQSCHED_REDIS_URL": place.valkey.url,
        "RQSCHED_IMPORTS": "benchmarks.lab,benchmarks.flows",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }


@contextmanager
def worker(place: Lab, database_url: str | None, name: str, *queues: str) -> Iterator[Process]:
    """Run an `rqsched worker` inside the block."""
    command = [sys.executable, "worker.py", *queues]
    with running(command, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process


@contextmanager
def rq_worker(
    place: Lab, database_url: str | None, name: str, options: Sequence[str], *queues: str
) -> Iterator[Process]:
    """Run a plain `rq worker` inside the block."""
    command = [str(Path(sys.executable).parent / "rq"), "worker", "--url", place.valkey.url, *options, *queues]
    with running(command, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process


@contextmanager
def at_the_line(
    count: int, work: Callable[..., None], *args: Any
) -> Iterator[tuple[Callable[[], int], list[SpawnProcess]]]:
    """Hold `count` processes that do `work(gate, *args)` and wait at the gate when they are ready.

    Gives what lets them all begin, and the processes, which are killed where the block ends.
    """
    context = get_context("spawn")
    gate = context.Barrier(count + 1, timeout=60)
    processes = [context.Process(target=work, args=(gate, *args)) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield gate.wait, processes
    finally:
        for process in processes:
            process.kill()
            process.join()
