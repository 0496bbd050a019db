"""RQ's worker as rqsched runs it: it outlives silent and absent Redis connections, and settles runs whose horse died.

RQ's own worker quits on most errors of Redis, and leaves the job that executes without anybody who ends it in time; and
its client waits 415 s for an answer. Here no call waits longer than 6 s, a call that failed is made again over a new
connection, and what fails nevertheless is left for the next turn of RQ's loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import parent_process
from multiprocessing.util import register_after_fork
from typing import Any, Protocol, cast

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue, Worker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.worker import BaseWorker, SpawnWorker, WorkerStatus

from rqsched.chain import settling
from rqsched.chain.fan_out.execution import lose as lose_target
from rqsched.chain.runtime import Runtime
from rqsched.chain.time_limit import OVERDUE
from rqsched.config import Settings
from rqsched.core.ids import RunJobId, TargetJobId, parse_run_job_id, parse_target_job_id
from rqsched.fork_guard import ForkGuard
from rqsched.processes.horse_sql import WorkerSide
from rqsched.processes.horse_watch import Deadline, wait_for_end
from rqsched.processes.sparing import SparingWorker, make_job_class
from rqsched.processes.supervisor import Progress, die_with_parent
from rqsched.transport import telemetry
from rqsched.transport.client import ANSWER_SECONDS, connect, limit_waiting
from rqsched.transport.commands import QUIET_SECONDS, AskingPubSub
from rqsched.transport.requeue import mark_failed
from rqsched.transport.transport import is_transient

_log = logging.getLogger(__name__)

DIED = "its work horse died"
"""The error of a run whose work horse died, nobody knows why."""
STOPPED = "stopped by RQ's command"
"""The error of a run that a person stopped."""
BLOCK_SECONDS = 3
"""How long an idle worker waits for a job before its loop turns."""
_REVIVE_SECONDS = 15.0
"""How often a worker looks whether RQ's scheduler lives, or its lock is free."""


