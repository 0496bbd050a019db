"""RQ's worker as rqsched runs it: it survives silent and lost Redis connections, and settles runs whose horse died.

A horse is the process that RQ forks for a job. Most errors of Redis end RQ's own worker. Then nothing stops the
executing job at its timeout. RQ's client also waits 415 s for an answer. Here no call waits longer than 6 s. A failed
call is repeated over a new connection. If that fails too, the call is repeated at the next turn of RQ's loop.

A run of a few milliseconds would spend most of its time on RQ's requests to Redis. RQ sends a heartbeat and checks for
`rq suspend` three times for every job; this worker does both at most once a second. It deletes our own jobs without a
search in RQ's registries. It handles other jobs as RQ does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial, update_wrapper
from multiprocessing import parent_process
from multiprocessing.util import register_after_fork
from typing import Any, cast

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from rq import Queue, Worker
from rq.exceptions import StopRequested
from rq.executions import ExecutionRegistry
from rq.job import Job, JobStatus
from rq.results import Result
from rq.utils import now as now_in_utc
from rq.worker import BaseWorker, SpawnWorker, WorkerStatus

from rqsched.config import Settings
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.time_limit import OVERRUN
from rqsched.kernel.decide.ids import parse_delivery_job_id, parse_run_job_id, parse_target_job_id
from rqsched.kernel.fork_guard import ForkGuard, call_in_this_process
from rqsched.kernel.transport import telemetry
from rqsched.kernel.transport.client import ANSWER_SECONDS, QUIET_SECONDS, AskingPubSub, connect, own_client
from rqsched.kernel.transport.refusal import is_transient, told
from rqsched.run.horse_sql import WorkerSide
from rqsched.run.supervisor import Progress, die_with_parent
from rqsched.run.work_horse import DIED, Deadline, horse_died, wait_for_end

_log = logging.getLogger(__name__)

STOPPED = "stopped by RQ's command"
"""The error of a run that a person stopped."""
BLOCK_SECONDS = 3
"""How long, in seconds, one turn of an idle worker's loop waits for a job."""
HOUSEKEEPING_SECONDS = 1.0
"""How often a busy worker shows RQ that it lives, and looks for `rq suspend`."""
_WRITES_SECONDS = 0.25
"""How often a worker checks whether its database takes writes."""
_OURS = "rqsched.jobs."
_REVIVE_SECONDS = 15.0
"""How often a worker checks RQ's scheduler and the scheduler's lock, and whether RQ still lists the worker."""


class _GuardedJob(Job):
    """A mixin for a job's class until the job's function begins. Processes that the function forks end with it."""

    @property
    def func(self) -> Any:
        """The job's function under its own name, guarded against forks; None if it has no function."""
        function = super().func
        return None if function is None else update_wrapper(partial(self._call, function), function)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.__class__ = type(self).__mro__[2]  # the function gets its job with the class that the application chose
        return call_in_this_process(function, *args, **kwargs)


@contextlib.contextmanager
def _guarded(job: Job) -> Iterator[None]:
    """Guard the function of a job against forks, and delete a job of ours in the pipeline that records its end.

    Without this, RQ would read the job's status and each of its executions before the deletion, in eight round trips.
    """
    own_class: type[Job] = type(job)
    job.__class__ = type(own_class.__name__, (_GuardedJob, own_class), {})
    if is_ours(job):
        job.delete = partial(_delete_own, job)  # type: ignore[method-assign]
    try:
        yield
    finally:
        job.__class__ = own_class
        vars(job).pop("delete", None)


def _delete_own(
    job: Job, pipeline: Any = None, remove_from_queue: bool = True, delete_dependents: bool = False
) -> None:
    """Delete a job of ours and its only execution in a pipeline; RQ handles every other kind of deletion."""
    if pipeline is None or remove_from_queue or delete_dependents or job.group_id:
        type(job).delete(job, pipeline, remove_from_queue, delete_dependents)
        return
    registry = ExecutionRegistry(job.id, job.connection).key
    pipeline.delete(job.key, job.dependents_key, job.dependencies_key, Result.get_key(job.id), registry)


