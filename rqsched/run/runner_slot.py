"""The slot of one runner, in memory that forks share, and the supervisor's watch over that runner.

A slot holds the runner's job, the commands for that job, and why the runner was killed. It outlives the runner, so that
the next runner knows which attempt died. The supervisor kills a runner if its job takes too long, or if a person stops
the job. It does not wait for Redis or SQL. A runner may begin its next job at any moment. So before the supervisor
kills a runner because of a job, it stops the runner (SIGSTOP) and reads the slot again. Otherwise, the kill might hit
the next job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple

from rqsched.kernel.chain.time_limit import OVERRUN
from rqsched.run.supervisor import FORK, Watch, start_undisturbed

_log = logging.getLogger(__name__)

_SIZE = 4096
_HEAD = struct.Struct("QI")
_READS = 3
_STOP_SECONDS = 1.0
"""How long a process may take to stop. A process that waits for a disk takes long."""
_LOOK_SECONDS = 0.001
_TEST_SECONDS = 10.0
"""How long a fork's successful test of the servers is valid. Up to four tests are made in this time."""
DAMAGED = 5
"""The exit status that stands for damage, so that each restart of a damaged runner is delayed longer."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Note:
    """A small JSON object in memory that forks share. One process writes it, and others read it whole or not at all."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    def write(self, content: Mapping[str, Any] | None) -> None:
        """Replace the noted object; None, or an object that is too long, empties the note."""
        text = b"" if content is None else _encode(content).encode()
        if len(text) > _SIZE - _HEAD.size:
            text = b""
        number, _ = _HEAD.unpack_from(self._memory)
        begun = number + 1 if number % 2 == 0 else number + 2  # a writer may have died halfway
        _HEAD.pack_into(self._memory, 0, begun, 0)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, begun + 1, len(text))

    def read(self) -> dict[str, Any] | None:
        """Return the noted object; None if the note is empty or is being written."""
        for _ in range(_READS):
            number, length = _HEAD.unpack_from(self._memory)
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if number % 2 == 0 and _HEAD.unpack_from(self._memory)[0] == number:
                found: dict[str, Any] | None = json.loads(text) if text else None
                return found
        return None


class RunnerJob(NamedTuple):
    """The job that a runner executes."""

    id: str
    """The id of RQ's job."""
    pid: int
    """The pid of the runner. `Cause.is_of` compares it."""
    queue: str
    """The queue it was taken from."""
    is_ours: bool
    """Whether it is executed in the runner's own process, not in a work horse."""
    kill_at: float | None = None
    """The deadline, by the host's monotonic clock; None if the job has none, or if RQ checks it."""
    execution_id: str | None = None
    """RQ's id of this execution."""
    token: str | None = None
    """The token of the claim; None before the claim."""
    horse_pid: int | None = None
    """The pid of its work horse."""
    end: tuple[str, str | None, str | None, bool, list[list[str]]] | None = None
    """How the attempt ended, if the runner could not write it to SQL: outcome, result, error, `is_final`,
    `error_types`."""

    @property
    def is_overrun(self) -> bool:
        """Whether it is past its deadline."""
        return self.kill_at is not None and time.monotonic() > self.kill_at


class Cause(NamedTuple):
    """Why a runner or its work horse ended."""

    pid: int
    """The pid of the runner."""
    why: str
    """The cause in words, for the error of a run."""
    job_id: str | None = None
    """The id of the job that it executed; None without a job."""
    is_stopped: bool = False
    """Whether a person stopped the job by RQ's command."""
    is_damage: bool = False
    """Whether the runner could not work any more. Then its job is put back on the queue."""

    def is_of(self, job: RunnerJob) -> bool:
        """Return whether this cause ended `job`. A runner may outlive a work horse that was killed for another job."""
        return self.pid == job.pid and self.job_id == job.id


class Trouble(NamedTuple):
    """A fault that a runner reports about itself."""

    pid: int
    """The pid of the runner."""
    at: float
    """When the runner last found the fault, by the host's monotonic clock."""
    why: str
    """The fault in words."""
    is_certain: bool
    """Whether the runner is certainly damaged. If not, the servers may be down, and a sound process asks them."""


class Slot:
    """The slot of one runner: its name at RQ, and four notes. Each note is written by one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The runner's name at RQ; its successors have it too."""
        self._job = Note()
        self._request = Note()
        self._cause = Note()
        self._trouble = Note()
        self._flags = mmap.mmap(-1, 1)

    @property
    def job(self) -> RunnerJob | None:
        """The job that the runner executes, or executed when it died; the runner writes it."""
        found = self._job.read()
        return None if found is None else RunnerJob(**found)

    @job.setter
    def job(self, job: RunnerJob | None) -> None:
        self._job.write(None if job is None else job._asdict())

    @property
    def request(self) -> dict[str, Any] | None:
        """RQ's newest command for the runner; its `number` differs from the number of the previous command."""
        return self._request.read()

    @request.setter
    def request(self, request: Mapping[str, Any]) -> None:
        self._request.write(request)

    @property
    def cause(self) -> Cause | None:
        """Why the runner ended; written by the supervisor."""
        found = self._cause.read()
        return None if found is None else Cause(**found)

    @cause.setter
    def cause(self, cause: Cause) -> None:
        self._cause.write(cause._asdict())

    @property
    def trouble(self) -> Trouble | None:
        """The fault that the runner reports about itself; the runner writes it."""
        found = self._trouble.read()
        return None if found is None else Trouble(**found)

    @trouble.setter
    def trouble(self, trouble: Trouble | None) -> None:
        self._trouble.write(None if trouble is None else trouble._asdict())

    @property
    def is_closing(self) -> bool:
        """Whether the supervisor ends. Then the next runner only settles the job of the last one."""
        return self._flags[0] == 1

    def close(self) -> None:
        """Record that the supervisor ends."""
        self._flags[0] = 1


