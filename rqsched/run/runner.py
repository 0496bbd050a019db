"""A runner: one process that executes one run after another. `rqsched worker --concurrency N` has N runners.

It is an RQ worker with its own name. Runs, targets and notifications are executed in its own process. For any other job
of RQ, a separate process (`HorseStarter`) forks a work horse, which is RQ's process for one job. The runner notes each
job in its slot (shared memory) before the claim. So if a runner dies, its successor first settles the attempt that the
dead runner executed, and the RQ job of this attempt.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, cast

import rq
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.utils import now
from rq.worker import BaseWorker, WorkerStatus

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.chain.time_limit import Lose
from rqsched.kernel.decide.ids import parse_run_job_id
from rqsched.kernel.decide.policy import ErrorTypes
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.transport import telemetry
from rqsched.run.condition import Condition, find_silent_server
from rqsched.run.rq_worker import PatientWorker, is_ours, take_over_name
from rqsched.run.runner_slot import Cause, RunnerJob, Slot, Trouble
from rqsched.run.supervisor import Progress
from rqsched.run.work_horse import HorseStarter, RunHorse, horse_died

_log = logging.getLogger(__name__)

KILL_AFTER = 15.0
"""How many seconds after RQ's timeout of a job its runner is killed. Meanwhile the runner may record the job's end. The
application's code has a separate, earlier deadline."""
_MOST_FAILED_CLAIMS = 3
"""A runner counts as damaged after this many failed claims of runs in a row, whatever the reason."""
_JUDGEMENT_SECONDS = 12.0
"""How long a runner takes no job after a server did not answer. Meanwhile the supervisor finds out why."""
_LONGEST_RESULT = 1_000
"""The maximum number of characters of a result or an error that a damaged runner hands to its successor."""
_CANNOT_TELL = "it cannot test itself"
_PULSE_SECONDS = 1.0
_IDLE_SECONDS = 45.0
"""The longest time without a turn of the loop while a runner is idle. An idle loop makes a turn every few seconds."""
_HORSE_SECONDS = 120.0
"""The longest time without a turn while a work horse executes a job. Meanwhile the loop makes a turn every half minute.
"""


class _InProcess(BaseWorker):
    """A mixin that comes directly before RQ's worker class.

    It executes our jobs in this process, and other jobs in horses of the starter.
    """

    starter: HorseStarter | None = None
    """Forks the horses; None if each horse is a new Python (RQ's SpawnWorker)."""

    def execute_job(self, job: RqJob, queue: Queue) -> None:
        """Execute one job to its end."""
        if is_ours(job):
            rq.SimpleWorker.execute_job(cast("rq.SimpleWorker", self), job, queue)
        else:
            super().execute_job(job, queue)

    def get_heartbeat_ttl(self, job: RqJob, *arguments: Any, **options: Any) -> int:
        """Return how long RQ considers the job alive without a heartbeat.

        A job in the runner's own process sends no heartbeats.
        """
        if is_ours(job):
            return rq.SimpleWorker.get_heartbeat_ttl(cast("rq.SimpleWorker", self), job)
        return super().get_heartbeat_ttl(job, *arguments, **options)

    def fork_work_horse(self, job: RqJob, queue: Queue) -> None:
        """Let the starter fork a work horse for a job that is not ours. If that fails, RQ treats the horse as dead."""
        if self.starter is None:
            cast("Any", super()).fork_work_horse(job, queue)
        else:
            self._horse_pid = self.starter.start(job.id, queue.name, cast("Execution", self.execution).id)

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """Wait for the end of the horse."""
        return super().wait_for_horse() if self.starter is None else self.starter.wait()

    def run_horse(self, job_id: str, queue: str, execution_id: str) -> None:
        """Run as the work horse of a job, in a fork of a worker of the same name."""
        os.environ["RQ_WORKER_ID"], os.environ["RQ_JOB_ID"] = self.name, job_id
        job = self.job_class.fetch(job_id, connection=self.connection, serializer=self.serializer)
        self.execution = Execution.fetch(execution_id, job_id, self.connection)
        self.main_work_horse(job, next(one for one in self.queues if one.name == queue))


