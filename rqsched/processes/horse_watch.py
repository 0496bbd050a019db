"""Waiting for the end of a work horse without being deaf meanwhile."""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rqsched.chain.time_limit import Lose

_LOOK_SECONDS = 1.0
"""How often a horse is looked after, and for, where the kernel cannot tell that a process has ended."""


class Deadline:
    """When the application's code in a work horse has taken far too long, in memory that the horse shares as a fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    @contextmanager
    def watch(self, seconds: float, lose: Lose) -> Iterator[None]:
        """Be over when the block takes longer; in the horse. The worker that sees it kills the horse, and settles."""
        del lose
        pid = os.getpid()
        self._set(time.monotonic() + seconds)
        try:
            yield
        finally:
            if os.getpid() == pid:
                self.clear()

    def clear(self) -> None:
        """Forget it: another horse begins, or the code has ended."""
        self._set(0.0)

    @property
    def is_over(self) -> bool:
        """Whether the code still executes, and has taken far too long."""
        at: float = struct.unpack_from("d", self._memory)[0]
        return 0.0 < at < time.monotonic()

    def _set(self, at: float) -> None:
        struct.pack_into("d", self._memory, 0, at)


def wait_for_end(
    pid: int, beside: Callable[[], Mapping[int, Callable[[], object]]], look: Callable[[], object]
) -> None:
    """Wait until a child has ended, which it leaves to its parent to reap; call what is `beside` it when its time is.

    That is what to call when a descriptor is readable; it is asked for anew each time. `look` is called each second.
    """
    child = open_end_of(pid)
    try:
        while True:
            calls = dict(beside())
            if child is None and _has_ended(pid):
                return
            look()
            ready = _first_readable([*calls, *([] if child is None else [child])])
            if ready == [child]:
                return
            for descriptor in ready:
                if descriptor != child:
                    calls[descriptor]()
    finally:
        if child is not None:
            os.close(child)


def open_end_of(pid: int) -> int | None:
    """Open what is readable when a child has ended; None without such a process, or where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _first_readable(descriptors: list[int]) -> list[int]:
    """Wait a second until some of these are readable; returns those. Unlike `select` it takes any number of files."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
