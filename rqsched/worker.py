"""`rqsched worker`: a small supervisor with two children, a dispatcher and an ordinary RQ worker.

It restarts a dead child; the children end when it ends, however it ends. SIGTERM lets the dispatcher finish its batch
and the RQ worker its job.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from redis import Redis
from rq import Queue, Worker
from rq.job import Job

from . import reconcile, runs, schema
from .config import Settings
from .dispatcher import Dispatcher
from .ids import parse_run_job_id
from .runtime import Runtime, import_workflows

_log = logging.getLogger(__name__)

ROLES = ("dispatcher", "runs")
_PR_SET_PDEATHSIG = 1
_RESTART_AFTER = 0.25
_LONGEST_RESTART = 30.0
_HEALTHY_AFTER = 10.0
"""A child that lived so many seconds is restarted at once, whatever came before."""
_TURN_SECONDS = 0.1
_KILLED_AT = 3
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def open_runtime(settings: Settings | None = None) -> Runtime:
    """Open the runtime of a worker process: settings, schema, workflows."""
    runtime = Runtime(settings or Settings())
    if runtime.settings.is_sqlite:
        schema.upgrade(runtime.database)
    else:
        schema.require_current(runtime.database)
    import_workflows(runtime.settings)
    return runtime


def serve(queues: Sequence[str], *, recover: bool = True) -> int:
    """Supervise a dispatcher and an RQ worker on `queues` until SIGTERM or SIGINT; returns the exit code."""
    runtime = open_runtime()
    runtime.record_workflows()
    if recover:
        reconcile.recover(runtime)
    else:
        runtime.has_epoch()
    runtime.close()
    return Supervisor(queues).run()


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
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the children.

        They write to `output`, a file, instead of this process's terminal, and find `environment` beside what this
        process has.
        """
        self._keepers = [_Keeper(role, queues, output, {**os.environ, **(environment or {})}) for role in ROLES]
        self._asked = 0

    @property
    def children(self) -> list[Child]:
        """The children that were started."""
        return [Child(k.role, k.process.pid, k.restarts) for k in self._keepers if k.process is not None]

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
        heard = 0
        while any(keeper.is_running for keeper in self._keepers):
            if heard < self._asked:
                heard = self._asked
                for keeper in self._keepers:
                    keeper.end(signal.SIGTERM if heard < _KILLED_AT else signal.SIGKILL)
            self._turn(on_turn)


def _nothing() -> None:
    """Do nothing in a turn."""


class _Keeper:
    """Starts one child, and again when it ended: soon at first, later when it never lives long."""

    def __init__(
        self, role: str, queues: Sequence[str], output: IO[bytes] | None, environment: Mapping[str, str]
    ) -> None:
        self.role = role
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self._command = [sys.executable, "-m", "rqsched.worker", role, *queues]
        self._output = output
        self._environment = environment
        self._delay = _RESTART_AFTER
        self._started_at = 0.0
        self._start_at: float | None = 0.0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

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
        if self.process is not None and self.is_running:
            self.process.send_signal(number)

    def _note_end(self, now: float) -> float:
        is_healthy = now - self._started_at >= _HEALTHY_AFTER
        self._delay = _RESTART_AFTER if is_healthy else min(self._delay * 2, _LONGEST_RESTART)
        status = self.process.returncode if self.process is not None else None
        _log.warning("%s ended with %s; restarting", self.role, status, extra={"action": "child_restarted"})
        return self._delay

    def _start(self, now: float) -> None:
        self.restarts += self.process is not None
        # A session of its own: Ctrl-C reaches the supervisor alone, which tells the children in its own order.
        self.process = subprocess.Popen(  # noqa: S603 - this very interpreter
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environment,
            start_new_session=True,
        )
        self._started_at, self._start_at = now, None
        _log.info("%s started with pid %d", self.role, self.process.pid, extra={"action": "child_started"})


# ---- children


def main(arguments: Sequence[str]) -> int:
    """Be one of the children: `python -m rqsched.worker dispatcher|runs [QUEUES]`."""
    role, *queues = arguments
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT)
    die_with_parent()
    runtime = open_runtime()
    if role == "dispatcher":
        dispatch(runtime)
    else:
        work(runtime, queues or [runtime.settings.default_queue])
    return 0


def dispatch(runtime: Runtime) -> None:
    """Be a dispatcher until SIGTERM or SIGINT."""
    dispatcher = Dispatcher(runtime)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    dispatcher.run()


def work(runtime: Runtime, queues: Sequence[str]) -> None:
    """Be an ordinary RQ worker with RQ's own scheduler, for the user's own jobs too."""
    # A client of its own: RQ blocks on it for minutes, and sets its timeouts itself.
    redis, settings = Redis.from_url(runtime.redis_url), runtime.settings
    serializer = settings.serializer_for(queues[0])
    worker = RunWorker(
        [Queue(name, connection=redis, serializer=serializer) for name in queues],
        connection=redis,
        serializer=serializer,
        work_horse_killed_handler=lambda job, *_: horse_died(runtime, job),
    )
    worker.work(with_scheduler=True, logging_level="WARNING")


class RunWorker(Worker):
    """RQ's worker; its scheduler dies with it instead of holding its lock as an orphan."""

    def _start_scheduler(self, *arguments: Any, **options: Any) -> None:
        os.register_at_fork(after_in_child=_scheduler_dies_with_parent)
        _in_scheduler_start.set()
        try:
            super()._start_scheduler(*arguments, **options)
        finally:
            _in_scheduler_start.clear()


_in_scheduler_start = threading.Event()


def _scheduler_dies_with_parent() -> None:
    if _in_scheduler_start.is_set():
        die_with_parent()


def horse_died(runtime: Runtime, job: Job) -> None:
    """Settle a run at once whose horse this worker saw die; a run that reconcile or a cancel ended is left alone."""
    run_job = parse_run_job_id(job.id)
    if run_job is not None:
        runs.lose_run(runtime, run_job, "its work horse died")


def die_with_parent() -> None:
    """Have the kernel end this process with its parent (Linux); elsewhere a thread watches for it."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
