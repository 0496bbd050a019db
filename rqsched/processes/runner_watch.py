"""What the supervisor does for a runner: it kills one that takes too long or that a person stops, and notes why.

Nothing here waits for Redis or SQL. A runner goes from one job to the next by itself, so before it is killed for a job
it is stopped (SIGSTOP) and asked again which one it executes: the next job never dies for the one before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rqsched.chain.time_limit import OVERDUE
from rqsched.processes.runner_slot import Cause, Job, Slot
from rqsched.processes.supervisor import Watch

_log = logging.getLogger(__name__)

_STOP_SECONDS = 1.0
"""How long a process may take to stop; one that waits for a disk takes long."""
_LOOK_SECONDS = 0.001


class RunnerWatch(Watch):
    """Watches the runner of one slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._obeyed: int | None = None

    def look(self, pid: int) -> None:
        """Obey RQ's commands, and kill a runner whose job has taken far too long."""
        request = self._slot.request
        if request is not None and request["number"] != self._obeyed:
            self._obeyed = request["number"]
            self._obey(pid, request)
        job = self._slot.job
        if job is not None and job.pid == pid and _is_overdue(job):
            self._end_job(pid, job.id, OVERDUE, is_so=_is_overdue)

    def kill(self, pid: int, why: str) -> None:
        """Kill the runner and what its run has started; the work horse of another job goes on, as RQ's does."""
        self._note_cause(pid, why)
        _kill_group(pid)

    def end(self, pid: int, *, is_urgent: bool) -> None:
        """Let the runner finish what it executes; urgently, kill it and its work horse."""
        if not is_urgent:
            os.kill(pid, signal.SIGTERM)
            return
        job = self._slot.job
        if job is not None and job.horse_pid is not None:
            _kill_group(job.horse_pid)
        self.kill(pid, "its worker was told to end at once")

    def note_end(self, status: int | None) -> None:
        """Note how the runner ended, unless it was this process that killed it."""
        job = self._slot.job
        if job is None:
            return
        cause = self._slot.cause
        if cause is None or not cause.is_of(job):
            self._slot.cause = Cause(job.pid, f"its runner died {_describe(status)}", job.id)

    def prepares_last(self) -> bool:
        """Return whether the runner died with a run of ours, which another one then settles."""
        job = self._slot.job
        self._slot.close()
        return job is not None and job.is_ours

    def _obey(self, pid: int, request: dict[str, Any]) -> None:
        command, job = request["command"], self._slot.job
        if command == "shutdown":
            os.kill(pid, signal.SIGTERM)
        elif command == "kill-horse" and job is not None:
            self._end_job(pid, job.id, "it was killed by RQ's command")
        elif command in {"stop-job", "stop-execution"} and request.get("job_id"):
            self._end_job(pid, request["job_id"], "stopped by RQ's command", is_stopped=True)

    def _end_job(
        self,
        pid: int,
        job_id: str,
        why: str,
        *,
        is_stopped: bool = False,
        is_so: Callable[[Job], bool] = lambda _: True,
    ) -> None:
        with _stopped(pid):
            job = self._slot.job
            if job is None or job.id != job_id or job.pid != pid:
                _log.info("%s is not executed here, or not any more", job_id, extra={"action": "runner_command_late"})
                return
            if not is_so(job) or (not job.is_ours and job.horse_pid is None):
                return  # the application's code has ended; or its work horse has, or is about to begin
            self._note_cause(pid, why, is_stopped=is_stopped)
            _log.warning("%s ends: %s", job_id, why, extra={"action": "runner_killed"})
            _kill_group(pid if job.horse_pid is None else job.horse_pid)

    def _note_cause(self, pid: int, why: str, *, is_stopped: bool = False) -> None:
        job: Job | None = self._slot.job
        self._slot.cause = Cause(pid, why, None if job is None else job.id, is_stopped)


def _is_overdue(job: Job) -> bool:
    return job.kill_at is not None and time.monotonic() > job.kill_at


def _describe(status: int | None) -> str:
    if status is not None and status < 0:
        return f"(signal {-status})"
    return f"(exit status {status})"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Hold a child still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        _wait_until(lambda: _is_still(pid))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _is_still(pid: int) -> bool:
    options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, options) is not None


def _wait_until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + _STOP_SECONDS
    while not is_so() and time.monotonic() < ends_at:
        time.sleep(_LOOK_SECONDS)