class Runner(PatientWorker):
    """A mixin for RQ's worker classes that fork. `_InProcess` comes between this class and RQ's."""

    starter: HorseStarter | None
    run_horse: RunHorse
    slot: Slot
    max_memory: int | None = None
    """The maximum number of resident bytes; a runner that has more is replaced."""
    is_worn: bool = False
    """Whether this runner must be replaced, because it has grown beyond `max_memory` or cannot start horses any
    more."""
    condition: Condition
    _turned_at = 0.0
    _failed_claims: frozenset[str] = frozenset()

    def on_turn(self) -> None:
        """Note the time of this turn of RQ's loop."""
        self._turned_at = time.monotonic()
        super().on_turn()

    def on_end(self, attempt_result: AttemptResult | None) -> None:
        """End this process if the application's code has damaged it. The next runner writes the end of the attempt."""
        try:
            damage = self.condition.find_damage()
        except BaseException:  # noqa: BLE001 - without memory Python may raise any exception
            damage = _CANNOT_TELL
        if damage is not None:
            self._give_up(damage, attempt_result)

    def on_trouble(self, error: BaseException, attempt_result: AttemptResult | None) -> None:
        """End this process if a claim, or the record of an attempt's end, failed because the process is damaged.

        If a server does not answer this process, the server may be down. The supervisor asks the server from another
        process, and kills this process if the server answers the other process. Three failed claims of different runs
        in a row also count as damage.
        """
        try:
            job, is_outage = self.slot.job, isinstance(error, (BackendUnavailableError, RedisError))
            if attempt_result is None and job is not None and not is_outage:
                self._failed_claims |= {job.id}
            damage = self.condition.find_damage(is_thorough=True)
            if damage is None and len(self._failed_claims) >= _MOST_FAILED_CLAIMS:
                damage = f"{len(self._failed_claims)} claims in a row failed ({type(error).__name__}: {error})"
            if damage is not None:
                self._give_up(damage, attempt_result)
            self._await_judgement(attempt_result)
        except BaseException:  # noqa: BLE001 - a process that cannot even check itself is damaged
            self._give_up(_CANNOT_TELL, attempt_result)

    def _await_judgement(self, attempt_result: AttemptResult | None) -> None:
        """Wait while a server does not answer this process.

        Meanwhile the supervisor kills this process if the server answers another process.
        """
        ends_at = time.monotonic() + _JUDGEMENT_SECONDS
        while (began_at := time.monotonic()) < ends_at and (silent := find_silent_server()) is not None:
            self._note_result(attempt_result)
            self.slot.trouble = Trouble(os.getpid(), began_at, silent, is_certain=False)
            time.sleep(_PULSE_SECONDS)
        self.slot.trouble = None

    def _give_up(self, damage: str, attempt_result: AttemptResult | None) -> None:
        """End at once; the next runner writes how the attempt ended, or puts the job back on its queue."""
        try:
            self._note_result(attempt_result)
            self.slot.trouble = Trouble(os.getpid(), time.monotonic(), damage[:_LONGEST_RESULT], is_certain=True)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the run may have moved this process into another group
                os.killpg(os.getpid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def _note_result(self, attempt_result: AttemptResult | None) -> None:
        if attempt_result is not None:
            outcome, result, error = attempt_result.outcome.value, attempt_result.result, attempt_result.error
            if result is not None and len(json.dumps(result)) > _LONGEST_RESULT:
                result = json.dumps("[cut: the process that had it was damaged]")
            if error is not None and len(json.dumps(error)) > _LONGEST_RESULT:
                error = ascii(error[: _LONGEST_RESULT // 12])
            types = [list(_that_fit(names)) for names in attempt_result.error_types]
            self._note(end=(outcome, result, error, attempt_result.is_final, types))

    def subscribe(self) -> None:
        """Start no thread for RQ's commands, because a separate process receives them for all runners."""

    def execute_job(self, job: RqJob, queue: Queue) -> None:
        """Note the job in the slot, execute the job, and clean up."""
        is_run = is_ours(job)
        if not is_run and self.starter is not None and self.starter.has_died:
            self._leave_to_successor(job, queue)
            return
        timeout = int(job.timeout or 0)
        kill_at = time.monotonic() + timeout + KILL_AFTER if is_run and timeout > 0 else None
        self.slot.job = RunnerJob(job.id, os.getpid(), queue.name, is_run, kill_at)
        try:
            super().execute_job(job, queue)
        finally:
            self.slot.job = None
        self._tidy()

    def _leave_to_successor(self, job: RqJob, queue: Queue) -> None:
        """Put a job back at the head of its queue, and let another runner replace this runner."""
        _log.error("the process that forks work horses has died", extra={"action": "horse_starter_died"})
        self._renew()
        with self.connection.pipeline() as pipeline:
            queue.push_job_id(job.id, pipeline=pipeline, at_front=True)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            pipeline.execute()

    def prepare_execution(self, job: RqJob) -> Execution:
        """Register the execution with RQ."""
        execution = super().prepare_execution(job)
        self._note(execution_id=execution.id)
        return execution

    def cleanup_execution(self, job: RqJob, pipeline: Any, *arguments: Any, **options: Any) -> None:
        """Remove the execution of a job; for a job of ours, also show in that pipeline that this runner is idle."""
        super().cleanup_execution(job, pipeline, *arguments, **options)
        if is_ours(job):
            self.set_state(WorkerStatus.IDLE, pipeline)

    def on_claim(self, token: str) -> None:
        """Note in the slot the token under which the run is about to be claimed."""
        self._note(token=token)

    @contextmanager
    def watch(self, seconds: float, lose: Lose) -> Iterator[None]:
        """Note the deadline of the application's code in the slot.

        After the deadline the supervisor kills this process.
        """
        del lose  # the next runner settles the run
        job, pid = self.slot.job, os.getpid()
        self._failed_claims = frozenset()
        self._note(kill_at=time.monotonic() + seconds)
        try:
            yield
        finally:
            if os.getpid() == pid:
                self._note(kill_at=None if job is None else job.kill_at)

    def fork_work_horse(self, job: RqJob, queue: Queue) -> None:
        """Start the work horse of a job that is not ours."""
        cast("Any", super()).fork_work_horse(job, queue)
        self._note(horse_pid=self.horse_pid or None)

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """Wait for the end of the horse. The supervisor kills the horse when a person stops its job."""
        ended = super().wait_for_horse()
        job, cause = self.slot.job, self.slot.cause
        if job is not None and cause is not None and cause.is_stopped and cause.job_id == job.id:
            self._stopped_job_id = job.id
        return ended

    @property
    def forks_horses_itself(self) -> bool:
        """Whether work horses are children of this process. Otherwise a child of this process forks them."""
        return self.starter is None

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """Return the descriptors to watch while a horse works, each with the function to call when it is readable."""
        return super().beside_horse() | ({} if self.starter is None else self.starter.beside_horse())

    def set_shutdown_requested_date(self) -> None:
        """Send nothing, because this is called in a signal handler, in the middle of a run."""

    def request_force_stop(self, signum: int, frame: Any) -> None:
        """End at once; the next runner settles the run that executes."""
        if self.horse_pid:
            super().request_force_stop(signum, frame)
        os.kill(os.getpid(), signal.SIGKILL)

    def bury(self) -> None:
        """Settle, in SQL and in RQ, the job that the previous runner of this slot executed when it died."""
        job, cause = self.slot.job, self.slot.cause
        if (trouble := self.slot.trouble) is not None and cause is not None and cause.is_damage:
            telemetry.record_damage(self.connection, self.name, trouble.pid, trouble.why, now=now())
        if job is not None and job.is_ours:
            if cause is None or not cause.is_of(job):
                cause = Cause(job.pid, "its runner died", job.id)
            with self._outlived("the end of a job whose runner died"):
                if cause.is_damage:
                    self._put_back(job, cause.why)
                else:
                    self._bury(job, cause.why, is_stopped=cause.is_stopped)
        take_over_name(self)
        self.slot.job = self.slot.trouble = None

    def _put_back(self, job: RunnerJob, why: str) -> None:
        """Put the job back at the head of its queue. If its attempt was claimed, write how the attempt ended.

        After that, the job does nothing, because its attempt cannot be claimed again.
        """
        rq_job, run = self._find_job(job.id), parse_run_job_id(job.id)
        if job.token is not None and self.runtime is not None:
            if run is not None and job.end is not None:
                self._settle(self.runtime, run.uid, job.token, job.end)
            else:
                horse_died(self.runtime, rq_job, why, token=job.token)
        if not rq_job.origin:
            return
        queue = next((one for one in self.queues if one.name == job.queue), self.queues[0])
        with self.connection.pipeline() as pipeline:
            with contextlib.suppress(ValueError):  # RQ knows no such execution any more
                if job.execution_id is not None:
                    Execution.fetch(job.execution_id, job.id, self.connection).delete(rq_job, pipeline)
            rq_job.set_status(JobStatus.QUEUED, pipeline=pipeline)
            pipeline.lrem(queue.intermediate_queue_key, 0, job.id)
            pipeline.lrem(queue.key, 0, job.id)
            queue.push_job_id(job.id, pipeline=pipeline, at_front=True)
            pipeline.execute()

    def _settle(self, runtime: Runtime, run_uid: str, token: str, end: tuple[Any, ...]) -> None:
        """Write the end that the damaged runner left in its slot. Otherwise reconcile would settle the run as lost."""
        outcome, result, error, is_final, types = end
        ended = AttemptResult(
            AttemptOutcome(outcome), result=result, error=error, is_final=is_final,
            error_types=ErrorTypes(*map(tuple, types)),
        )  # fmt: skip
        try:
            settle_run(runtime, run_uid, ended, fence=lambda one: one.is_held_by(token))
        except Exception:  # noqa: BLE001 - an error here would end every runner of this slot
            _log.exception("the end of run %s is lost", run_uid, extra={"action": "completion_lost"})

    def _find_job(self, job_id: str) -> RqJob:
        """Return RQ's job; if Redis has lost it, return a job without an origin."""
        try:
            return self.job_class.fetch(job_id, connection=self.connection, serializer=self.serializer)
        except NoSuchJobError:
            lost = self.job_class(job_id, connection=self.connection, serializer=self.serializer)
            lost.origin = ""
            return lost

    def _bury(self, job: RunnerJob, why: str, *, is_stopped: bool) -> None:
        queue = next((one for one in self.queues if one.name == job.queue), self.queues[0])
        rq_job = self._find_job(job.id)
        if job.token is not None and self.runtime is not None:
            horse_died(self.runtime, rq_job, why, token=job.token, is_stopped=is_stopped)
        if not rq_job.origin or rq_job.get_status() in {JobStatus.FINISHED, JobStatus.FAILED}:
            return
        rq_job.ended_at = now()
        how: dict[str, Any] = {"queue": queue, "exc_string": f"The job did not end: {why}."}
        with contextlib.suppress(ValueError):  # RQ knows no such execution any more
            if job.execution_id is not None:
                self.execution = Execution.fetch(job.execution_id, job.id, self.connection)
                if "execution" in signature(BaseWorker.handle_job_failure).parameters:  # since RQ 3
                    how["execution"] = self.execution
        if is_stopped:
            self._stopped_job_id = job.id
        super(PatientWorker, self).handle_job_failure(rq_job, **how)

    def stands_still(self) -> bool:
        """Return whether the loop has not turned for too long.

        A run of ours that executes has its own deadline instead.
        """
        job = self.slot.job
        if job is not None and job.is_ours:
            return False
        return time.monotonic() - self._turned_at > (_IDLE_SECONDS if job is None else _HORSE_SECONDS)

    def _note(self, **changes: Any) -> None:
        job = self.slot.job
        if job is not None:
            self.slot.job = job._replace(**changes)

    def _tidy(self) -> None:
        """Undo changes to this process that the last run made and the next run would see."""
        close_old_connections()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGINT, signal.SIGTERM})
        stop = self.request_force_stop if self._stop_requested else self.request_stop
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != stop:
                signal.signal(number, stop)
        if self.max_memory is not None and resident_bytes() > self.max_memory:
            self._renew()

    def _renew(self) -> None:
        self.is_worn = self._stop_requested = True


def make_runner_class(base: type[Worker]) -> type[Worker]:
    """Return the class of runners: RQ's worker class, or the application's own, with our mixins."""
    return type(f"{base.__name__}Runner", (Runner, _InProcess, base), {})


def begin_pulse(runner: Runner, progress: Progress, parent: int) -> None:
    """Show the supervisor from a thread that this process lives, even while a run occupies the main thread.

    The thread uses neither SQL nor Redis and takes no lock, so a fork at the same time is safe. If the supervisor is
    gone, the runner finishes its run. If that run passes its deadline, the thread ends the process.
    """

    def pulse() -> None:
        while True:
            if not runner.stands_still():
                progress.turn(waits_for_writes=runner.waits_for_writes)
            job = runner.slot.job
            if job is not None and job.is_overrun and os.getppid() != parent:
                os.killpg(os.getpid(), signal.SIGKILL)
            time.sleep(_PULSE_SECONDS)

    runner.on_turn()
    threading.Thread(target=pulse, name="pulse", daemon=True).start()


def prepare_runner(worker: Worker, slot: Slot, runtime: Runtime) -> Runner:
    """Give a runner its slot, and settle the job that its predecessor executed when it died."""
    runner = cast("Runner", worker)
    runner.slot, runner.runtime, runner.condition = slot, runtime, Condition()
    runtime.on_claim, runtime.watch = runner.on_claim, runner.watch
    runtime.on_end, runtime.on_trouble = runner.on_end, runner.on_trouble
    random.seed()  # a fork inherits the state of its parent
    runner.bury()
    return runner


def close_old_connections() -> None:
    """Let Django, if it is used, close connections that are broken or older than its settings allow."""
    django_db = sys.modules.get("django.db")
    if django_db is None:
        return
    try:
        django_db.reset_queries()
        django_db.close_old_connections()
    except Exception:  # noqa: BLE001 - the application's own queries show what is wrong with its settings
        _log.debug("Django's connections are left as they are", exc_info=True)


def _that_fit(names: Iterable[str]) -> Iterator[str]:
    """Yield as many names of an error's classes, from the first on, as fit into a slot."""
    room = _LONGEST_RESULT // 3
    for name in names:
        room -= len(json.dumps(name)) + 2
        if room < 0:
            return
        yield name


def resident_bytes() -> int:
    """Return the resident memory of this process, or its maximum so far if the system shows only that."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()