class RunnerWatch(Watch):
    """Watches the runner of one slot."""

    def __init__(self, slot: Slot, test: Callable[[], None] = lambda: None) -> None:
        """`test` is called in a fork of this process, and ends the fork with status 0 if the servers answer."""
        self._slot = slot
        self._test = test
        self._obeyed: int | None = None
        self._tester: ForkProcess | None = None
        self._killed: int | None = None
        """The pid of the runner that was killed because it was damaged."""
        self._tested_at = self._passed_at = -_TEST_SECONDS

    def look(self, pid: int) -> None:
        """Obey RQ's commands, and kill a runner that is damaged or whose job is past its deadline."""
        trouble = self._slot.trouble
        if trouble is not None and trouble.pid == pid:
            self._judge(pid, trouble)
            return
        request = self._slot.request
        if request is not None and request["number"] != self._obeyed:
            self._obeyed = request["number"]
            self._obey(pid, request)
        job = self._slot.job
        if job is not None and job.pid == pid and job.is_overrun:
            self._end_job(pid, job.id, OVERRUN, only_overrun=True)

    def kill(self, pid: int, why: str) -> None:
        """Kill the runner and the processes that its run has started.

        The work horse of a job that is not ours continues, as in RQ.
        """
        self._note_cause(pid, why)
        _kill_group(pid)

    def end(self, pid: int, *, is_urgent: bool) -> None:
        """Let the runner finish its job; if `is_urgent`, kill the runner and its work horse."""
        if not is_urgent:
            os.kill(pid, signal.SIGTERM)
            return
        job = self._slot.job
        if job is not None and job.horse_pid is not None:
            _kill_group(job.horse_pid)
        self.kill(pid, "its worker was told to end at once")

    def note_end(self, status: int | None) -> int | None:
        """Note how the runner ended, unless this process killed it and has already noted why."""
        job, trouble = self._slot.job, self._slot.trouble
        if trouble is not None and (trouble.is_certain or self._killed == trouble.pid):
            _log.error("a runner was damaged: %s", trouble.why, extra={"action": "runner_damaged"})
            self._slot.cause = Cause(trouble.pid, trouble.why, None if job is None else job.id, is_damage=True)
            return DAMAGED
        if job is None:
            return status
        cause = self._slot.cause
        if cause is None or not cause.is_of(job):
            how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
            self._slot.cause = Cause(job.pid, f"its runner died ({how})", job.id)
        return status

    def prepares_last(self) -> bool:
        """Return whether the runner died during a run of ours. A last runner then settles the run."""
        job = self._slot.job
        self._slot.close()
        return job is not None and job.is_ours

    def _judge(self, pid: int, trouble: Trouble) -> None:
        """Kill a runner that is damaged, or that cannot reach a server although a fork of this process can."""
        now = time.monotonic()
        if self._tester is not None and not self._tester.is_alive():
            if self._tester.exitcode == 0:
                self._passed_at = self._tested_at = now
            self._tester = None
        if trouble.is_certain or 0 < trouble.at - self._passed_at < _TEST_SECONDS:
            with _stopped(pid):
                if self._slot.trouble is not None:
                    self._killed = pid
                    _kill_group(pid)
        elif self._tester is None and now - self._tested_at > _TEST_SECONDS / 4:
            self._tested_at = now
            self._tester = FORK.Process(target=self._test)
            start_undisturbed(self._tester)

    def _obey(self, pid: int, request: dict[str, Any]) -> None:
        command, job = request["command"], self._slot.job
        if command == "shutdown":
            os.kill(pid, signal.SIGTERM)
        elif command == "kill-horse" and job is not None:
            self._end_job(pid, job.id, "it was killed by RQ's command")
        elif command in {"stop-job", "stop-execution"} and request.get("job_id"):
            self._end_job(pid, request["job_id"], "stopped by RQ's command", is_stopped=True)

    def _end_job(
        self, pid: int, job_id: str, why: str, *, is_stopped: bool = False, only_overrun: bool = False
    ) -> None:
        with _stopped(pid):
            job = self._slot.job
            if job is None or job.id != job_id or job.pid != pid:
                _log.info("%s does not execute here, or has ended", job_id, extra={"action": "runner_command_late"})
                return
            if only_overrun and not job.is_overrun:
                return  # the application's code has ended
            if not job.is_ours and job.horse_pid is None:
                return  # its work horse has ended, or is about to begin
            self._note_cause(pid, why, is_stopped=is_stopped)
            _log.warning("%s ends: %s", job_id, why, extra={"action": "runner_killed"})
            _kill_group(pid if job.horse_pid is None else job.horse_pid)

    def _note_cause(self, pid: int, why: str, *, is_stopped: bool = False) -> None:
        job: RunnerJob | None = self._slot.job
        self._slot.cause = Cause(pid, why, None if job is None else job.id, is_stopped)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Stop a child during the block. Before the block, wait a limited time until the child has stopped or ended."""
    os.kill(pid, signal.SIGSTOP)
    try:
        ends_at = time.monotonic() + _STOP_SECONDS
        options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, pid, options) is None and time.monotonic() < ends_at:
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
