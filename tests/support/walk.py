"""The walk of one fire: which of our files and functions it enters, in order. `python -m tests.support.walk`.

A schedule fires once in a dispatcher and RQ's worker executes its run, in this process, over a real Valkey and SQLite.
An earlier fire has warmed up what is made once a process. Comprehensions and lambdas are not counted, nor is what only
an application's process has: the breaker.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import rqsched
from rqsched import Every
from rqsched.api.scheduler import Scheduler
from rqsched.chain.dispatcher import Dispatcher
from rqsched.chain.reconcile import acquire_interval, recover
from rqsched.chain.runtime import using
from rqsched.config import Settings
from rqsched.workflows import Registry, make_workflow
from tests.support import servers
from tests.support.env import open_worker
from tests.support.narrow import present
from tests.support.processes import wait_until

PACKAGE = Path(rqsched.__file__).parent


class Walk(NamedTuple):
    """What one fire passes through."""

    steps: list[CodeType]
    """The functions of the package in the order of their first entry."""
    deepest: list[CodeType]
    """Its deepest stack of them, the outermost first."""


def main() -> None:
    """Print the walk: one line a file, with the functions entered in it."""
    with tempfile.TemporaryDirectory() as folder, servers.valkey(Path(folder)) as server:
        taken = walk(f"sqlite:///{folder}/rqsched.db", server.url)
    files: dict[str, list[str]] = {}
    for code in taken.steps:
        files.setdefault(file_of(code), []).append(code.co_qualname)
    for number, (file, names) in enumerate(files.items(), 1):
        print(f"{number:2}. {file} ({len(names)}): {', '.join(names)}")
    print(f"\nthe deepest stack ({len(taken.deepest)}): {', '.join(code.co_qualname for code in taken.deepest)}")
    print(f"{len(files)} files, {len(taken.steps)} functions")


def file_of(code: CodeType) -> str:
    """The file of a function, below the package."""
    return str(Path(code.co_filename).relative_to(PACKAGE))


def walk(database_url: str, redis_url: str) -> Walk:
    """Fire one occurrence and execute its run."""
    settings = Settings(
        database_url=database_url, redis_url=redis_url, redis_breaker=0, reconcile_interval=timedelta(hours=1)
    )
    with closing(Scheduler(settings=settings, workflows=Registry())) as scheduler:
        calls: list[str] = []
        scheduler.runtime.workflows.add(make_workflow("note", calls.append))
        schedule = scheduler.create("report", "note", Every(timedelta(seconds=1)), args=["done"])
        dispatcher = Dispatcher(scheduler.runtime)
        recover(scheduler.runtime)
        acquire_interval(scheduler.runtime)  # so that no pass of reconcile falls into the walk
        for _ in range(2):
            wait_until(
                lambda: scheduler.runtime.now() >= present(schedule.refresh().state.due_at), what="the next occurrence"
            )
            worker = open_worker(scheduler.runtime)
            with using(scheduler.runtime), _watched() as taken:
                dispatcher.run_once()
                worker.work(burst=True, logging_level="CRITICAL")
        assert calls == ["done", "done"], "each of the two occurrences was fired and executed"
        return taken


@contextmanager
def _watched() -> Iterator[Walk]:
    """The functions of the package that any thread of this process enters inside the block."""
    taken = Walk([], [])

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _is_ours(frame.f_code):
            if frame.f_code not in taken.steps:
                taken.steps.append(frame.f_code)
            stack = [one.f_code for one, _ in traceback.walk_stack(frame) if _is_ours(one.f_code)]
            if len(stack) > len(taken.deepest):
                taken.deepest[:] = stack[::-1]

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield taken
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<")


if __name__ == "__main__":
    main()
