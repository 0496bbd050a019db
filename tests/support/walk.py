"""The walk of one fire: which of our files and functions it enters, in order. `python -m tests.support.walk`.

A schedule fires once in a dispatcher in this process, over a real Valkey and SQLite or PostgreSQL. Its run is executed
in this process too, by RQ's SimpleWorker or by a runner, or in the horse that `rqsched worker` forks, whose steps come
back over a pipe. An earlier fire has warmed up the caches of the process. A lambda is a function; a comprehension is
not. The breaker is left out, because only an application's process has it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import rq
from redis import Redis
from rq import Queue

import rqsched
from rqsched import Every
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.runtime import Runtime, using
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.run.rq_worker import make_run_worker_class, make_worker
from rqsched.run.runner import make_runner_class, prepare_runner
from rqsched.run.runner_slot import Slot
from rqsched.run.warm_up import warm_up
from rqsched.workflows import Registry, make_workflow
from tests.support import servers
from tests.support.env import QUEUE, open_worker
from tests.support.narrow import present
from tests.support.processes import wait_until

PACKAGE = Path(rqsched.__file__).parent
FEATURES = ("features/", "machines/", "simulate/")
"""The folders below the package that hold features. Every other file belongs to the kernel."""
BY_THE_CLOCK = (
    "FreezeGate.ask_redis_now", "FreezeGate._ask_redis", "FreezeGate._read_redis", "Transport.read_freeze",
    "PatientWorker._register_again",
)  # fmt: skip
"""What a process repeats every few seconds: it reads the freeze and renews its registration. Whether that falls into a
fire depends on the speed of the machine, so these functions are not counted."""
EXECUTORS = ("simple", "runner", "horse")
"""The executor of the run: RQ's SimpleWorker, a runner, or a forked horse of `rqsched worker`'s class."""


class Step(NamedTuple):
    """One function that is entered."""

    file: str
    """Below the package."""
    function: str
    """Its qualified name."""

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"


class Walk(NamedTuple):
    """The functions of one fire."""

    steps: list[Step]
    """The functions of the package in the order of their first entry; those of a horse come last."""
    deepest: list[Step]
    """The deepest stack of them in this process, the outermost first."""

    @property
    def kernel(self) -> list[Step]:
        """Return the steps that belong to the kernel, without those of BY_THE_CLOCK."""
        return [step for step in self.steps if not step.file.startswith(FEATURES) and step.function not in BY_THE_CLOCK]

    @property
    def features(self) -> list[Step]:
        """Return the steps that belong to a feature."""
        return [step for step in self.steps if step.file.startswith(FEATURES)]


def main() -> None:
    """Print each walk as a count, and that of a SimpleWorker over SQLite in full; with `--json` all of each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey, postgres = stack.enter_context(servers.valkey(folder)), stack.enter_context(servers.postgres())
        urls = {"postgres": postgres.create_database(), "sqlite": f"sqlite:///{folder}/rqsched.db"}
        # PostgreSQL comes first, because a process that has used SQLite forks differently from then on.
        walks = dict[tuple[str, str], Walk]()
        for kind, url in urls.items():
            with closing(Database(url)) as database:
                schema_version.upgrade(database)
            Redis.from_url(valkey.url).flushall()  # another database may not use what belongs to the first
            walks |= {(kind, by): walk(url, valkey.url, by) for by in EXECUTORS}
    if "--json" in sys.argv:
        print(json.dumps([[kind, by, taken] for (kind, by), taken in walks.items()]))
        return
    whole = walks["sqlite", "simple"]
    for number, file in enumerate(dict.fromkeys(step.file for step in whole.steps), 1):
        names = [step.function for step in whole.steps if step.file == file]
        print(f"{number:2}. {file} ({len(names)}): {', '.join(names)}")
    print(f"\nthe deepest stack ({len(whole.deepest)}): {', '.join(step.function for step in whole.deepest)}\n")
    for (kind, by), taken in walks.items():
        print(f"{kind}, {by}: kernel {count(taken.kernel)}; features {count(taken.features)}")


