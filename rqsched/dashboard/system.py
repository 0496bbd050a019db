"""The page of workers and queues: live workers and their jobs, the depth of queues, and the last hour.

Queues and workers belong to no namespace. A viewer who may see only some namespaces sees the queues on which runs of
the shown namespace wait or ran, and the number of those runs that wait. The page shows the workers that listen on these
queues, and of their jobs the runs of that namespace. Only a viewer of all namespaces sees the full depth of a queue.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.worker import BaseWorker
from starlette.responses import Response

from rqsched.api import fan_out, health, limits, outages, processes
from rqsched.api import runs as run_queries
from rqsched.api.database import Altered, Connection
from rqsched.api.processes import LiveDispatcher
from rqsched.api.runs import Outcome
from rqsched.api.states import FAILURES, OPEN
from rqsched.api.values import BatchJobId, RunJobId, TargetJobId, parse_run_job_id, parse_target_job_id
from rqsched.dashboard.recent import lateness
from rqsched.dashboard.visit import Visit
from rqsched.types import Bounds, LimitDescription

_log = logging.getLogger(__name__)
_REPAIRS = {
    "links": "links armed", "next_times": "next times set", "retimed": "next times of a new timezone database",
    "deliveries": "runs enqueued again", "retries": "retry links armed", "lost": "lost runs settled",
    "blocked": "blocked runs given up", "drained": "waiting runs started", "backfills": "backfills continued",
    "granted": "places of limits given",
    "targets": "targets delivered again or failed", "overdue": "schedules found without a success in time",
    "long": "runs found to take longer than expected", "resumed": "pauses ended that were to end by then",
    "notifications": "notifications delivered again or failed", "failed": "rows that could not be repaired",
}  # fmt: skip
"""The repairs of a reconcile pass, in words."""
_HOUR = timedelta(hours=1)
_MOST_RUNS = 300
"""The newest runs that rates and latencies are taken from."""
_MOST_LIMITS = 50
"""The groups with the most open runs, which are shown."""
_MOST_WORKERS = 200


@dataclass(frozen=True, slots=True)
class Pace:
    """The rates and latencies of runs."""

    runs: int
    """How many runs there were."""
    failed: int
    """How many of them failed or were lost."""
    arriving: float
    """Runs created per hour, with the targets that were put on the queue."""
    per_hour: float
    """Runs ended per hour, with the targets that ended."""
    p50: float | None
    """Seconds from due to started, at the median; None without a run that started."""
    p95: float | None
    """The same at the 95th percentile."""


@dataclass(frozen=True, slots=True)
class LastHour:
    """The pace of a namespace's runs since an instant within the last hour."""

    since: datetime
    """The instant: an hour ago, or later if there were more runs than are read."""
    is_capped: bool
    """Whether there were more runs."""
    total: Pace
    """The pace of all runs."""
    queues: Mapping[str, Pace]
    """The pace of each queue."""


class Doing(NamedTuple):
    """A run or a target of one that a worker executes."""

    text: str
    """Its description."""
    run_uid: str
    """The run."""
    since: datetime | None
    """When its newest attempt began."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """One RQ worker."""

    name: str
    """Its name."""
    state: str
    """`busy`, `idle`, `suspended` or `started`."""
    queues: list[str]
    """The queues it listens on, the most urgent first."""
    heartbeat_at: datetime | None
    """Its last sign of life."""
    version: str
    """The version of RQ."""
    rqsched_version: str
    """The version of rqsched; empty for RQ's own worker."""
    host: str
    """The machine it runs on; empty if the viewer may not know."""
    pid: int | None
    """Its process there; None if the viewer may not know."""
    job_id: str | None
    """The job it executes now, if the viewer may know."""
    doing: Doing | None
    """The job as a run or a target, if it is of the namespace."""


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """One queue of RQ."""

    name: str
    """Its name."""
    waiting: int
    """Jobs that wait; a viewer of some namespaces only gets the runs of this one."""
    workers: int
    """Workers that listen on it."""
    head_since: datetime | None
    """Since when the next job has waited; a viewer of some namespaces only gets the oldest run of this one."""
    is_slow: bool
    """Whether it has waited too long."""
    pace: Pace | None
    """The pace of its runs in the last hour; None without any."""