class PatientWorker(SparingWorker):
    """Mixed into one of RQ's worker classes, before it."""

    max_connection_wait_time = 5.0
    """RQ's longest pause before it tries an absent Redis again."""
    runtime: Runtime | None = None
    """Settles the runs whose horse this worker sees die; None leaves them to reconcile."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what RQ's worker takes."""
        if options.get("connection") is not None:
            limit_waiting(options["connection"])  # RQ asks it for its address
        super().__init__(*arguments, **options)
        if not isinstance(self, SpawnWorker):  # which names the class of its jobs to a horse that starts anew
            self.job_class = make_job_class(self.job_class)
        limit_waiting(self.connection)
        self._horse_status: int | None = 0
        self._deadline = Deadline()
        self._why_died = DIED
        self._is_waiting = False
        self._waits_for_job = False
        self._revive_at = 0.0
        self.jobs_done = 0
        """How many jobs it has executed."""
        self.is_idle = False
        """Whether it ended because there was nothing to do: a burst, or RQ's `max_idle_time`."""

    @property
    def dequeue_timeout(self) -> int:
        """Seconds that RQ blocks for a job."""
        return min(super().dequeue_timeout, BLOCK_SECONDS)

    @property
    def connection_timeout(self) -> int:
        """Seconds that RQ waits for an answer of Redis."""
        return ANSWER_SECONDS

    def on_turn(self) -> None:
        """Called each time RQ's loop turns: every few seconds, every half minute while a job executes."""
        self._revive_scheduler()

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        """Register with Redis, as RQ does."""
        super().bootstrap(*arguments, **options)
        telemetry.show_worker_version(self.connection, self.key)
        # RQ would ask for it with a job in its hands, which an error loses.
        self.get_redis_server_version()  # type: ignore[no-untyped-call]

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Show that this worker lives."""
        if os.getpid() == self.pid:
            self.on_turn()
        if pipeline is not None:
            super().heartbeat(timeout, pipeline)
            return
        with self._outlived("its heartbeat"):
            super().heartbeat(timeout)

    def maintain_heartbeats(self, *arguments: Any, **options: Any) -> None:
        """Show that the job lives; an error here must not leave its horse without a hard timeout."""
        with self._outlived("the heartbeat of its job"):
            super().maintain_heartbeats(*arguments, **options)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """Show what this worker does."""
        with self._outlived("its state"):
            super().set_state(state, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Wait while workers are suspended."""
        with self._outlived("a look for `rq suspend`"):
            super().check_for_suspension(burst)

    def run_maintenance_tasks(self) -> None:
        """Tidy RQ's registries."""
        with self._outlived("RQ's maintenance"):
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]

    def set_shutdown_requested_date(self) -> None:
        """Show that this worker is about to end; called in a signal handler, anywhere."""
        with self._outlived("the time of its shutdown"):
            super().set_shutdown_requested_date()  # type: ignore[no-untyped-call]

    def dequeue_job_and_maintain_ttl(self, *arguments: Any, **options: Any) -> Any:
        """Wait for a job; None when RQ's loop is to end."""
        self._waits_for_job = True
        try:
            if self._stop_requested:
                raise StopRequested
            found = super().dequeue_job_and_maintain_ttl(*arguments, **options)
        finally:
            self._waits_for_job = False
        self.is_idle = found is None
        return found

    def _shutdown(self) -> None:
        """Ask for the end, in a signal handler: the wait for a job is given up, anything else is finished first.

        RQ itself gives up what it does as soon as its state is idle. A worker that executes jobs in its own process is
        idle before the end of a job is written: the job would be noted as failed, and the worker would go on.
        """
        state, self._state = self._state, WorkerStatus.IDLE if self._waits_for_job else WorkerStatus.BUSY
        try:
            super()._shutdown()  # type: ignore[no-untyped-call]
        finally:
            self._state = state

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Execute a job; with Redis away at its end this worker goes on, and a run whose horse died is settled."""
        self._horse_status, self._why_died = 0, DIED
        self._deadline.clear()
        self.jobs_done += 1
        try:
            with ForkGuard():  # whatever forks meanwhile, a callback of RQ's too, leaves no second worker
                super().execute_job(job, queue)
        except RedisError as error:
            if not is_transient(error):
                raise
            self._tell(f"the end of job {job.id}", error)
            if self._horse_status != 0:
                self.handle_work_horse_killed(job, None, self._horse_status, None)

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """Wait for the end of the horse, and look after what is beside it."""
        if not self._is_waiting and self.horse_pid:
            self._is_waiting = True  # a signal that kills the horse waits for it again, in the middle of this
            try:
                wait_for_end(self.horse_pid, self.beside_horse, self._look_after_horse)
            finally:
                self._is_waiting = False
        pid, self._horse_status, usage = super().wait_for_horse()
        return pid, self._horse_status, usage

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """What to call when which descriptor is readable while a horse works."""
        return {}

    def _look_after_horse(self) -> None:
        """Kill a horse in which the application's code has taken far too long, whatever RQ's timeout of its job is."""
        if self._deadline.is_over:
            self._why_died = OVERDUE
            _log.warning("a work horse ends: %s", OVERDUE, extra={"action": "horse_killed"})
            self.kill_horse()
            self._deadline.clear()

    def handle_work_horse_killed(self, job: Job, *arguments: Any) -> None:
        """Settle the run of a horse that died, and tell the handlers of the application."""
        if self.runtime is not None:
            horse_died(self.runtime, job, self._why_died)
        super().handle_work_horse_killed(job, *arguments)  # type: ignore[no-untyped-call]

    def subscribe(self) -> None:
        """Listen for commands (stop a job, shut down) as RQ does, over a connection that is asked whether it lives."""
        self.pubsub = commands = AskingPubSub(self.connection.connection_pool)
        commands.subscribe(**{self.pubsub_channel_name: self.handle_payload})
        thread: Any = commands.run_in_thread(
            sleep_time=QUIET_SECONDS, daemon=True, exception_handler=self._pubsub_exception_handler
        )
        self.pubsub_thread = thread

    def kill_horse(self, *arguments: Any, **options: Any) -> None:
        """Kill the work horse; without one nothing: RQ would take 0 for it, which is this very process and its group.

        A command to stop a job may come when its horse has just ended.
        """
        if self.horse_pid:
            super().kill_horse(*arguments, **options)

    def handle_job_failure(self, job: Job, *arguments: Any, **options: Any) -> None:
        """Record in Redis that a job failed; the run of one that a person stopped by RQ's command is terminated."""
        if self.runtime is not None and self._stopped_job_id == job.id:
            horse_died(self.runtime, job, STOPPED, is_stopped=True)
        super().handle_job_failure(job, *arguments, **options)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """RQ's thread for commands connects again after a lost connection; after a silent one, too."""
        error = RedisConnectionError(str(exc)) if isinstance(exc, RedisTimeoutError) else exc
        super()._pubsub_exception_handler(error, pubsub, pubsub_thread)

    def _revive_scheduler(self) -> None:
        """Start RQ's scheduler again soon after it died, or take over where another worker's did.

        RQ looks every ten minutes. The scheduler ends with the first error of Redis, and with its worker.
        """
        now, scheduler = time.monotonic(), self.scheduler
        if scheduler is None or self._stop_requested or now < self._revive_at:
            return
        self._revive_at = now + _REVIVE_SECONDS
        process: Any = scheduler._process
        if process is None or not process.is_alive():
            with self._outlived("RQ's scheduler"):
                scheduler.acquire_locks(auto_start=True)

    @contextlib.contextmanager
    def _outlived(self, what: str) -> Iterator[None]:
        """Leave what Redis does not answer undone: the next turn of the loop does it."""
        try:
            yield
        except RedisError as error:
            if not is_transient(error):
                raise
            self._tell(what, error)

    def _tell(self, what: str, error: Exception) -> None:
        _log.warning("Redis does not answer: %s waits (%s)", what, error, extra={"action": "rq_worker_waits"})


