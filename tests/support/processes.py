"""Real processes under test: started with their output in a file, ended by pid, awaited by polling."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
from tenacity import RetryError, Retrying, retry_if_not_result, stop_after_delay, wait_fixed

from tests.support import warm
from tests.support.child import BIN as BIN
from tests.support.child import REPOSITORY as REPOSITORY
from tests.support.child import begin
from tests.support.narrow import present

T = TypeVar("T")
SOON = 120.0
"""Seconds that a short action of processes may take on a busy machine."""


def wait_until(
    predicate: Callable[[], T],
    *,
    timeout: float = SOON,
    interval: float = 0.02,
    what: str | Callable[[], str] = "the condition",
) -> T:
    """Return the first truthy answer of `predicate`; fail after `timeout` seconds. The suite's only waiting.

    `what` names the missing condition. If it is a function, it is called at the timeout, to show the log of then.
    """
    attempts = Retrying(retry=retry_if_not_result(bool), stop=stop_after_delay(timeout), wait=wait_fixed(interval))
    try:
        return attempts(predicate)
    except RetryError as error:
        raise AssertionError(f"{what if isinstance(what, str) else what()} did not hold within {timeout} s") from error


@dataclass(frozen=True)
class Process:
    """A running process, its children included when it ends, and the file that holds its output."""

    popen: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def child(self, role: str) -> psutil.Process | None:
        """Its child of this role, once that shows its name (the kernel keeps 15 characters)."""
        for process in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == f"rqsched-{role}"[:15]:
                    return process
        return None

    def wait_for_child(self, role: str, *, other_than: int = 0) -> psutil.Process:
        def find() -> psutil.Process | None:
            found = self.child(role)
            return found if found is not None and found.pid != other_than else None

        return present(wait_until(find, timeout=SOON, what=lambda: f"a child {role}, not {other_than}:\n{self.log()}"))

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, *, timeout: float = SOON) -> int:
        """Wait until it has ended by itself; returns its exit code."""
        return self.popen.wait(timeout)

    def wait_for_log(self, text: str, *, timeout: float = SOON) -> None:
        wait_until(
            lambda: text in self.log(), timeout=timeout, what=lambda: f"{text!r} in {self.log_path}:\n{self.log()}"
        )

    def terminate(self, *, timeout: float = 10.0) -> int:
        """Ask it to end (SIGTERM), wait, kill the rest of its tree, and return its exit code."""
        tree = process_tree(self.pid)
        self.popen.terminate()
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill_tree()
        finally:
            kill_all(tree)

    def kill_tree(self) -> int:
        """SIGKILL it and all its descendants; return its exit code.

        All are stopped first, and awaited: one that is about to fork gets a child that nobody has counted.
        """
        kill_all(_stop_tree(self.pid))
        return self.popen.wait(10)


@dataclass
class Processes:
    """Processes of ours over one database and one Redis: each has a log, and ends with its whole tree."""

    folder: Path
    environment: dict[str, str]
    started: list[Process] = field(default_factory=list, init=False)

    def start(self, command: Sequence[str | Path], *, cwd: Path = REPOSITORY, **differs: str) -> Process:
        """Start a command; `differs` are variables that are not as the other processes have them."""
        log_path = self.folder / f"process-{len(self.started)}.log"
        self.started.append(start(command, log_path=log_path, env={**self.environment, **differs}, cwd=cwd))
        return self.started[-1]

    def start_worker(self, *queues: str) -> Process:
        return self.start(rqsched_command("worker", *queues))

    def close(self) -> None:
        for process in self.started:
            process.kill_tree()


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants, the oldest first; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _stop_tree(pid: int) -> list[psutil.Process]:
    """Stop the process and its descendants, including new forks, and return them all."""
    stopped: list[psutil.Process] = []
    while new := [process for process in process_tree(pid) if process not in stopped]:
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        wait_until(partial(_stand_still, new), interval=0.001, what=f"a standstill of {new}")
        stopped += new
    return stopped


def _stand_still(processes: Sequence[psutil.Process]) -> bool:
    still = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() not in still and not _waits_for_stopped_child(process):
                return False
    return True


def _waits_for_stopped_child(process: psutil.Process) -> bool:
    """Return whether the process waits in vfork for a child that was stopped. A signal does not stop it meanwhile."""
    if process.status() != psutil.STATUS_DISK_SLEEP:
        return False
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_STOPPED:
                return True
    return False


def is_gone(process: psutil.Process) -> bool:
    """It has ended; whether its parent has heard of it does not matter."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two looks
        return True


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL each that still runs; psutil compares start times, so a reused pid is not hit."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def start(
    command: Sequence[str | Path],
    *,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
    user: int | None = None,
) -> Process:
    """Start a process in its own session that dies with the test process; the caller ends it."""
    words = [str(word) for word in command]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    forked = None if user else warm.fork(words, log_path=log_path, environment=environment, cwd=cwd)
    if forked is not None:
        return Process(popen=forked, log_path=log_path)
    with log_path.open("ab") as log:
        popen = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            user=user,
            start_new_session=True,
            preexec_fn=begin,  # noqa: PLW1509 - it touches no lock
        )
    return Process(popen=popen, log_path=log_path)


@contextmanager
def running(
    command: Sequence[str | Path], *, log_path: Path, env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A process that runs inside the block and is gone with its whole tree after it."""
    process = start(command, log_path=log_path, env=env)
    try:
        yield process
    finally:
        process.terminate()


def run_to_end(command: Sequence[str | Path], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with these variables beside those of the test's process."""
    words, variables = [str(word) for word in command], {**os.environ, **environment}
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=SOON, check=False)


def rq_worker_command(redis_url: str, *queues: str, options: Sequence[str] = ()) -> list[str | Path]:
    """`rq worker` as a user would start it, with rqsched's modules preloaded and RQ's scheduler on."""
    preload = ["-c", "rqsched.preload", "--with-scheduler"]
    return [BIN / "rq", "worker", "--url", redis_url, *preload, *options, *queues]


def rqsched_command(*arguments: str) -> list[str | Path]:
    """The `rqsched` command of the interpreter under test."""
    return [BIN / "rqsched", *arguments]
