"""Sends RQ's per-job commands less often, and of our jobs only those whose effect is read.

With each job RQ sends its worker's heartbeat three times, in three commands each, and asks whether workers are
suspended; before it deletes a job that succeeded it looks for the job in its registries. A run of a few milliseconds
would spend most of them on that. Jobs that are not ours are treated as RQ does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from rq.executions import ExecutionRegistry
from rq.job import Job, JobStatus
from rq.results import Result
from rq.utils import now
from rq.worker import BaseWorker

from rqsched.core.ids import parse_delivery_job_id, parse_run_job_id, parse_target_job_id
from rqsched.fork_guard import call_in_this_process

HOUSEKEEPING_SECONDS = 1.0
"""How often a busy worker shows RQ that it lives, and looks for `rq suspend`."""
_OURS = "rqsched.jobs."


class SparingWorker(BaseWorker):
    """Mixed into one of RQ's worker classes, before it."""

    _kept_at = 0.0
    _looked_at = 0.0

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Show that this worker lives, at most once a second."""
        moment = time.monotonic()
        if pipeline is None and timeout is None:
            if moment - self._kept_at < HOUSEKEEPING_SECONDS:
                return
            self._kept_at = moment
        super().heartbeat(timeout, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Wait while workers are suspended; looked for at most once a second."""
        moment = time.monotonic()
        if moment - self._looked_at >= HOUSEKEEPING_SECONDS:
            super().check_for_suspension(burst)
            self._looked_at = moment

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """Show what this worker does, unless Redis shows it already."""
        if pipeline is not None or state != self._state:
            super().set_state(state, pipeline)

    def handle_execution_ended(self, job: Job, *arguments: Any, **options: Any) -> None:
        """Note when a job ended; one of ours that succeeded has no callbacks, and so needs no heartbeat for them."""
        if is_ours(job) and job.get_status(refresh=False) is not JobStatus.FAILED:
            job.ended_at = now()
            return
        super().handle_execution_ended(job, *arguments, **options)


class _GuardedJob(Job):
    """Mixed in before RQ's job class: a process that a job's function forks ends with its call.

    A job of ours that has succeeded is deleted in the pipeline of its end, with its one execution. RQ reads its status
    and each of its executions first, in eight round trips.
    """

    @property
    def func(self) -> Any:
        """The job's function under its own name, guarded against forks; None without one."""
        function = super().func
        return None if function is None else update_wrapper(partial(call_in_this_process, function), function)

    def delete(self, pipeline: Any = None, remove_from_queue: bool = True, delete_dependents: bool = False) -> None:
        """Delete the job."""
        if pipeline is None or remove_from_queue or delete_dependents or self.group_id or not is_ours(self):
            super().delete(pipeline, remove_from_queue, delete_dependents)
            return
        registry = ExecutionRegistry(self.id, self.connection).key
        pipeline.delete(self.key, self.dependents_key, self.dependencies_key, Result.get_key(self.id), registry)


def make_job_class(base: type[Job]) -> type[Job]:
    """Return RQ's job class, or the application's own, as our workers take jobs from the queue."""
    return base if issubclass(base, _GuardedJob) else type(f"{base.__name__}OfRun", (_GuardedJob, base), {})


def is_ours(job: Job) -> bool:
    """Return whether a job is one that rqsched has put on the queue itself."""
    parsers: tuple[Callable[[str], object], ...] = (parse_run_job_id, parse_target_job_id, parse_delivery_job_id)
    if not any(parse(job.id) for parse in parsers):
        return False
    try:
        return str(job.func_name).startswith(_OURS)
    except Exception:  # noqa: BLE001 - it cannot be read; RQ reports that in a work horse
        return False