class WritesForHorse(PatientWorker):
    """Mixed into a worker class that forks, after any other of ours: it claims for its horses and records successes."""

    _for_horse: WorkerSide | None = None

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Fork the horse of a job; one of a run is written for."""
        self._end_writing()
        run = parse_run_job_id(job.id)
        if run is not None and self.runtime is not None and not isinstance(self, SpawnWorker):
            self._for_horse = WorkerSide(self.runtime, run)
        try:
            cast("Any", super()).fork_work_horse(job, queue)
        except BaseException:
            self._end_writing()
            raise
        if self._for_horse is not None:
            self._for_horse.be_worker()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Be the horse."""
        try:
            if self.runtime is not None:
                self.runtime.watch = self._deadline.watch
            if self._for_horse is not None:
                self._for_horse.be_horse()
        except BaseException:  # noqa: BLE001 - nothing may return from here into a second worker
            os._exit(1)
        super().main_work_horse(job, queue)

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """What to call when which descriptor is readable while a horse works."""
        beside, one = super().beside_horse(), self._for_horse
        if one is not None and one.descriptor is not None:
            beside[one.descriptor] = one.answer
        return beside

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Execute a job."""
        try:
            super().execute_job(job, queue)
        finally:
            self._end_writing()

    def _end_writing(self) -> None:
        if self._for_horse is not None:
            self._for_horse.close()
        self._for_horse = None


class RunWorker(WritesForHorse):
    """Mixed into the RQ worker class of `rqsched worker`: a fork for every job."""

    progress: Progress | None = None

    def on_turn(self) -> None:
        """Called each time RQ's loop turns."""
        if self.progress is not None:
            self.progress.turn()
        super().on_turn()


def make_run_worker_class(base: type[Worker]) -> type[Worker]:
    """Return RQ's worker class, or the application's own, as `rqsched worker` runs it."""
    return type(f"{base.__name__}ForRuns", (RunWorker, base), {})


def make_worker(
    worker_class: type[Worker],
    runtime: Runtime,
    queues: Sequence[str],
    *,
    name: str | None = None,
    exception_handlers: Sequence[Callable[..., Any]] = (),
) -> Worker:
    """Make a worker for runs and the user's own jobs."""
    # A client of its own: what RQ waits for is not what we wait for.
    redis, serializer = connect(runtime.redis_url), runtime.settings.serializer_for(queues[0])
    found = make_queues(runtime.settings, queues, redis)
    return worker_class(
        found, name=name, connection=redis, serializer=serializer, exception_handlers=list(exception_handlers)
    )


def make_queues(settings: Settings, names: Sequence[str], redis: Redis) -> list[Queue]:
    """Return RQ's queues of these names, with the serializer of the first: a worker of RQ has one."""
    serializer = settings.serializer_for(names[0])
    return [Queue(name, connection=redis, serializer=serializer) for name in names]


def take_over_name(worker: BaseWorker) -> None:
    """Bury the worker of the same name that is dead, or RQ would refuse the name for minutes."""
    if worker.connection.exists(worker.key) and not worker.connection.hexists(worker.key, "death"):
        worker.register_death()


class HasPid(Protocol):
    """What RQ's scheduler may be a child of."""

    pid: int | None


def end_scheduler_with(worker: HasPid) -> None:
    """Let RQ's scheduler die with its worker instead of holding its lock as an orphan."""
    register_after_fork(worker, _die_with_worker)


def _die_with_worker(worker: HasPid) -> None:
    """Called in each process that multiprocessing forks below the worker; those that a run forks are left alone."""
    parent = parent_process()  # as it was at the fork: the worker may have died since
    if worker.pid is not None and parent is not None and parent.pid == worker.pid:
        die_with_parent(worker.pid)


def horse_died(
    runtime: Runtime,
    job: Job,
    reason: str = DIED,
    *,
    token: str | None = None,
    is_stopped: bool = False,
) -> None:
    """Settle a run or target at once whose process was seen to die; what reconcile or a cancel ended is left alone.

    With a `token`, only the attempt that was claimed under it. One that a person stopped by RQ's command is terminated.
    With SQL away it is left to reconcile: an error here would end RQ's worker.
    """
    died = parse_run_job_id(job.id) or parse_target_job_id(job.id)
    try:
        if isinstance(died, RunJobId):
            settle = settling.stop_run if is_stopped else settling.lose_run
            change = settle(runtime, died, reason, token=token)
            if settling.has_failed_finally(change, died.uid):
                mark_failed(job)
        elif isinstance(died, TargetJobId):
            lose_target(runtime, died, reason, token=token, is_final=is_stopped)
    except Exception:  # noqa: BLE001
        _log.exception("job %s is left to reconcile", job.id, extra={"action": "lose_failed"})
    finally:
        runtime.database.close()  # a work horse inherits no connection: SQLite loses track of its locks in a fork
