"""A process beside a runner that forks work horses for jobs that are not ours, and executes nothing itself.

A runner holds what its runs have left: a fork of it would inherit locks held by threads that the fork does not have. So
its horses are forked by a child that it starts before it opens anything. The child prepares with its first horse: until
then it shares nearly all of its memory with the runner.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from rqsched.fork_guard import ForkGuard
from rqsched.processes.horse_sql import undisturbed
from rqsched.processes.supervisor import FORK, die_with_parent, show_name

RunHorse: TypeAlias = Callable[[str, str, str], None]
"""Runs a job in a horse; its arguments are those of `HorseStarter.start`."""
_KILLED = None, int(signal.SIGKILL), None


class HorseStarter:
    """The runner's side of that process, which ends with the runner."""

    def __init__(self, prepare: Callable[[], RunHorse]) -> None:
        """Start the process; it calls `prepare` before its first horse."""
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
        """Whether the process is gone, and with it every further horse."""
        return not self._horse_pid and self._own.poll()

    def start(self, job_id: str, queue: str, execution_id: str) -> int:
        """Start a work horse; returns its pid, 0 when there is none because the process has died."""
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
        """Return what to call when a descriptor becomes readable while the horse works."""
        return {self._own.fileno(): self._hear} if self._horse_pid else {}

    def _hear(self) -> None:
        try:
            with undisturbed():
                self._ended = self._own.recv()
        except (EOFError, OSError):  # nobody watches this horse any more
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