@dataclass
class _Alive:
    """The state in Redis."""

    workers: list[LiveWorker] = field(default_factory=list)
    queues: list[LiveQueue] = field(default_factory=list)
    dispatchers: list[LiveDispatcher] = field(default_factory=list)
    passes: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    """Why some of the state is missing or old; empty if all of it is there."""

    @property
    def repairs(self) -> list[tuple[str, int]]:
        """The repairs that Redis has counted, without zeros."""
        done = [(words, int(self.passes.get(name, 0))) for name, words in _REPAIRS.items()]
        pruned = sum(count for name, count in self.passes.items() if name.startswith(processes.PRUNED))
        return [(words, count) for words, count in (*done, ("rows pruned", int(pruned))) if count]


def _last_change(group: LimitDescription) -> Altered | None:
    """Return the newest change of a group's bounds; None if they never changed."""
    if not group.changes:
        return None
    told = group.changes[0]
    bounds, was = Bounds.read(told["number"], told.get("rate")), Bounds.read(told["was"], told.get("was_rate"))
    return Altered(datetime.fromisoformat(told["at"]), bounds.after(was), told["by"], None, told["reason"])


def show(visit: Visit) -> Response:
    """Show workers, queues and the last hour."""
    hour, alive = _read_last_hour(visit), _Alive()
    try:
        alive = _alive(visit, hour)
        visit.scheduler.runtime.transport.try_write()  # if it fails, no process can report that it is alive
    except RedisError as error:
        _log.warning("workers are not known: %s", outages.told(error), extra={"action": "dashboard_redis"})
        alive.problem = f"{outages.briefly(error)}, so what is shown of workers and queues is missing or old."
    groups = visit.read(lambda connection: limits.busiest(connection, _MOST_LIMITS, visit.now, visit.namespace))
    allowed = [(group, Bounds.read(group.number, group.rate), _last_change(group)) for group in groups]
    return visit.page("system.html", hour=hour, alive=alive, groups=allowed)


def _alive(visit: Visit, hour: LastHour) -> _Alive:
    transport = visit.scheduler.runtime.transport
    some = Worker.all(connection=transport.control.connection)[:_MOST_WORKERS]
    found = sorted(some, key=lambda worker: worker.name)
    shown = _show_queues(visit, found, hour)
    workers = _show_workers(visit, found, [queue.name for queue in shown])
    dispatchers = processes.live_dispatchers(transport.redis, transport.control.name)
    passes = processes.read_passes(transport.redis, transport.control.name) if visit.sees_all else {}
    return _Alive(workers, shown, dispatchers, passes)


def _read_last_hour(visit: Visit) -> LastHour:
    """Read the pace of the namespace's runs."""
    start = visit.now - _HOUR
    found, since = visit.read(partial(_newest_outcomes, namespace=visit.namespace, start=start))
    handled, since_target = visit.read(lambda c: fan_out.newest_flow(c, visit.namespace, start, _MOST_RUNS))
    default, of_queue = visit.scheduler.settings.default_queue, defaultdict[str, list[Outcome]](list)
    for one in found:
        of_queue[one.key or default].append(one)
    flows, all_targets = defaultdict[str, _Flow](_Flow), _Flow()
    scale = _HOUR / max(visit.now - since_target, timedelta(seconds=1))
    for target in handled:
        for flow in (all_targets, flows[target.queue or default]):
            flow.arriving += target.was_queued * scale
            flow.ended += target.has_ended * scale
    span = max(visit.now - since, timedelta(seconds=1))
    paces = {name: _pace(of_queue[name], span, flows[name]) for name in sorted({*of_queue, *flows})}
    return LastHour(since, since > start, _pace(found, span, all_targets), paces)


def _newest_outcomes(connection: Connection, namespace: str, start: datetime) -> tuple[list[Outcome], datetime]:
    is_among, since = run_queries.newest(connection, start, _MOST_RUNS)
    return run_queries.outcomes(connection, namespace, is_among, run_queries.BY_QUEUE), since


@dataclass
class _Flow:
    """Targets per hour."""

    arriving: float = 0.0
    """Targets that were put on a queue."""
    ended: float = 0.0
    """Targets that ended."""


