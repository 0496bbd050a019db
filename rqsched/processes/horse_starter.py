"""A process beside a runner that forks work horses for jobs that are not ours, and executes nothing itself.

A runner is full of what runs have left in it: a fork of it inherits their locks, held by threads that it does not have.
So its horses are forked by a child that it begins before it opens anything. The child prepares for them with the first
one: until then it shares nearly all of its memory.
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

BeHorse: TypeAlias = Callable[[str, str, str], None]
"""What is called in a horse with what `HorseStarter.start` is given."""
_KILLED = None, int(signal.SIGKILL), None


class HorseStarter:
    """What a runner has of that process, which ends with the runner."""

    def __init__(self, prepare: Callable[[], BeHorse]) -> None:
        """Begin it; `prepare` is called there, before the first horse."""
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
        """Whether it will start no other horse."""
        return not self._horse_pid and self._own.poll()

    def start(self, job_id: str, queue: str, execution_id: str) -> int:
        """Start a work horse; returns its pid, 0 when there is none because the process has died."""
        self.wait()  # for one that RQ has given up
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
        """What to call when which descriptor is readable while the horse works: one that nobody watches is killed."""
        return {self._own.fileno(): self._hear} if self._horse_pid else {}

    def _hear(self) -> None:
        try:
            with undisturbed():
                self._ended = self._own.recv()
        except (EOFError, OSError):
            self._ended = _KILLED
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._horse_pid, signal.SIGKILL)
        self._horse_pid = 0


def _serve(asked: Connection, prepare: Callable[[], BeHorse]) -> None:
    """Fork a horse for each order and tell of its end, until the runner is gone."""
    be_horse: BeHorse | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            order = asked.recv()
            be_horse = be_horse or prepare()
            with ForkGuard():
                pid = os.fork()
                if pid == 0:
                    os.setpgrp()
                    asked.close()
                    be_horse(*order)
            with contextlib.suppress(OSError):  # both do it: whoever kills the group of the horse finds it
                os.setpgid(pid, pid)
            asked.send(pid)
            asked.send(os.wait4(pid, 0))
