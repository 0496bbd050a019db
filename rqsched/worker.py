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
from collections.abc import Sequence
from typing import Any

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
_RESTART_AFTER = 0.5
_LONGEST_RESTART = 30.0
_HEALTHY_AFTER = 10.0
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


class Supervisor:
    """Keeps one child of each role alive."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._commands = {role: [sys.executable, "-m", "rqsched.worker", role, *queues] for role in ROLES}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._delays = dict.fromkeys(ROLES, _RESTART_AFTER)
        self._stopping = threading.Event()

    def run(self) -> int:
        """Run until a signal; a second one kills the children."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for role in ROLES:
            self._start(role)
        while not self._stopping.is_set():
            self._stopping.wait(0.1)
            self._restart_dead()
        return self._finish()

    def _start(self, role: str) -> None:
        self._children[role] = subprocess.Popen(self._commands[role], start_new_session=True)  # noqa: S603 - our own words
        _log.info("%s started with pid %d", role, self._children[role].pid, extra={"action": "child_started"})

    def _restart_dead(self) -> None:
        for role, child in self._children.items():
            if child.poll() is None or self._stopping.is_set():
                continue
            _log.warning("%s ended with %s; restarting", role, child.returncode, extra={"action": "child_restarted"})
            self._stopping.wait(self._delays[role])
            self._delays[role] = min(self._delays[role] * 2, _LONGEST_RESTART)
            if not self._stopping.is_set():
                self._start(role)

    def _on_signal(self, number: int, frame: Any) -> None:
        del frame
        is_second = self._stopping.is_set()
        self._stopping.set()
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGKILL if is_second else number)

    def _finish(self) -> int:
        for child in self._children.values():
            child.wait()
        return 0


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
    redis, settings = runtime.transport.redis, runtime.settings
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
