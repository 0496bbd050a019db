"""The worker's side of work horses (the processes of jobs): wait for a horse, kill it after its deadline, and settle
its run if the horse died.

Threads that a runner's runs have left may hold locks. A fork of the runner would inherit these locks, but not the
threads that release them. So a separate child of the runner forks its horses (`HorseStarter`). The runner starts that
child before it opens anything, and the child executes nothing itself. Only jobs that are not rqsched's get such a
horse. The child prepares before its first horse; until then it shares nearly all of its memory with the runner.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from rq.job import Job

from rqsched.kernel.chain import settle
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.time_limit import Lose
from rqsched.kernel.decide.ids import RunJobId, parse_run_job_id, parse_target_job_id
from rqsched.kernel.fork_guard import ForkGuard
from rqsched.kernel.transport.redelivery import mark_failed
from rqsched.run.supervisor import FORK, die_with_parent, show_name

_log = logging.getLogger(__name__)

DIED = "its work horse died"
"""The error of a run whose work horse died for an unknown reason."""
_LOOK_SECONDS = 1.0
"""How often a waiting worker checks the horse's deadline. On systems without pidfds, it also checks for the horse's
end."""
RunHorse: TypeAlias = Callable[[str, str, str], None]
"""Runs a job in a horse; it takes the arguments of `HorseStarter.start`."""
_KILLED = None, int(signal.SIGKILL), None


def horse_died(
    runtime: Runtime,
    job: Job,
    reason: str = DIED,
    *,
    token: str | None = None,
    is_stopped: bool = False,
) -> None:
    """Settle a run or target at once after its process died; do nothing if the run or target has ended already.

    With a `token`, only the attempt that was claimed with that token is settled. If a person stopped the job by RQ's
    command, the run is terminated. If SQL is down, the run is left to reconcile, because an error here would end RQ's
    worker.
    """
    died = parse_run_job_id(job.id) or parse_target_job_id(job.id)
    try:
        if isinstance(died, RunJobId):
            change = settle.lose_run(runtime, died, reason, token=token, is_stopped=is_stopped)
            if settle.has_failed_finally(change, died.uid):
                mark_failed(job)
        elif died is not None:
            runtime.features.owner_of(died).lose(died, reason, token=token, is_final=is_stopped)
    except Exception:  # noqa: BLE001
        _log.exception("job %s is left to reconcile", job.id, extra={"action": "lose_failed"})
    finally:
        runtime.database.close()  # a work horse inherits no connection: SQLite loses track of its locks in a fork


class Deadline:
    """The deadline of the application's code in a work horse, in memory that worker and horse share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    @contextmanager
    def watch(self, seconds: float, lose: Lose) -> Iterator[None]:
        """Set the deadline for the block, in the horse. After it, the worker kills the horse and settles its run."""
        del lose
        pid = os.getpid()
        self._set(time.monotonic() + seconds)
        try:
            yield
        finally:
            if os.getpid() == pid:
                self.clear()

    def clear(self) -> None:
        """Remove the deadline, because another horse begins or the code has ended."""
        self._set(0.0)

    @property
    def is_over(self) -> bool:
        """Whether the code still executes and is past its deadline."""
        at: float = struct.unpack_from("d", self._memory)[0]
        return 0.0 < at < time.monotonic()

    def _set(self, at: float) -> None:
        struct.pack_into("d", self._memory, 0, at)


def wait_for_end(
    pid: int,
    beside: Callable[[], Mapping[int, Callable[[], object]]],
    look: Callable[[], object],
    *,
    is_child: bool = True,
) -> None:
    """Wait until a process has ended, without reaping it; `look` is called each second.

    Return at once if `is_child` is set and the process is not a child of this process. `beside` is called before each
    wait. It returns the descriptors to watch, each with the function to call when the descriptor is readable.
    """
    if is_child and _has_ended(pid):
        return
    try:
        child = os.pidfd_open(pid)
    except (AttributeError, OSError):
        child = -1  # no such process, or a kernel without such descriptors
    try:
        while True:
            calls = dict(beside())
            if child < 0 and _has_ended(pid):
                return
            look()
            poll = select.poll()  # unlike `select` it takes any number of files
            for descriptor in [*calls, *([] if child < 0 else [child])]:
                poll.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)]
            if ready == [child]:
                return
            for descriptor in ready:
                if descriptor != child:
                    calls[descriptor]()
    finally:
        if child >= 0:
            os.close(child)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block the alarm signal with which RQ's worker checks its horse, because its handler may raise in any code."""
    left = signal.alarm(0)
    try:
        yield
    finally:
        if left:
            signal.alarm(left)


class HorseStarter:
    """The runner's side of the process that forks the runner's horses and ends with the runner."""

    def __init__(self, prepare: Callable[[], RunHorse]) -> None:
        """Start the process. The process calls `prepare` before its first horse."""
        self._own, asked = FORK.Pipe()
        self._horse_pid = 0
        self._ended: tuple[int | None, int | None, Any] = _KILLED
        parent = os.getpid()
        with ForkGuard():
            if os.fork() == 0:
                self._own.close()
                die_with_parent(parent)
                show_name("rqsched-horses")
                _serve(asked, prepare)
        asked.close()

    @property
    def has_died(self) -> bool:
        """Whether the process is gone, so that no horse can be started any more."""
        return not self._horse_pid and self._own.poll()

    def start(self, job_id: str, queue: str, execution_id: str) -> int:
        """Start a work horse; returns its pid, or 0 if the process that forks horses has died."""
        self.wait()  # for a horse that RQ no longer waits for
        try:
            self._own.send((job_id, queue, execution_id))
            self._horse_pid = self._own.recv()
        except (EOFError, OSError):
            self._ended = _KILLED
        return self._horse_pid

    def wait(self) -> tuple[int | None, int | None, Any]:
        """Wait until the horse has ended; returns its pid, status and usage, as `os.wait4` does."""
        while self._horse_pid:
            self._own.poll(None)  # RQ's alarm may interrupt this
            self._hear()
        return self._ended

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """Return the descriptors to watch while the horse works, each with the function to call when it is readable."""
        return {self._own.fileno(): self._hear} if self._horse_pid else {}

    def _hear(self) -> None:
        try:
            with undisturbed():
                self._ended = self._own.recv()
        except (EOFError, OSError):  # the starter is gone, so no process watches this horse
            self._ended = _KILLED
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._horse_pid, signal.SIGKILL)
        self._horse_pid = 0


def _serve(asked: Connection, prepare: Callable[[], RunHorse]) -> None:
    """Fork a horse for each order and report its end, until the runner is gone."""
    run_horse: RunHorse | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            order = asked.recv()
            run_horse = run_horse or prepare()
            with ForkGuard():
                pid = os.fork()
                if pid == 0:
                    os.setpgrp()
                    asked.close()
                    run_horse(*order)
            with contextlib.suppress(OSError):  # both processes do it, so that the horse's group exists at once
                os.setpgid(pid, pid)
            asked.send(pid)
            asked.send(os.wait4(pid, 0))
