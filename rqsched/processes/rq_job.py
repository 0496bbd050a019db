"""RQ's jobs as our workers take them from the queue: which are ours, and the class of all of them.

Before RQ deletes a job that succeeded it looks for the job in its registries. A run of a few milliseconds would spend
as much on that as on itself, so our own jobs are deleted without. Other jobs are treated as RQ does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from rq.executions import ExecutionRegistry
from rq.job import Job
from rq.results import Result

from rqsched.core.ids import parse_delivery_job_id, parse_run_job_id, parse_target_job_id
from rqsched.fork_guard import call_in_this_process

_OURS = "rqsched.jobs."


class _GuardedJob(Job):
    """A mixin before RQ's job class: a process that a job's function forks ends with its call.

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
