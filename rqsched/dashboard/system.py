"""The page of workers and queues: live workers and their jobs, the depth of queues, and the last hour.

Queues and workers belong to no namespace. A viewer of all namespaces sees everything. Any other viewer sees less: the
queues on which runs of the shown namespace wait or ran, how many of these runs wait, the workers that listen on these
queues, and the workers' jobs that are runs of the namespace.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import NamedTuple

from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.worker import BaseWorker
from starlette.responses import Response

from rqsched.api import health, limits, outages, processes
from rqsched.api import runs as run_queries
from rqsched.api.database import Altered, Connection
from rqsched.api.processes import LiveDispatcher, LiveRqWorker
from rqsched.api.runs import Outcome
from rqsched.api.states import FAILURES, OPEN
from rqsched.api.values import (
    MOST_COUNTED,
    BatchJobId,
    RunJobId,
    TargetJobId,
    parse_run_job_id,
    parse_target_job_id,
)
from rqsched.dashboard.recent import lateness
from rqsched.dashboard.visit import Visit
from rqsched.types import Bounds, LimitDescription

_log = logging.getLogger(__name__)
_REPAIRS = {
    "links": "fires put into Redis again", "next_times": "next times computed again",
    "retimed": "next times computed for a new timezone database",
    "deliveries": "runs enqueued again", "retries": "retries put into Redis again", "lost": "lost runs ended",
    "blocked": "blocked runs given up", "drained": "waiting runs started", "backfills": "backfills continued",
    "granted": "places of limits given",
    "targets": "targets delivered again or failed", "overdue": "schedules found without a success in time",
    "long": "runs found to take longer than expected", "resumed": "pauses ended that were due to end",
    "notifications": "notifications delivered again or failed", "failed": "rows that could not be repaired",
}  # fmt: skip
"""The repairs of a reconcile pass, in words."""
_HOUR = timedelta(hours=1)
_MOST_RUNS = 300
"""From how many of the newest runs rates and latencies are computed."""
_MOST_LIMITS = 50
"""How many groups are shown: those with the most unfinished runs."""
_MOST_WORKERS = 200
_BUSY_ENOUGH = 0.8
"""The largest share of their time for which workers should be busy."""
_A_MINUTE = 60.0
"""Rates from this number of runs per hour on are shown per minute."""


class Shown(NamedTuple):
    """A group as pages show it."""

    group: LimitDescription
    """The group."""
    bounds: Bounds
    """The number and the rate that the group allows."""
    last: Altered | None
    """The newest change of these bounds; None if they never changed."""


def shown_limit(group: LimitDescription) -> Shown:
    """Return a group with its bounds and their last change in words, as pages show it."""
    last = None
    if group.changes:
        told = group.changes[0]
        bounds, was = Bounds.read(told["number"], told.get("rate")), Bounds.read(told["was"], told.get("was_rate"))
        last = Altered(datetime.fromisoformat(told["at"]), bounds.after(was), told["by"], None, told["reason"])
    return Shown(group, Bounds.read(group.number, group.rate), last)


@dataclass(frozen=True, slots=True)
class Pace:
    """The rates and latencies of runs."""

    runs: int
    """How many runs there were."""
    failed: int
    """How many of them failed or were lost."""
    arriving: float
    """How many runs were created per hour, plus the targets that were put on the queue."""
    per_hour: float
    """How many runs ended per hour, plus the targets that ended."""
    busy: float
    """How many workers the ended runs and targets kept busy on average."""
    p50: float | None
    """The median lateness in seconds from due to started; None if no run started."""
    p95: float | None
    """The 95th percentile of this lateness."""


@dataclass(frozen=True, slots=True)
class LastHour:
    """The pace of a namespace's runs since an instant within the last hour."""

    since: datetime
    """The instant: an hour ago, or later if the hour has more runs than are read."""
    is_capped: bool
    """Whether the hour has more runs than are read."""
    total: Pace
    """The pace of all runs."""
    queues: Mapping[str, Pace]
    """The pace of the namespace's runs on each queue."""
    of_all: Mapping[str, Pace]
    """The pace of all namespaces' runs on each queue; empty for a viewer of some namespaces."""

    @property
    def is_by_minute(self) -> bool:
        """Whether all rates are shown per minute. They have the same unit, so that they can be compared."""
        return any(max(one.arriving, one.per_hour) >= _A_MINUTE for one in (self.total, *self.queues.values()))


