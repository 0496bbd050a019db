"""Build the jobs of targets, and put them on their queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from rqsched.config import Settings
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.store import RunName, Target
from rqsched.kernel.decide.ids import BatchJobId
from rqsched.kernel.store.database import Database
from rqsched.kernel.transport.job_label import JobLabel
from rqsched.kernel.transport.job_queue import JobSpec
from rqsched.kernel.transport.transport import Transport

_DISPATCH_SECONDS = 120


class Parts(Protocol):
    """The parts of a process's runtime that jobs of targets use."""

    settings: Settings
    """The settings, such as how long the record of an end may take."""
    database: Database
    """The database of targets and their runs."""
    transport: Transport
    """Puts the jobs on their queues."""
    now: Callable[[], datetime]
    """Returns the time."""


def enqueue(parts: Parts, pending: Sequence[Target]) -> int:
    """Put pending targets on their queues, unless they are there already. Return how many were added.

    Raises RedisError after short retries.
    """
    if not pending:
        return 0
    names = parts.database.read(partial(fan_out_targets.names_of, run_uids=[target.run_uid for target in pending]))
    grouped: dict[tuple[str | None, str | None], list[Target]] = defaultdict(list)
    for target in pending:
        grouped[target.queue, target.connection].append(target)
    return sum(
        parts.transport.enqueue(jobs_of(parts.settings, some, names), *where, now=parts.now())
        for where, some in grouped.items()
    )


def jobs_of(settings: Settings, chunk: Iterable[Target], names: Mapping[str, RunName]) -> list[JobSpec]:
    """Return the jobs of targets. The timeout for RQ includes the time to record the end of the target."""
    more = int(settings.completion_outage.total_seconds())
    specs = list[JobSpec]()
    for target in chunk:
        name = names.get(target.run_uid)
        known = () if name is None else (name.schedule_id, name.namespace, name.occurrence_at, name.attempt)
        label = JobLabel(target.workflow, target.run_uid, *known)
        specs.append(JobSpec(str(target.job_id), target.timeout + more, label=label))
    return specs


def batch_job(job: BatchJobId) -> JobSpec:
    """Return the job that dispatches the next targets of a run."""
    return JobSpec(str(job), _DISPATCH_SECONDS)
