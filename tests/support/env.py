"""An environment: a scheduler over a real database and Redis, a clock that stands still, one verb for each thing.

The clock moves when told. `deliver` and `dispatch` fire links, `tick` fires schedules that are due in SQL, `work`
executes runs as RQ's worker does, `execute_pending` as `rqsched.testing` does. Docstrings name combinations of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job

from rqsched import current_run, jobs
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.config import serializer_path
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.blocked import block_run
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.execution import claim_run, execute
from rqsched.kernel.chain.fire import Fired, fire
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.runtime import Runtime, using
from rqsched.kernel.decide.audit import AuditRecord
from rqsched.kernel.decide.ids import LinkId, RetryLinkId, RunJobId
from rqsched.kernel.decide.model import Run, Schedule
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Patience
from rqsched.kernel.transport.transport import Transport, job_id_of
from rqsched.testing import ManualClock, execute_pending, run_due
from rqsched.workflows import Registry, RunContext, make_workflow
from tests.support.narrow import present, text

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
"""The start of every test's clock."""
QUEUE = "default"
ONCE = RetryPolicy(max_retries=0, then="continue")


class _Worker(SimpleWorker):
    """RQ's worker without its ear for commands, whose end takes up to a second; no test commands this one."""

    def _install_signal_handlers(self) -> None: ...  # pytest's handlers stay, and forked processes inherit only them

    def subscribe(self) -> None: ...

    def unsubscribe(self) -> None: ...


@dataclass
class Env:
    """A scheduler, its clock, and the calls of its workflow `note`."""

    scheduler: Scheduler
    clock: ManualClock
    seen: list[RunContext] = field(default_factory=list)
    """The run of each attempt of `note` that was executed."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """The arguments of each attempt of `note` that was executed."""
    failing: bool = False
    """Whether `note` raises."""

    def __post_init__(self) -> None:
        self.register("note", self._note)

    def _note(self, *args: Any, **kwargs: Any) -> int:
        self.seen.append(current_run())
        self.calls.append((args, kwargs))
        if self.failing:
            raise RuntimeError("as the test wants it")
        return len(self.seen)

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

    def register(self, name: str | None, target: Callable[..., Any], **defaults: Any) -> None:
        """A workflow of this test alone; a name that is taken is deployed anew."""
        self.registry.add(make_workflow(name, target, **defaults))

    def create(
        self, schedule_id: str = "report", spec: Any = MINUTE, workflow: Any = "note", **options: Any
    ) -> ScheduleHandle:
        """A schedule every minute from now on, unless told otherwise."""
        return self.scheduler.create(schedule_id, workflow, spec, **options)

    def advance(self, span: timedelta = MINUTE) -> datetime:
        """The clock moves."""
        return self.clock.advance(span)

    def deliver(self, *links: object) -> list[Fired]:
        """Deliver links in one batch: by id, or the main link of a schedule's handle."""
        return fire(self.runtime, [link_id(link) if isinstance(link, ScheduleHandle) else str(link) for link in links])

    def dispatch(self) -> int:
        """Let a dispatcher take one batch of due links."""
        return Dispatcher(self.runtime).run_once()

    def work(self, *queues: str, serializer: str = "pickle") -> None:
        """Execute the queued jobs with a SimpleWorker, which then ends."""
        work(self.runtime, *queues, serializer=serializer)

    def claim(self, run: RunHandle) -> Claim:
        """Take a run's job off its queue and claim the run, as a worker does."""
        self.redis.lrem(f"rq:queue:{QUEUE}", 0, run_job_id(run))
        return present(claim_run(self.runtime, job_id(run.state)))

    def execute(self, run: RunHandle) -> None:
        """Take a run's job off its queue and execute the run. Raises the workflow's exception."""
        self.redis.lrem(f"rq:queue:{QUEUE}", 0, run_job_id(run))
        execute(self.runtime, job_id(run.state))

    def perform(self, job_id: str) -> None:
        """Perform a job of ours as RQ's worker does."""
        with using(self.runtime):
            jobs.execute(job_id)

    def execute_pending(self) -> int:
        """Execute the pending runs without a queue, and return their number."""
        return execute_pending(self.scheduler)

    def tick(self, span: timedelta = MINUTE) -> Sequence[dict[str, Any]]:
        """Move the clock and fire the due schedules. Their runs wait."""
        self.advance(span)
        return self.scheduler.tick()

    def run_due(self, span: timedelta = MINUTE) -> Sequence[dict[str, Any]]:
        """Move the clock, fire the due schedules and execute their runs."""
        self.advance(span)
        return run_due(self.scheduler)

    def fire_next(self, schedule: ScheduleHandle, span: timedelta = MINUTE) -> RunHandle:
        """The clock reaches the schedule's next occurrence and its link is delivered; returns the newest run."""
        self.advance(span)
        self.deliver(schedule.refresh())
        return newest(schedule)

    def fire_all(self, *schedules: ScheduleHandle) -> list[RunHandle]:
        """An hour passes, and the links of these schedules are delivered a second apart; returns their newest runs."""
        self.advance(HOUR)
        return [self.fire_next(one, SECOND) for one in schedules]

    def run_next(self, schedule: ScheduleHandle, span: timedelta = MINUTE) -> RunHandle:
        """The schedule's next occurrence fires and a worker executes its run; returns the run as it is then."""
        run = self.fire_next(schedule, span)
        self.work()
        return run.refresh()

    def fail_next(self, schedule: ScheduleHandle, span: timedelta = MINUTE) -> RunHandle:
        """The schedule's next occurrence fires and `note` raises in its run; returns the run as it is then."""
        self.failing = True
        run = self.run_next(schedule, span)
        self.failing = False
        return run

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

    def told(self) -> list[str]:
        """The types of the audit events that this process's subscribers are told from now on."""
        found: list[str] = []
        self.runtime.subscribers.append(lambda _, event: found.append(event.type))
        return found

    def state(self, schedule: ScheduleHandle) -> Schedule:
        return schedule.refresh().state

    def run_row(self, uid: str) -> Run:
        return present(self.runtime.database.read(lambda connection: changes.find_run(connection, uid)))