class Judgement(NamedTuple):
    """Whether the workers of a queue are enough."""

    text: str
    """The judgement in words; empty if no job came."""
    is_bad: bool
    """Whether there are too few workers."""


def judge(workers: int, pace: Pace | None, *, is_slow: bool) -> Judgement:
    """Return whether a queue has enough workers for the jobs of the last hour, with a reserve of a fifth."""
    came = pace is not None and pace.arriving > 0
    if not workers:
        return Judgement("too few: no worker listens" if came or is_slow else "", came or is_slow)
    if pace is None or not came:
        return Judgement("too few: the next job waits too long" if is_slow else "", is_slow)
    share = f"{min(pace.busy / workers, 1.0):.0%} busy"
    if not pace.per_hour:
        return Judgement("not known: nothing that came has ended" if not is_slow else "too few", is_slow)
    needed = max(ceil(pace.busy * pace.arriving / pace.per_hour / _BUSY_ENOUGH), 1)
    if needed > workers or is_slow:
        return Judgement(f"too few: {share}, needs about {max(needed, workers + 1)}", is_bad=True)
    return Judgement(f"enough: {share}, needs about {needed}", is_bad=False)


class Doing(NamedTuple):
    """A run, or a target of a run, that a worker executes."""

    text: str
    """Its description."""
    run_uid: str
    """The uid of the run."""
    since: datetime | None
    """When its newest attempt began."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """One RQ worker."""

    name: str
    """Its name."""
    state: str
    """Its last reported state: `busy`, `idle`, `suspended` or `started`."""
    is_silent: bool
    """Whether its next report is overdue. A silent worker is not counted."""
    queues: list[str]
    """The queues on which it listens, the most urgent first."""
    heartbeat_at: datetime | None
    """When it last sent a heartbeat."""
    version: str
    """The version of RQ."""
    rqsched_version: str
    """The version of rqsched; empty for RQ's own worker."""
    host: str
    """The machine on which it runs; empty if the viewer may not see it."""
    pid: int | None
    """Its process id there; None if the viewer may not see it."""
    job_id: str | None
    """The job that it executes now; None if there is none, or if the viewer may not see it."""
    doing: Doing | None
    """The run or target of this job; None if it does not belong to the namespace."""


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """One queue of RQ."""

    name: str
    """Its name."""
    waiting: int
    """How many jobs wait. For a viewer of some namespaces, only the runs of this namespace are counted."""
    workers: int
    """How many workers listen on it and are not silent."""
    head_since: datetime | None
    """When the next job began to wait. For a viewer of some namespaces: when this namespace's oldest run began to wait.
    """
    is_slow: bool
    """Whether this job has waited too long."""
    pace: Pace | None
    """The pace of its runs in the last hour; None if there are no runs."""
    verdict: Judgement
    """Whether it has enough workers. Empty for a viewer of some namespaces, who does not see all jobs."""


@dataclass
class _Alive:
    """The workers, queues and dispatchers that Redis knows."""

    workers: list[LiveWorker] = field(default_factory=list)
    queues: list[LiveQueue] = field(default_factory=list)
    dispatchers: list[LiveDispatcher] = field(default_factory=list)
    passes: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    """Why some of these values are missing or old; empty if all values are current."""

    @property
    def repairs(self) -> list[tuple[str, int]]:
        """The repairs of reconcile passes, with their numbers in Redis. Repairs without a number are left out."""
        done = [(words, int(self.passes.get(name, 0))) for name, words in _REPAIRS.items()]
        pruned = sum(count for name, count in self.passes.items() if name.startswith(processes.PRUNED))
        return [(words, count) for words, count in (*done, ("rows pruned", int(pruned))) if count]


