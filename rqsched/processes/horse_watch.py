"""Waiting for the end of a work horse without being deaf meanwhile."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping

_LOOK_SECONDS = 1.0
"""How often it is looked for, where the kernel cannot tell that a process has ended."""


def wait_for_end(pid: int, beside: Callable[[], Mapping[int, Callable[[], object]]]) -> None:
    """Wait until a child has ended, which it leaves to its parent to reap; call what is `beside` it when its time is.

    That is what to call when a descriptor is readable; it is asked for anew each time.
    """
    child = open_end_of(pid)
    try:
        while True:
            calls = dict(beside())
            if child is None and (not calls or _has_ended(pid)):
                return
            ready = _first_readable([*calls, *([] if child is None else [child])], child is None)
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


def _first_readable(descriptors: list[int], is_bounded: bool) -> list[int]:
    """Wait until some of these are readable; returns those. Unlike `select` it takes any number of open files."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000 if is_bounded else None)]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