def is_ours(job: Job) -> bool:
    """Return whether rqsched itself put a job on its queue."""
    parsers: tuple[Callable[[str], object], ...] = (parse_run_job_id, parse_target_job_id, parse_delivery_job_id)
    if not any(parse(job.id) for parse in parsers):
        return False
    try:
        return str(job.func_name).startswith(_OURS)
    except Exception:  # noqa: BLE001 - the job cannot be read; RQ reports that in a work horse
        return False


class PatientWorker(BaseWorker):
    """A mixin that comes before RQ's worker class in the list of bases."""

    max_connection_wait_time = 5.0
    """RQ's longest pause before the next try while Redis does not answer."""
    runtime: Runtime | None = None
    """The runtime that settles runs whose horse died; None leaves such runs to reconcile."""
    freeze_redis: Redis | None = None
    """The client over which this worker asks whether everything is frozen; None for the runtime's own."""
    _progress: Progress | None = None
    """Shows a supervisor that RQ's loop runs; None without a supervisor."""
    _heartbeat_at = 0.0
    _registered_at = 0.0
    _suspension_at = 0.0
    _freeze_asked_at = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the arguments of RQ's worker; the given clients stay unchanged."""
        super().__init__(*arguments, **options)
        self.queues = [copy(queue) for queue in self.queues]
        for queue in self.queues:
            queue.connection = self.connection
        self._ordered_queues = self.queues[:]
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

    def _set_connection(self, connection: Redis) -> Redis:
        """Return a separate client for this worker, to the server of the given client; called by RQ."""
        return own_client(connection)

    @property
    def dequeue_timeout(self) -> int:
        """Seconds that RQ blocks for a job."""
        return min(super().dequeue_timeout, BLOCK_SECONDS)

    @property
    def connection_timeout(self) -> int:
        """Seconds that RQ waits for an answer of Redis."""
        return ANSWER_SECONDS

    def on_turn(self) -> None:
        """Make the checks that are due. RQ's loop calls this every few seconds, or every half minute during a job.

        RQ's scheduler ends at the first error of Redis, or with its worker. RQ itself checks the scheduler only every
        ten minutes. So this worker soon replaces a scheduler that died, even if it belonged to another worker.
        """
        if self._progress is not None:
            self._progress.turn(waits_for_writes=self.waits_for_writes)
        now, scheduler = time.monotonic(), self.scheduler
        if scheduler is None or self._stop_requested or now < self._revive_at:
            return
        self._revive_at = now + _REVIVE_SECONDS
        process: Any = scheduler._process
        if process is None or not process.is_alive():
            with self._outlived("RQ's scheduler"):
                scheduler.acquire_locks(auto_start=True)

    def _start_scheduler(self, burst: bool = False, *arguments: Any, **options: Any) -> None:
        """Start RQ's scheduler. In a burst, it only enqueues the due jobs; other workers enqueue later jobs."""
        cast("Any", super())._start_scheduler(burst, *arguments, **options)
        if burst:  # if it held the locks, this class and RQ's maintenance would both start its process
            cast("Any", self.scheduler).acquire_locks = lambda *_, **__: set()

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        """Register with Redis, as RQ does."""
        super().bootstrap(*arguments, **options)
        telemetry.show_worker_version(self.connection, self.key)
        # RQ would ask for the version after it took a job, and an error would lose that job.
        self.get_redis_server_version()  # type: ignore[no-untyped-call]

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Show that this worker lives, at most once a second; RQ calls this three times for every job."""
        if os.getpid() == self.pid:
            self.on_turn()
        if pipeline is not None:
            super().heartbeat(timeout, pipeline)
            return
        if timeout is None:
            now = time.monotonic()
            if now - self._heartbeat_at < HOUSEKEEPING_SECONDS:
                return
            self._heartbeat_at = now
        with self._outlived("its heartbeat"):
            super().heartbeat(timeout)
            if os.getpid() == self.pid:
                self._register_again()

    def _register_again(self) -> None:
        """Register this worker with RQ again if a flush of Redis has removed it from RQ's list."""
        now = time.monotonic()
        if now - self._registered_at < _REVIVE_SECONDS:
            return
        self._registered_at = now
        if not self.connection.sismember(self.redis_workers_keys, self.key):
            self.connection.delete(self.key)
            self.register_birth()  # type: ignore[no-untyped-call]
            super().set_state(self._state)
            telemetry.show_worker_version(self.connection, self.key)

    def maintain_heartbeats(self, *arguments: Any, **options: Any) -> None:
        """Show that the job lives.

        An error of Redis must not end the wait for the horse, because the horse must still be killed at its timeout.
        """
        with self._outlived("the heartbeat of its job"):
            super().maintain_heartbeats(*arguments, **options)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """Show what this worker does, unless Redis shows it already."""
        if pipeline is None and state == self._state:
            return
        with self._outlived("its state"):
            super().set_state(state, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Wait while workers are suspended, and ask whether everything is frozen; each at most once a second."""
        now = time.monotonic()
        if now - self._suspension_at < HOUSEKEEPING_SECONDS:
            return
        with self._outlived("a look for `rq suspend`"):
            super().check_for_suspension(burst)
            self._suspension_at = now
        self._learn_of_freeze()

    def _learn_of_freeze(self) -> None:
        """Ask whether everything is frozen, at most once a second. RQ's loop cannot ask while it waits for a job."""
        now = time.monotonic()
        if self.runtime is not None and now - self._freeze_asked_at >= HOUSEKEEPING_SECONDS:
            self._freeze_asked_at = now
            self.runtime.freezes.ask_redis_now(self.freeze_redis)

    def perform_job(self, job: Job, *arguments: Any, **options: Any) -> bool:
        """Perform a job in this process."""
        with _guarded(job):
            return super().perform_job(job, *arguments, **options)

    def handle_execution_ended(self, job: Job, *arguments: Any, **options: Any) -> None:
        """Note when a job ended. A succeeded job of ours needs no heartbeat, because no callbacks follow."""
        if is_ours(job) and job.get_status(refresh=False) is not JobStatus.FAILED:
            job.ended_at = now_in_utc()
            return
        super().handle_execution_ended(job, *arguments, **options)

    def run_maintenance_tasks(self) -> None:
        """Tidy RQ's registries."""
        with self._outlived("RQ's maintenance"):
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]

    def set_shutdown_requested_date(self) -> None:
        """Show that this worker is about to end; called in a signal handler, at any moment."""
        with self._outlived("the time of its shutdown"):
            super().set_shutdown_requested_date()  # type: ignore[no-untyped-call]

    @property
    def waits_for_writes(self) -> bool:
        """Whether no job is taken because the database takes no writes."""
        return self.runtime is not None and self.runtime.write_gate.is_closed

    def _wait_until_allowed(self) -> None:
        """Wait, in RQ's loop, while this process may take no job: it is frozen, or the database takes no writes."""
        if self.runtime is None:
            return
        is_first = self.runtime.database.refuses_writes is None
        while (self.runtime.freezes.is_own or not self.runtime.write_gate.is_open()) and not self._stop_requested:
            self.heartbeat()
            time.sleep(_WRITES_SECONDS)
        if is_first:
            self.runtime.database.close()  # a process that forks must have no open connection

    def dequeue_job_and_maintain_ttl(self, *arguments: Any, **options: Any) -> Any:
        """Wait for a job; return None if RQ's loop is to end."""
        self._waits_for_job, found, is_refused = True, None, True
        try:
            while is_refused:
                self._wait_until_allowed()
                if self._stop_requested:
                    raise StopRequested
                try:
                    found, is_refused = super().dequeue_job_and_maintain_ttl(*arguments, **options), False
                except ResponseError as error:  # RQ itself only retries after a lost connection
                    if not is_transient(error):
                        self._keep(error)
                        raise
                    self._tell("its next job", error)
                    time.sleep(self.max_connection_wait_time)
        finally:
            self._waits_for_job = False
        self.is_idle = found is None
        if found is not None:
            self._learn_of_freeze()
        return found

    def _shutdown(self) -> None:
        """Request the end of the loop, in a signal handler.

        A wait for a job is stopped, and any other work is finished first.

        RQ itself stops at once when its state is idle. But the state of a worker that executes jobs in its own process
        is idle before the end of the job is written. RQ would record that job as failed, and the worker would continue.
        """
        state, self._state = self._state, WorkerStatus.IDLE if self._waits_for_job else WorkerStatus.BUSY
        try:
            super()._shutdown()  # type: ignore[no-untyped-call]
        finally:
            self._state = state

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Execute a job. If Redis is down when the job ends, continue. If the horse of a run died, settle the run."""
        self._horse_status, self._why_died = 0, DIED
        self._deadline.clear()
        self.jobs_done += 1
        try:
            with ForkGuard():  # a fork by a callback of RQ, for example, must not become a second worker
                super().execute_job(job, queue)
        except RedisError as error:
            if not is_transient(error):
                raise
            self._tell(f"the end of job {job.id}", error)
            if self._horse_status != 0:
                self.handle_work_horse_killed(job, None, self._horse_status, None)

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """Wait for the end of the horse, and meanwhile serve the descriptors of `beside_horse`."""
        if not self._is_waiting and self.horse_pid:
            self._is_waiting = True  # the handler of a signal that kills the horse calls this method again
            try:
                wait_for_end(
                    self.horse_pid, self.beside_horse, self._look_after_horse, is_child=self.forks_horses_itself
                )
            finally:
                self._is_waiting = False
        pid, self._horse_status, usage = super().wait_for_horse()
        return pid, self._horse_status, usage

    @property
    def forks_horses_itself(self) -> bool:
        """Whether work horses are children of this process."""
        return True

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """Return the descriptors to watch while a horse works, each with the function to call when it is readable."""
        return {}

    def _look_after_horse(self) -> None:
        """Kill a horse whose application code is past its deadline, which is separate from RQ's timeout of the job."""
        if self._deadline.is_over:
            self._why_died = OVERRUN
            _log.warning("a work horse ends: %s", OVERRUN, extra={"action": "horse_killed"})
            self.kill_horse()
            self._deadline.clear()

    def handle_work_horse_killed(self, job: Job, *arguments: Any) -> None:
        """Settle the run of a horse that died, and call the application's exception handlers."""
        if self.runtime is not None:
            horse_died(self.runtime, job, self._why_died)
        super().handle_work_horse_killed(job, *arguments)  # type: ignore[no-untyped-call]

    def subscribe(self) -> None:
        """Listen for commands (stop a job, shut down) as RQ does, over a connection that is checked while idle."""
        self.pubsub = commands = AskingPubSub(self.connection.connection_pool)
        commands.subscribe(**{self.pubsub_channel_name: self.handle_payload})
        thread: Any = commands.run_in_thread(
            sleep_time=QUIET_SECONDS, daemon=True, exception_handler=self._pubsub_exception_handler
        )
        self.pubsub_thread = thread

    def unsubscribe(self) -> None:
        """Mark the thread that listens for commands as ended, and then send the message that wakes the thread.

        RQ sends the message first. If the thread reads the message before it is marked, it waits again, and RQ's worker
        waits a second for it.
        """
        thread: Any = self.pubsub_thread
        if thread is not None:
            thread.stop()
        super().unsubscribe()  # type: ignore[no-untyped-call]

    def kill_horse(self, *arguments: Any, **options: Any) -> None:
        """Kill the work horse, if there is one. A command to stop a job may come just after its horse has ended.

        Without a horse RQ would kill process 0, which means this process and its group.
        """
        if self.horse_pid:
            super().kill_horse(*arguments, **options)

    def handle_job_failure(self, job: Job, *arguments: Any, **options: Any) -> None:
        """Record in Redis that a job failed. If a person stopped the job by RQ's command, terminate its run."""
        if self.runtime is not None and self._stopped_job_id == job.id:
            horse_died(self.runtime, job, STOPPED, is_stopped=True)
        super().handle_job_failure(job, *arguments, **options)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Keep RQ's command thread alive after every temporary error, as RQ does after a lost connection.

        If that thread ended, for example because the disk of Redis is full, nothing would start it again, and the
        worker would receive no more commands.
        """
        error = RedisConnectionError(str(exc)) if is_transient(exc) else exc
        super()._pubsub_exception_handler(error, pubsub, pubsub_thread)

    @contextlib.contextmanager
    def _outlived(self, what: str) -> Iterator[None]:
        """If Redis does not answer a call in the block, or refuses it for now, log this and continue after the block.

        The next turn of the loop repeats the call.
        """
        try:
            yield
        except RedisError as error:
            if not is_transient(error):
                raise
            self._tell(what, error)

    def _keep(self, error: RedisError) -> None:
        """Record for other processes that Redis permanently refuses to give jobs to this worker."""
        if self.runtime is not None:
            keys = self.runtime.transport.keys_of(error, lists=[str(queue.key) for queue in self.queues])
            self.runtime.refusals.note(f"workers of {', '.join(self.queue_names())}", error, keys)

    def _tell(self, what: str, error: RedisError) -> None:
        _log.warning("%s waits: %s", what, told(error), extra={"action": "rq_worker_waits"})


class WritesForHorse(PatientWorker):
    """A mixin for worker classes that fork, after our other mixins. The worker writes to SQL for its horses."""

    _for_horse: WorkerSide | None = None

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Fork the horse of a job; this worker writes to SQL for the horse of a run."""
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
            self._for_horse.after_fork_in_worker()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Run as the work horse."""
        try:
            if self.runtime is not None:
                self.runtime.watch = self._deadline.watch
            if self._for_horse is not None:
                self._for_horse.after_fork_in_horse()
        except BaseException:  # noqa: BLE001 - a return from here would make a second worker
            os._exit(1)
        super().main_work_horse(job, queue)

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """Return the descriptors to watch while a horse works, each with the function to call when it is readable."""
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


def make_run_worker_class(base: type[Worker]) -> type[Worker]:
    """Return the class that `rqsched worker` runs: RQ's worker class, or the application's own, with our mixins."""
    return type(f"{base.__name__}ForRuns", (WritesForHorse, base), {})


def make_worker(
    worker_class: type[Worker],
    runtime: Runtime,
    queues: Sequence[str],
    *,
    name: str | None = None,
    exception_handlers: Sequence[Callable[..., Any]] = (),
) -> Worker:
    """Make a worker for runs and the user's own jobs."""
    # Open another client, because RQ changes the timeouts of its client.
    redis, serializer = connect(runtime.redis_url), runtime.settings.serializer_for(queues[0])
    found = make_queues(runtime.settings, queues, redis)
    worker = worker_class(
        found, name=name, connection=redis, serializer=serializer, exception_handlers=list(exception_handlers)
    )
    if isinstance(worker, PatientWorker):
        worker.freeze_redis = redis
    return worker


def make_queues(settings: Settings, names: Sequence[str], redis: Redis) -> list[Queue]:
    """Return RQ's queues of these names. An RQ worker has one serializer, so all have that of the first queue."""
    serializer = settings.serializer_for(names[0])
    return [Queue(name, connection=redis, serializer=serializer) for name in names]


def take_over_name(worker: BaseWorker) -> None:
    """Remove a dead worker of the same name from RQ, which would otherwise refuse the name for minutes."""
    if worker.connection.exists(worker.key) and not worker.connection.hexists(worker.key, "death"):
        worker.register_death()


def end_scheduler_with(worker: Any) -> None:
    """Let RQ's scheduler die with its parent `worker`. Otherwise the scheduler would keep its lock as an orphan."""
    register_after_fork(worker, _die_with_worker)


def _die_with_worker(worker: Any) -> None:
    """Let a process die with the worker if multiprocessing forked it from the worker, but not if a run forked it."""
    parent = parent_process()  # the parent at the moment of the fork, because the worker may have died since
    if worker.pid is not None and parent is not None and parent.pid == worker.pid:
        die_with_parent(worker.pid)
