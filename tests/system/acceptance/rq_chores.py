"""User code that uses RQ's own features around a run: the current job, dependents, callbacks, handlers, classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rq import Callback, Queue, get_current_job
from rq.job import Job

from rqsched import workflow
from tests.support.narrow import present
from tests.system.acceptance.chores import TOLD, hold, note

PROGRESS = "acceptance.progress"
FOLLOWED = "acceptance.followed"
FAILING_FOLLOWED = "acceptance.failing.followed"


def leave(path: str, line: str) -> None:
    with Path(path).open("a") as lines:
        lines.write(f"{line}\n")


@workflow(PROGRESS)
def progress(log: str, gate: str) -> str:
    """Tell RQ how far it is, and wait for the gate."""
    job = present(get_current_job())
    job.meta["done"] = "half"
    job.save_meta()
    return hold(log, gate)


def follow(told: str) -> None:
    """A job of the application's own."""
    leave(told, "followed")


def follow_in_vain(told: str) -> None:
    """A job of the application's own that fails."""
    raise ValueError(told)


def succeeded(job: Job, connection: Any, result: Any) -> None:
    leave(job.args[0], "on_success")


def failed(job: Job, connection: Any, *error: Any) -> None:
    leave(job.args[0], f"on_failure {error[0].__name__}")


def _enqueue_followers(told: str) -> None:
    job = present(get_current_job())
    queue = Queue("default", connection=job.connection)
    queue.enqueue(follow, told, depends_on=job, on_success=Callback(succeeded))
    queue.enqueue(follow_in_vain, told, on_failure=Callback(failed))


@workflow(FOLLOWED)
def followed(log: str, told: str) -> None:
    """Enqueue a job that waits for this run's, and one that does not."""
    _enqueue_followers(told)
    note(log)
    assert not Path(told).exists() or "followed" not in Path(told).read_text()


@workflow(FAILING_FOLLOWED)
def failing_followed(log: str, told: str) -> None:
    """Enqueue the same, and fail."""
    _enqueue_followers(told)
    note(log)
    raise ValueError("not today")


def handle(job: Job, kind: type[BaseException], error: BaseException, trace: Any) -> bool:
    """An exception handler as `rq worker --exception-handler` takes it."""
    leave(job.meta["told"], f"{job.meta.get('schedule')} {job.description} {kind.__name__}")
    return True


@workflow("acceptance.handled")
def handled(log: str, told: str) -> None:
    """Say where the handler is to write, and fail."""
    job = present(get_current_job())
    job.meta["told"] = told
    job.save_meta()
    note(log)
    raise ValueError("not today")


class OwnJob(Job):
    """A job class of the application's."""

    def perform(self) -> Any:
        """Perform as RQ does, and leave a line."""
        leave(os.environ[TOLD], f"performed {self.description}")
        return super().perform()


class OwnQueue(Queue):
    """A queue class of the application's."""

    def run_sync(self, job: Job) -> Job:
        """Do as RQ does."""
        return super().run_sync(job)
