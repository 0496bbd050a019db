"""Real processes for the benchmarks that need workers: started, and ended by pid."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import psutil
from redis import Redis
from rq import Queue

from benchmarks.gate import OPEN, PATIENCE, WAITING
from benchmarks.lab import Lab
from tests.support.processes import Process, process_tree, rqsched_command, running, wait_until
from tests.support.servers import free_port


def environment(place: Lab, database_url: str | None) -> dict[str, str]:
    """Give the environment of a worker on the lab's servers; the benchmarks' workflows are imported."""
    return {
        **os.environ,
        **({"RQSCHED_DATABASE_URL": database_url} if database_url else {}),
        "RQSCHED_REDIS_URL": place.valkey.url,
        "RQSCHED_IMPORTS": "benchmarks.flows",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }


@contextmanager
def worker(place: Lab, database_url: str | None, name: str, *words: str) -> Iterator[Process]:
    """Run an `rqsched worker` inside the block; `words` are its options and queues."""
    command = rqsched_command("worker", *words)
    with running(command, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process


@contextmanager
def web(place: Lab, database_url: str, name: str) -> Iterator[tuple[Process, Callable[[], bool]]]:
    """Run an `rqsched web` inside the block; gives it, and a function that asks whether it is ready."""
    port = free_port()
    command = rqsched_command("web", "--port", str(port))
    with running(command, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process, partial(_answers, f"http://127.0.0.1:{port}/readyz")


def _answers(url: str) -> bool:
    with suppress(OSError), urlopen(url, timeout=5) as answer:
        return int(answer.status) == HTTPStatus.OK
    return False


@contextmanager
def rq_worker(
    place: Lab, database_url: str | None, name: str, options: Sequence[str], *queues: str, command: str = "worker"
) -> Iterator[Process]:
    """Run a plain `rq worker` (or `rq worker-pool`, by its command) inside the block."""
    words = [str(Path(sys.executable).parent / "rq"), command, "--url", place.valkey.url, *options, *queues]
    with running(words, log_path=place.folder / f"{name}.log", env=environment(place, database_url)) as process:
        yield process


@contextmanager
def celery_worker(place: Lab, name: str, processes: int) -> Iterator[Process]:
    """Run Celery's prefork pool of so many processes inside the block."""
    words = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_tasks", "worker", "-c", str(processes)]
    quiet = ["--loglevel", "WARNING", "--without-gossip", "--without-mingle"]
    with running([*words, *quiet], log_path=place.folder / f"{name}.log", env=environment(place, None)) as process:
        yield process


def build_gate(queue: Queue, workers: int = 1) -> None:
    """Put a gate before all that is on the queue: each of so many workers will stop there before its first job."""
    for _ in range(workers):
        queue.enqueue("benchmarks.gate.hold", at_front=True, result_ttl=0, job_timeout=2 * PATIENCE)


def open_gate(redis: Redis, workers: int = 1) -> float:
    """Let the workers begin as soon as all of them, started and warm, wait at the gate; returns when that was."""
    wait_until(lambda: int(redis.get(WAITING) or 0) >= workers, timeout=PATIENCE, what="every worker at the gate")
    begun = time.perf_counter()
    redis.rpush(OPEN, *range(workers))
    redis.delete(WAITING)
    return begun


def rate_of(
    count: int, queue: Queue, workers: int, process: AbstractContextManager[Process], wait: Callable[[], object]
) -> float:
    """Measure how many of `count` end in a second, from the moment that warm workers may begin until `wait` is over."""
    build_gate(queue, workers)
    return rate_behind_gate(count, queue.connection, workers, process, wait)


def rate_behind_gate(
    count: int, redis: Redis, workers: int, process: AbstractContextManager[Process], wait: Callable[[], object]
) -> float:
    """Measure the same with the jobs that hold the workers queued already."""
    return cost_behind_gate(count, redis, workers, process, wait).rate


class Cost(NamedTuple):
    """The cost of what warm workers did."""

    rate: float
    """How many ended in a second."""
    cpu_ms: float
    """The CPU of each: of the workers and all processes below them."""
    servers_ms: float
    """The CPU of each in the servers that were named."""


def cost_behind_gate(
    count: int,
    redis: Redis,
    workers: int,
    process: AbstractContextManager[Process],
    wait: Callable[[], object],
    servers: Sequence[int] = (),
) -> Cost:
    """Measure as `rate_behind_gate` does, and the CPU, also of the processes of `servers`."""
    with process as started:
        begun = open_gate(redis, workers)
        used, served = cpu_of([started.pid]), cpu_of(servers)
        wait()
        elapsed = time.perf_counter() - begun
        ended, had_served = cpu_of([started.pid]), cpu_of(servers)
        return Cost(count / elapsed, (ended - used) / count, (had_served - served) / count)


def cpu_of(pids: Sequence[int]) -> float:
    """Return the milliseconds of CPU that processes and all below them have used; those that ended are included."""
    processes = [one for pid in pids for one in process_tree(pid)]
    found = 0.0
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # its parent has its CPU when it is asked next
            found += 1_000 * sum(one.cpu_times()[:4])
    return found


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