def count(steps: list[Step]) -> str:
    """Return how many files and functions the steps enter, as a text."""
    return f"{len({step.file for step in steps})} files, {len(steps)} functions"


def read(text: str) -> dict[tuple[str, str], Walk]:
    """Read what `--json` printed, by database and executor."""
    return {
        (kind, by): Walk([Step(*step) for step in steps], [Step(*step) for step in deepest])
        for kind, by, (steps, deepest) in json.loads(text)
    }


def walk(database_url: str, redis_url: str, executor: str = "simple") -> Walk:
    """Fire one occurrence and let one of EXECUTORS execute its run."""
    settings = Settings(
        database_url=database_url, redis_url=redis_url, redis_timeout=0, reconcile_interval=timedelta(hours=1)
    )
    with closing(Scheduler(settings=settings, workflows=Registry())) as scheduler:
        scheduler.runtime.workflows.add(make_workflow("note", _note))
        dispatcher = Dispatcher(scheduler.runtime)
        recover(scheduler.runtime)
        # So that no pass of reconcile falls into the walk.
        scheduler.runtime.transport.acquire_interval(settings.reconcile_interval)
        work = _work_of(executor, scheduler.runtime)
        for number in range(2):
            # Hourly: on a slow machine, too, no second occurrence is due before the first run has ended.
            soon = Every(timedelta(hours=1), anchor=scheduler.runtime.now() + timedelta(seconds=0.5))
            schedule = scheduler.create(f"report-{executor}-{number}", "note", soon, args=["done"])
            wait_until(partial(_is_due, scheduler.runtime, schedule), what="the occurrence")
            with using(scheduler.runtime), _watched() as taken:
                dispatcher.run_once()
                work()
            assert [run.status for run in schedule.runs().items] == ["succeeded"], "it was fired and executed"
            schedule.delete()
        return taken


def _is_due(runtime: Runtime, schedule: ScheduleHandle) -> bool:
    return runtime.now() >= present(schedule.state.due_at)


def _note(word: str) -> str:
    return word


def _work_of(executor: str, runtime: Runtime) -> Callable[[], object]:
    """Return a function that executes the queued jobs and ends."""
    warm_up(runtime)
    if executor == "simple":
        simple = open_worker(runtime)
        return lambda: simple.work(burst=True, logging_level="CRITICAL")
    if executor == "runner":
        made = make_worker(make_runner_class(rq.Worker), runtime, [QUEUE], name="walking-runner")
        runner = prepare_runner(made, Slot("walking-runner"), runtime)
        return lambda: runner.work(burst=True, logging_level="CRITICAL")
    worker = make_run_worker_class(rq.Worker)([Queue(QUEUE, connection=runtime.transport.redis)])
    worker.runtime = runtime  # type: ignore[attr-defined]
    return lambda: worker.work(burst=True, logging_level="CRITICAL")


@contextmanager
def _watched() -> Iterator[Walk]:
    """The functions of the package that any thread of this process, or a fork of it, enters inside the block."""
    taken, parent, (reading, writing) = Walk([], []), os.getpid(), os.pipe()
    seen = set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _is_ours(frame.f_code):
            return
        is_new = frame.f_code not in seen
        if os.getpid() != parent:
            if is_new:
                os.write(writing, "\t".join(_step(frame.f_code)).encode() + b"\n")
        else:
            if is_new:
                taken.steps.append(_step(frame.f_code))
            stack = [_step(one.f_code) for one, _ in traceback.walk_stack(frame) if _is_ours(one.f_code)]
            if len(stack) > len(taken.deepest):
                taken.deepest[:] = stack[::-1]
        seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield taken
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        os.close(writing)
        with os.fdopen(reading) as told:
            forked = [Step(*line.rstrip("\n").split("\t")) for line in told]
        taken.steps.extend(step for step in dict.fromkeys(forked) if step not in taken.steps)


def _step(code: CodeType) -> Step:
    return Step(str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname)


def _is_ours(code: CodeType) -> bool:
    is_function = not code.co_name.startswith("<") or code.co_name == "<lambda>"
    return is_function and code.co_filename.startswith(str(PACKAGE))


if __name__ == "__main__":
    main()
