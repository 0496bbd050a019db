"""The walk of one fire: which of our files and functions it enters, in order. `python -m tests.support.walk`.

A schedule fires once in a dispatcher and RQ's worker executes its run, in this process, over a real Valkey and SQLite.
An earlier fire has warmed up what is made once a process. Comprehensions and lambdas are not counted.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType

import rqsched
from rqsched import Every
from rqsched.api.scheduler import Scheduler
from rqsched.chain.dispatcher import Dispatcher
from rqsched.chain.reconcile import acquire_interval, recover
from rqsched.config import Settings
from rqsched.workflows import Registry, make_workflow
from tests.support import servers
from tests.support.env import work
from tests.support.narrow import present
from tests.support.processes import wait_until

PACKAGE = Path(rqsched.__file__).parent
Steps = dict[CodeType, None]
"""The functions of the package in the order of their first entry."""


def main() -> None:
    """Print the walk: one line a file, with the functions entered in it."""
    with tempfile.TemporaryDirectory() as folder, servers.valkey(Path(folder)) as server:
        steps = walk(f"sqlite:///{folder}/rqsched.db", server.url)
    files: dict[str, list[str]] = {}
    for code in steps:
        files.setdefault(str(Path(code.co_filename).relative_to(PACKAGE)), []).append(code.co_qualname)
    for number, (file, names) in enumerate(files.items(), 1):
        print(f"{number:2}. {file} ({len(names)}): {', '.join(names)}")
    print(f"\n{len(files)} files, {len(steps)} functions")


def walk(database_url: str, redis_url: str) -> Steps:
    """Fire one occurrence and execute its run; returns the functions entered."""
    settings = Settings(database_url=database_url, redis_url=redis_url, reconcile_interval=timedelta(hours=1))
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
            with _watched() as steps:
                dispatcher.run_once()
                work(scheduler.runtime)
        assert calls == ["done", "done"], "each of the two occurrences was fired and executed"
        return steps


@contextmanager
def _watched() -> Iterator[Steps]:
    """The functions of the package that any thread of this process enters inside the block."""
    steps: Steps = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            steps.setdefault(code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    main()
