"""A rig: one scheduler over real servers with a clock that stands still, and hands to turn it step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.chain.dispatcher import Dispatcher
from rqsched.chain.firing import Fired, fire
from rqsched.chain.reconcile import Recovered, recover
from rqsched.chain.runtime import Runtime, using
from rqsched.core.audit import AuditRecord
from rqsched.core.ids import LinkId, RetryLinkId, RunJobId
from rqsched.core.model import Run, Schedule
from rqsched.core.policy import RetryPolicy
from rqsched.store import changes
from rqsched.testing import ManualClock
from rqsched.transport.transport import Transport, job_id_of
from rqsched.workflows import Registry, make_workflow
from tests.support.narrow import present, text

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
QUEUE = "default"
ONCE = RetryPolicy(max_retries=0, then="continue")


class _Worker(SimpleWorker):
    """RQ's worker without its ear for commands, whose end takes up to a second; no test commands this one."""

    def subscribe(self) -> None: ...

    def unsubscribe(self) -> None: ...


@dataclass
class Rig:
    """Everything a chain test turns."""

    scheduler: Scheduler
    clock: ManualClock
    calls: list[Any] = field(default_factory=list)
    """What the workflow `note` was called with."""

    @property
    def runtime(self) -> Runtime:
        return self.scheduler.runtime

    @property
    def transport(self) -> Transport:
        return self.runtime.transport

    @property
    def redis(self) -> Redis:
        return self.transport.redis

    @property
    def registry(self) -> Registry:
        return self.runtime.workflows

    def register(self, name: str, target: Callable[..., Any], **defaults: Any) -> None:
        """A workflow of this test alone; a name that is taken is deployed anew."""
        self.registry.add(make_workflow(name, target, **defaults))

    def create(
        self, schedule_id: str = "report", spec: Any = MINUTE, *, runs: str = "note", **options: Any
    ) -> ScheduleHandle:
        """A schedule every minute, from now on."""
        return self.scheduler.create(schedule_id, runs, spec, **options)

    def advance(self, span: timedelta = MINUTE) -> None:
        self.clock.advance(span)

    def fire(self, *schedules: ScheduleHandle) -> list[Fired]:
        """The main links of these schedules are delivered in one batch, as the rows have them."""
        return fire(self.runtime, [link_id(schedule) for schedule in schedules])

    def deliver(self, *ids: object) -> list[Fired]:
        """Links are delivered in one batch by their ids."""
        return fire(self.runtime, [str(link) for link in ids])

    def dispatch(self) -> int:
        """A dispatcher takes one batch of what is due."""
        return Dispatcher(self.runtime).run_once()

    def work(self, *queues: str, serializer: str = "pickle") -> None:
        """A SimpleWorker executes what is queued and ends."""
        work(self.runtime, *queues, serializer=serializer)

    def occur(self, schedule: ScheduleHandle, span: timedelta = MINUTE) -> RunHandle:
        """The clock reaches the next occurrence and it fires; returns the newest run."""
        self.advance(span)
        self.fire(schedule.refresh())
        return newest(schedule)

    def turn(self, schedule: ScheduleHandle, span: timedelta = MINUTE) -> RunHandle:
        """The next occurrence fires and its run is executed; returns the run as it is then."""
        run = self.occur(schedule, span)
        self.work()
        return run.refresh()

    def recover(self, **options: Any) -> Recovered:
        return recover(self.runtime, **options)

    def queued(self, name: str = QUEUE) -> list[str]:
        """The ids on a queue's list, first in, first out."""
        return [text(entry) for entry in self.redis.lrange(f"rq:queue:{name}", 0, -1)]

    def armed(self) -> dict[str, float]:
        """The links in the scheduled set, with their scores."""
        found: Any = self.redis.zrange(self.transport.scheduled_key, 0, -1, withscores=True)
        return {text(link): score for link, score in found}

    def job(self, job_id: object) -> Job:
        """The job as RQ reads it."""
        return Job.fetch(str(job_id), connection=self.redis, serializer=self.transport.control.serializer)

    def state(self, schedule: ScheduleHandle) -> Schedule:
        return schedule.refresh().state

    def run_row(self, uid: str) -> Run:
        return present(self.runtime.database.read(lambda connection: changes.find_run(connection, uid)))


def work(runtime: Runtime, *queues: str, serializer: str = "pickle") -> None:
    """A SimpleWorker executes what is queued in this process and ends."""
    redis = runtime.transport.redis
    with using(runtime):
        found = [Queue(name, connection=redis, serializer=serializer) for name in queues or (QUEUE,)]
        _Worker(found, connection=redis, serializer=serializer).work(burst=True, logging_level="CRITICAL")


def link_id(schedule: ScheduleHandle) -> str:
    """The id of the schedule's main link."""
    return str(LinkId(schedule.uid, schedule.state.n))


def run_job_id(run: RunHandle) -> str:
    """The id of the job of a run's current delivery."""
    return str(job_id_of(run.state))


def job_id(run: Run, **others: int) -> RunJobId:
    """The id of a run's current delivery, or of another one."""
    return RunJobId(run.uid, **{"attempt": run.attempt, "delivery": run.delivery} | others)


def turn(rig: Rig, target: Callable[..., Any], **options: Any) -> RunHandle:
    """One run of this workflow is executed, without retries; returns the run."""
    rig.register("target", target)
    return rig.turn(rig.create(runs="target", retry=ONCE, **options))


def newest(schedule: ScheduleHandle) -> RunHandle:
    return schedule.runs(limit=1).items[0]


def statuses(schedule: ScheduleHandle) -> list[str]:
    """The statuses of all its runs, oldest first."""
    return [run.status for run in reversed(schedule.runs(limit=500).items)]


def events(schedule: ScheduleHandle, *types: str) -> list[AuditRecord]:
    """Its audit events, of some types or all."""
    return [event for event in schedule.iter_history() if not types or event.event_type in types]


def outcomes(fired: Iterable[Fired]) -> list[str]:
    return [result.outcome for result in fired]


def failing(rig: Rig) -> tuple[ScheduleHandle, RetryLinkId]:
    """A schedule whose first run failed and waits for its retry a minute later."""

    def fail() -> None:
        raise ValueError("not today")

    rig.register("fail", fail)
    schedule = rig.create(runs="fail", retry=RetryPolicy(base=MINUTE))
    run = rig.turn(schedule)
    assert run.status == "retrying"
    return schedule, RetryLinkId(schedule.uid, run.number, run.attempt)