def _pace(found: Sequence[Outcome], span: timedelta, targets: _Flow) -> Pace:
    count = sum(one.runs for one in found)
    failed = sum(one.runs for one in found if one.status in FAILURES)
    ended = sum(one.runs for one in found if one.status not in OPEN) * _HOUR / span
    late = [one for some in found for one in some.late]
    return Pace(count, failed, count * _HOUR / span + targets.arriving, ended + targets.ended, *lateness(late))


def _show_queues(visit: Visit, workers: Sequence[BaseWorker], hour: LastHour) -> list[LiveQueue]:
    """Return the queues that the viewer may see."""
    runtime = visit.scheduler.runtime
    control = runtime.transport.control
    listening = [set(worker.queue_names()) for worker in workers]
    if visit.sees_all:
        known = {queue.name for queue in Queue.all(connection=control.connection)}
        queues = [Queue(name, connection=control.connection) for name in known | set().union(*listening)]
        waiting = {queue.name: (queue.count, _head_since(queue)) for queue in queues}
    else:
        own = visit.read(lambda c: health.waiting_by_queue(runtime, c, visit.namespace))
        waiting = {**dict.fromkeys(hour.queues, (0, None)), **{name: one[1:] for name, one in own.items()}}
    return [
        LiveQueue(
            name, number, sum(name in names for names in listening), since,
            health.waits_too_long(runtime, name, since), hour.queues.get(name),
        )
        for name, (number, since) in sorted(waiting.items())
    ]  # fmt: skip


def _head_since(queue: Queue) -> datetime | None:
    ids = queue.get_job_ids(0, 1)
    try:
        at = Job.fetch(ids[0], connection=queue.connection).enqueued_at if ids else None
    except NoSuchJobError:
        return None
    return at and _aware(at)


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _show_workers(visit: Visit, workers: Sequence[BaseWorker], queues: Iterable[str]) -> list[LiveWorker]:
    """Return the workers that the viewer may see: all, or those that listen on one of the queues."""
    shown = {*queues}
    seen = [one for one in workers if visit.sees_all or shown & {*one.queue_names()}]
    jobs = [worker.get_current_job_id() for worker in seen]
    redis = visit.scheduler.runtime.transport.redis
    versions = processes.worker_versions(redis, [worker.key for worker in seen])
    doing = visit.read(lambda connection: _what_is_done(connection, visit.namespace, jobs))
    return [
        _shown(worker, version, job_id, doing.get(job_id or ""), None if visit.sees_all else shown)
        for worker, version, job_id in zip(seen, versions, jobs, strict=True)
    ]


def _what_is_done(connection: Connection, namespace: str, jobs: Iterable[str | None]) -> dict[str, Doing]:
    """Read the runs and targets of a namespace behind jobs, by the jobs' ids."""
    parsed = {id_: parse_run_job_id(id_) or parse_target_job_id(id_) for id_ in jobs if id_}
    run_uids = {id_: job.uid for id_, job in parsed.items() if isinstance(job, RunJobId)}
    run_uids |= {id_: job.run_uid for id_, job in parsed.items() if isinstance(job, BatchJobId)}
    target_uids = {id_: job.uid for id_, job in parsed.items() if isinstance(job, TargetJobId)}
    runs = run_queries.names_of_runs(connection, namespace, [*run_uids.values()])
    targets = fan_out.names_of_targets(connection, namespace, [*target_uids.values()])
    doing = {}
    for id_, uid in run_uids.items():
        if run := runs.get(uid):
            text = f"{run.schedule_id} #{run.number}"
            is_batch = isinstance(parsed[id_], BatchJobId)
            doing[id_] = Doing(f"targets of {text}" if is_batch else text, uid, None if is_batch else run.started_at)
    for id_, uid in target_uids.items():
        if target := targets.get(uid):
            doing[id_] = Doing(f"{target.target_id} of {target.schedule_id}", target.run_uid, target.started_at)
    return doing


def _shown(
    worker: BaseWorker, version: str, job_id: str | None, doing: Doing | None, queues: set[str] | None
) -> LiveWorker:
    beat, sees_all = worker.last_heartbeat, queues is None
    names = [name for name in worker.queue_names() if queues is None or name in queues]
    return LiveWorker(
        worker.name, str(getattr(worker.get_state(), "value", worker.get_state())), names, beat and _aware(beat),
        worker.version or "", version, (worker.hostname or "") if sees_all else "", worker.pid if sees_all else None,
        job_id if sees_all or doing else None, doing,
    )  # fmt: skip