def show(visit: Visit) -> Response:
    """Show workers, queues and the last hour."""
    hour, alive = _read_last_hour(visit), _Alive()
    try:
        alive = _alive(visit, hour)
        visit.scheduler.runtime.transport.try_write()  # if this fails, no process can report that it is alive
    except RedisError as error:
        _log.warning("workers are not known: %s", outages.told(error), extra={"action": "dashboard_redis"})
        alive.problem = f"{outages.briefly(error)}, so what is shown of workers and queues is missing or old."
    groups = visit.read(lambda c: limits.busiest(c, _MOST_LIMITS, visit.now, visit.namespace, MOST_COUNTED))
    return visit.page("system.html", hour=hour, alive=alive, groups=[shown_limit(group) for group in groups])


def _alive(visit: Visit, hour: LastHour) -> _Alive:
    transport = visit.scheduler.runtime.transport
    registered = {one.key: one for one in processes.registered_workers(transport.redis)}
    some = Worker.all(connection=transport.control.connection)
    found = sorted((one for one in some if one.key in registered), key=lambda worker: worker.name)
    shown = _show_queues(visit, [*registered.values()], hour)
    workers = _show_workers(visit, found, registered, [queue.name for queue in shown])
    dispatchers = processes.live_dispatchers(transport.redis, transport.control.name)
    passes = processes.read_passes(transport.redis, transport.control.name) if visit.sees_all else {}
    return _Alive(workers, shown, dispatchers, passes)


def _read_last_hour(visit: Visit) -> LastHour:
    """Read the pace of the namespace's runs. For a viewer of all namespaces, also read the pace of all queues."""
    start = visit.now - _HOUR
    since, total, queues = _read_paces(visit, visit.namespace, start)
    return LastHour(since, since > start, total, queues, _read_paces(visit, None, start)[2] if visit.sees_all else {})


def _read_paces(visit: Visit, namespace: str | None, start: datetime) -> tuple[datetime, Pace, dict[str, Pace]]:
    found, since = visit.read(partial(_newest_outcomes, namespace=namespace, start=start))
    handled, since_target = visit.read(lambda c: run_queries.newest_flow(c, namespace, start, _MOST_RUNS))
    default, of_queue = visit.scheduler.settings.default_queue, defaultdict[str, list[Outcome]](list)
    for one in found:
        of_queue[one.key or default].append(one)
    flows, all_targets = defaultdict[str, _Flow](_Flow), _Flow()
    scale = _HOUR / max(visit.now - since_target, timedelta(seconds=1))
    for target in handled:
        for flow in (all_targets, flows[target.queue or default]):
            flow.arriving += target.was_queued * scale
            flow.ended += target.has_ended * scale
            flow.busy += target.took * scale / _HOUR.total_seconds()
    span = max(visit.now - since, timedelta(seconds=1))
    paces = {name: _pace(of_queue[name], span, flows[name]) for name in sorted({*of_queue, *flows})}
    return since, _pace(found, span, all_targets), paces


def _newest_outcomes(connection: Connection, namespace: str | None, start: datetime) -> tuple[list[Outcome], datetime]:
    is_among, since = run_queries.newest(connection, start, _MOST_RUNS)
    return run_queries.outcomes(connection, namespace, is_among, run_queries.BY_QUEUE, with_took=True), since


@dataclass
class _Flow:
    """Targets per hour."""

    arriving: float = 0.0
    """How many targets were put on a queue."""
    ended: float = 0.0
    """How many targets ended."""
    busy: float = 0.0
    """How many workers the ended targets kept busy on average."""