MakeEnv = Callable[..., Env]


@contextmanager
def open_env(clock: ManualClock, **options: Any) -> Iterator[Env]:
    """An environment of one process, with a registry of its own; `options` go to its scheduler."""
    # Without a breaker: it is a dispatcher and a worker too, and Redis may be slow on a machine that is busy.
    scheduler = Scheduler(clock=clock, workflows=Registry(), **{"redis_timeout": 0, **options})
    try:
        yield Env(scheduler, clock)
    finally:
        scheduler.close()


def work(runtime: Runtime, *queues: str, serializer: str = "pickle") -> None:
    """Execute the queued jobs in this process with a SimpleWorker, which then ends."""
    with using(runtime):
        open_worker(runtime, *queues, serializer=serializer).work(burst=True, logging_level="CRITICAL")


def open_worker(runtime: Runtime, *queues: str, serializer: str = "pickle") -> SimpleWorker:
    """A SimpleWorker of these queues. Its jobs use `runtime` inside `using(runtime)`."""
    redis, path = runtime.transport.redis, serializer_path(serializer)
    found = [Queue(name, connection=redis, serializer=path) for name in queues or (QUEUE,)]
    return _Worker(found, connection=redis, serializer=path)


def run_target(env: Env, target: Callable[..., Any], **options: Any) -> RunHandle:
    """One run of this workflow is executed, without retries; returns the run."""
    env.register("target", target)
    return env.run_next(env.create(workflow="target", retry=ONCE, **options))


def waiting_for_retry(env: Env) -> tuple[ScheduleHandle, RetryLinkId]:
    """A schedule whose first run failed and waits for its retry a minute later."""

    def fail() -> None:
        raise ValueError("not today")

    env.register("fail", fail)
    schedule = env.create(workflow="fail", retry=RetryPolicy(base=MINUTE))
    run = env.run_next(schedule)
    assert run.status == "retrying"
    return schedule, RetryLinkId(schedule.uid, run.number, run.attempt)


def block(runtime: Runtime, run: RunHandle, reason: str = "no module named 'billing'") -> RunHandle:
    """A worker claims a pending run and cannot find its workflow; returns the run as it is then."""
    claim = present(claim_run(runtime, job_id_of(run.refresh().state)))
    assert block_run(runtime, claim.run, reason, patience=Patience(total=MINUTE)) is not None
    return run.refresh()


def link_id(schedule: ScheduleHandle) -> str:
    """The id of the schedule's main link."""
    return str(LinkId(schedule.uid, schedule.state.n))


def retry_link_id(run: RunHandle) -> str:
    """The id of the link of a run's retry, as its handle has it."""
    return str(RetryLinkId(run.schedule_uid, run.number, run.attempt))


def run_job_id(run: RunHandle) -> str:
    """The id of the job of a run's current delivery."""
    return str(job_id_of(run.state))


def job_id(run: Run, **others: int) -> RunJobId:
    """The id of a run's current delivery, or of another one."""
    return RunJobId(run.uid, **{"attempt": run.attempt, "delivery": run.delivery} | others)


def newest(schedule: ScheduleHandle) -> RunHandle:
    return schedule.runs(limit=1).items[0]


def all_runs(schedule: ScheduleHandle) -> list[RunHandle]:
    """All its runs, oldest first."""
    return list(reversed(schedule.runs(limit=500).items))


def statuses(schedule: ScheduleHandle) -> list[str]:
    return [run.status for run in all_runs(schedule)]


def occurrences(schedule: ScheduleHandle) -> list[datetime]:
    return [run.occurrence_at for run in all_runs(schedule)]


def events(schedule: ScheduleHandle, *types: str) -> list[AuditRecord]:
    """Its audit events, of some types or all."""
    return [event for event in schedule.iter_history() if not types or event.event_type in types]


def types(schedule: ScheduleHandle) -> list[str]:
    """The types of its audit events, without the common beginning."""
    return [event.event_type.removeprefix("Schedule") for event in events(schedule)]


def last(schedule: ScheduleHandle, name: str) -> dict[str, Any]:
    """The payload of its newest audit event of a type."""
    found = [event.payload for event in events(schedule, name, f"Schedule{name}")]
    assert found, types(schedule)
    return found[-1]


def outcomes(fired: Iterable[Fired]) -> list[str]:
    return [result.outcome for result in fired]


OPERATIONS: dict[str, Callable[[ScheduleHandle], Any]] = {
    "update": lambda schedule: schedule.update(queue="high"),
    "pause": lambda schedule: schedule.pause(),
    "resume": lambda schedule: schedule.resume(),
    "restart": lambda schedule: schedule.restart(),
    "delete": lambda schedule: schedule.delete(),
    "trigger": lambda schedule: schedule.trigger(force=True),
    "backfill": lambda schedule: schedule.backfill(NOON - HOUR, NOON),
}
"""The operations of a handle that change its schedule."""


def module_level(name: str) -> str:
    """A workflow by its dotted path."""
    return f"hello {name}"
