"""`rqsched worker`: a small supervisor with two children, a dispatcher and an ordinary RQ worker.

It restarts a dead child; the children end when it ends, however it ends. SIGTERM lets the dispatcher finish its batch
and the RQ worker its job.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from multiprocessing.util import register_after_fork
from typing import IO

from redis import Redis
from rq import Queue, Worker
from rq.job import Job

from rqsched.chain import fanout, settling
from rqsched.chain.dispatcher import Dispatcher
from rqsched.chain.runtime import Runtime, import_workflows, using
from rqsched.config import Settings
from rqsched.core.ids import RunJobId, TargetJobId, parse_run_job_id, parse_target_job_id
from rqsched.store import schema_version

_log = logging.getLogger(__name__)

ROLES = ("dispatcher", "runs")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_FORK = multiprocessing.get_context("fork")
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_RESTART_AFTER = 0.25
_LONGEST_RESTART = 30.0
_HEALTHY_AFTER = 10.0
"""A child that lived so many seconds is restarted at once, whatever came before."""
_TURN_SECONDS = 0.1
_KILLED_AT = 3
_IGNORED_SECONDS = 1.1
"""RQ takes a second signal within a second of the first for an echo, so an urgent one is repeated."""
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def open_runtime(settings: Settings | None = None) -> Runtime:
    """Open the runtime of a worker process: settings, schema, workflows."""
    runtime = Runtime(settings or Settings())
    _prepare(runtime)
    return runtime


def _prepare(runtime: Runtime) -> None:
    if runtime.settings.is_sqlite:
        schema_version.upgrade(runtime.database)
    else:
        schema_version.require_current(runtime.database)
    import_workflows(runtime.settings)


def serve(queues: Sequence[str], *, recover: bool = True) -> int:
    """Supervise a dispatcher and an RQ worker on `queues` until SIGTERM or SIGINT; returns the exit code.

    The dispatcher's first act is a pass of reconcile (`recover`), in batches between which it fires. Raises ConfigError
    when the control queue belongs to another database, and at once when the database refuses this process.
    """
    runtime = Runtime(Settings())
    runtime.database.require_accepted()
    _prepare(runtime)
    runtime.record_workflows()
    runtime.is_known_to_redis()
    runtime.close()
    return Supervisor(queues, recover=recover).run()


@dataclass(frozen=True, slots=True)
class Child:
    """One child of a supervisor as it is now."""

    role: str
    """`dispatcher` or `runs`."""
    pid: int
    """Of the process that runs, or ran last while a new one waits to be started."""
    restarts: int
    """How often it was started again."""


class Supervisor:
    """Keeps one child of each role alive until it is told to end."""

    def __init__(
        self,
        queues: Sequence[str],
        *,
        recover: bool = True,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the children.

        They write to `output`, a file, instead of this process's terminal, and find `environment` beside what this
        process has. They are forks of this process, so that they need no second to import the application: it must
        hold no open SQL connection while `run` runs (SQLite loses track of its locks in a fork).
        """
        orders = _Orders(tuple(queues), recover, output, dict(environment or {}), os.getpid())
        self._keepers = [_Keeper(role, orders) for role in ROLES]
        self._asked = 0

    @property
    def children(self) -> list[Child]:
        """The children that were started."""
        return [Child(k.role, k.process.pid, k.restarts) for k in self._keepers if k.process and k.process.pid]

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._asked > 0

    def run(self, on_turn: Callable[[], None] | None = None) -> int:
        """Run until SIGTERM, SIGINT or `stop`; then the children finish what they do. Each turn `on_turn` is called.

        A second signal ends the run that executes too (RQ's cold shutdown), a third one kills the children. An error
        in `on_turn` ends everything and is raised.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        turn = on_turn or _nothing
        try:
            while not self.is_stopping:
                for keeper in self._keepers:
                    keeper.keep()
                self._turn(turn)
        except BaseException:
            self.stop()
            self._finish(_nothing)
            raise
        self._finish(turn)
        return 0

    def stop(self) -> None:
        """Ask to end; asking again is more urgent, see `run`."""
        self._asked += 1

    def _turn(self, on_turn: Callable[[], None]) -> None:
        on_turn()
        time.sleep(_TURN_SECONDS)

    def _finish(self, on_turn: Callable[[], None]) -> None:
        heard, again_at = 0, 0.0
        while any(keeper.is_running for keeper in self._keepers):
            is_urgent = self._asked > 1 and time.monotonic() >= again_at
            if heard < self._asked or is_urgent:
                heard, again_at = self._asked, time.monotonic() + _IGNORED_SECONDS
                for keeper in self._keepers:
                    keeper.end(signal.SIGTERM if heard < _KILLED_AT else signal.SIGKILL)
            self._turn(on_turn)


def _nothing() -> None:
    """Do nothing in a turn."""


@dataclass(frozen=True, slots=True)
class _Orders:
    """What a supervisor wants of its children."""

    queues: tuple[str, ...]
    recover: bool
    output: IO[bytes] | None
    environment: Mapping[str, str]
    parent: int


def restart_delay(last: float, *, status: int | None, lived: float) -> float:
    """Return the seconds until a child that ended is started again, given the last delay.

    The delay grows only for a child that ends by itself soon after its start: it would fail again. One that a signal
    killed (a negative `status`), however often, is needed again at once.
    """
    is_killed = status is not None and status < 0
    if is_killed or lived >= _HEALTHY_AFTER:
        return _RESTART_AFTER
    return min(last * 2, _LONGEST_RESTART)


class _Keeper:
    """Starts one child, and again when it ended: soon at first, later when it never lives long."""

    def __init__(self, role: str, orders: _Orders) -> None:
        self.role = role
        self.process: ForkProcess | None = None
        self.restarts = 0
        self._orders = orders
        self._delay = _RESTART_AFTER
        self._started_at = 0.0
        self._start_at: float | None = 0.0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def keep(self) -> None:
        """Start the child when its time has come; note when it has ended."""
        if self.is_running:
            return
        now = time.monotonic()
        if self._start_at is None:
            self._start_at = now + self._note_end(now)
        if now >= self._start_at:
            self._start(now)

    def end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.pid is not None and self.is_running:
            os.kill(self.process.pid, number)

    def _note_end(self, now: float) -> float:
        status = self.process.exitcode if self.process is not None else None
        self._delay = restart_delay(self._delay, status=status, lived=now - self._started_at)
        _log.warning("%s ended with %s; restarting", self.role, status, extra={"action": "child_restarted"})
        return self._delay

    def _start(self, now: float) -> None:
        self.restarts += self.process is not None
        self.process = _FORK.Process(target=_be_child, args=(self.role, self._orders))
        # A child inherits our handlers: until it has its own, a signal to it has to wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._started_at, self._start_at = now, None
        _log.info("%s started with pid %d", self.role, self.process.pid, extra={"action": "child_started"})


def _be_child(role: str, orders: _Orders) -> None:
    """Be a child, from the fork to its end."""
    _part_from_parent(role, orders)
    runtime = open_runtime()
    if role == "dispatcher":
        dispatch(runtime, recover=orders.recover)
    else:
        work(runtime, orders.queues or [runtime.settings.default_queue])


def _part_from_parent(role: str, orders: _Orders) -> None:
    # A session of its own: Ctrl-C reaches the supervisor alone, which tells the children in its own order.
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    die_with_parent(orders.parent)
    _show_name(f"rqsched-{role}")
    os.environ.update(orders.environment)
    if orders.output is not None:
        _write_to(orders.output)


def _write_to(output: IO[bytes]) -> None:
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a live screen has put itself before them
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, force=True)


def dispatch(runtime: Runtime, *, recover: bool = True) -> None:
    """Be a dispatcher until SIGTERM or SIGINT; `recover` makes a pass of reconcile first."""
    dispatcher = Dispatcher(runtime, recover=recover)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    dispatcher.run()


def work(runtime: Runtime, queues: Sequence[str]) -> None:
    """Be an ordinary RQ worker with RQ's own scheduler, for the user's own jobs too."""
    # A client of its own: RQ blocks on it for minutes, and sets its timeouts itself.
    redis, settings = Redis.from_url(runtime.redis_url), runtime.settings
    serializer = settings.serializer_for(queues[0])
    worker = Worker(
        [Queue(name, connection=redis, serializer=serializer) for name in queues],
        connection=redis,
        serializer=serializer,
        work_horse_killed_handler=lambda job, *_: horse_died(runtime, job),
    )
    register_after_fork(worker, _end_scheduler_with)
    with using(runtime):  # for the work horses, which inherit it
        _close_sql(runtime)
        worker.work(with_scheduler=True, logging_level="WARNING")


def _end_scheduler_with(worker: Worker) -> None:
    """Let RQ's scheduler die with its worker instead of holding its lock as an orphan.

    Called in each process that multiprocessing forks below the worker; those that a run forks are left alone.
    """
    if os.getppid() == worker.pid:
        die_with_parent(worker.pid)


def _close_sql(runtime: Runtime) -> None:
    """Leave no connection for a work horse to inherit: SQLite loses track of its locks in a fork."""
    runtime.database.close()


def horse_died(runtime: Runtime, job: Job) -> None:
    """Settle a run or target at once whose horse this worker saw die; what reconcile or a cancel ended is left alone.

    With SQL away it is left to reconcile: an error here would end RQ's worker.
    """
    died = parse_run_job_id(job.id) or parse_target_job_id(job.id)
    try:
        if isinstance(died, RunJobId):
            settling.lose_run(runtime, died, "its work horse died")
        elif isinstance(died, TargetJobId):
            fanout.lose(runtime, died)
    except Exception:  # noqa: BLE001
        _log.exception("job %s is left to reconcile", job.id, extra={"action": "lose_failed"})
    finally:
        _close_sql(runtime)


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process with its parent (Linux); elsewhere a thread watches for it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _show_name(name: str) -> None:
    """Let `ps` and `top` tell the children apart (Linux shows 15 characters)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15])


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