def _pace(found: Sequence[Outcome], span: timedelta, targets: _Flow) -> Pace:
    count = sum(one.runs for one in found)
    failed = sum(one.runs for one in found if one.status in FAILURES)
    ended = sum(one.runs for one in found if one.status not in OPEN) * _HOUR / span
    busy = sum(one.took for one in found) / 1_000_000 / span.total_seconds() + targets.busy
    late = [one for some in found for one in some.late]
    return Pace(count, failed, count * _HOUR / span + targets.arriving, ended + targets.ended, busy, *lateness(late))


def _show_queues(visit: Visit, workers: Sequence[LiveRqWorker], hour: LastHour) -> list[LiveQueue]:
    """Return the queues that the viewer may see."""
    runtime = visit.scheduler.runtime
    control = runtime.transport.control
    listening = Counter(name for worker in workers for name in {*worker.queues} if not worker.is_silent)
    if visit.sees_all:
        known = {queue.name for queue in Queue.all(connection=control.connection)}
        queues = [Queue(name, connection=control.connection) for name in known.union(*(one.queues for one in workers))]
        waiting = {queue.name: (queue.count, _head_since(queue)) for queue in queues}
    else:
        own = visit.read(lambda c: health.waiting_by_queue(runtime, c, visit.namespace))
        waiting = {**dict.fromkeys(hour.queues, (0, None)), **{name: one[1:] for name, one in own.items()}}
    return [
        LiveQueue(
            name, number, listening[name], since,
            is_slow := health.waits_too_long(runtime, name, since), hour.queues.get(name),
            judge(listening[name], hour.of_all.get(name), is_slow=is_slow)
            if visit.sees_all and name != control.name
            else Judgement("", is_bad=False),
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


def _show_workers(
    visit: Visit, workers: Sequence[BaseWorker], registered: Mapping[str, LiveRqWorker], queues: Iterable[str]
) -> list[LiveWorker]:
    """Return the workers that the viewer may see: all workers, or the workers that listen on one of the queues."""
    shown = {*queues}
    seen = [one for one in workers if visit.sees_all or shown & {*one.queue_names()}][:_MOST_WORKERS]
    jobs = [worker.get_current_job_id() for worker in seen]
    doing = visit.read(lambda connection: _what_is_done(connection, visit.namespace, jobs))
    return [
        _shown(worker, registered[worker.key], job_id, doing.get(job_id or ""), None if visit.sees_all else shown)
        for worker, job_id in zip(seen, jobs, strict=True)
    ]


def _what_is_done(connection: Connection, namespace: str, jobs: Iterable[str | None]) -> dict[str, Doing]:
    """Read the runs and targets of a namespace that some jobs execute, by the ids of the jobs."""
    parsed = {id_: parse_run_job_id(id_) or parse_target_job_id(id_) for id_ in jobs if id_}
    run_uids = {id_: job.uid for id_, job in parsed.items() if isinstance(job, RunJobId)}
    run_uids |= {id_: job.run_uid for id_, job in parsed.items() if isinstance(job, BatchJobId)}
    target_uids = {id_: job.uid for id_, job in parsed.items() if isinstance(job, TargetJobId)}
    runs = run_queries.names_of_runs(connection, namespace, [*run_uids.values()])
    targets = run_queries.names_of_targets(connection, namespace, [*target_uids.values()])
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
    worker: BaseWorker, known: LiveRqWorker, job_id: str | None, doing: Doing | None, queues: set[str] | None
) -> LiveWorker:
    beat, sees_all = worker.last_heartbeat, queues is None
    names = [name for name in worker.queue_names() if queues is None or name in queues]
    state = str(getattr(worker.get_state(), "value", worker.get_state()))
    return LiveWorker(
        worker.name, state, known.is_silent, names, beat and _aware(beat), worker.version or "", known.version,
        (worker.hostname or "") if sees_all else "", worker.pid if sees_all else None,
        job_id if sees_all or doing else None, doing,
    )  # fmt: skip
