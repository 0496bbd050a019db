"""Ends processes that an application's code forked and did not end. This file knows nothing of runs or jobs.

A child of `os.fork()` that returns from a workflow, or raises because its exec failed, would otherwise continue as a
second worker that nobody supervises.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class ForkGuard:
    """Ends each process that was forked in its block and is about to leave it, by return or by an error.

    The guard prints the error's traceback. Nothing runs after the block: no `finally`, no `atexit`. The exit status is
    0 after a return, the status of a SystemExit, or else 1. Inside the block the forked process is unrestricted.
    """

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if os.getpid() != self._pid:
            _end(error)


def call_in_this_process(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the application's code; a process that it forks ends with the call (see `ForkGuard`).

    If the call returns a coroutine, the coroutine is guarded while it is awaited: a fork must not end the event loop.
    """
    with ForkGuard():
        result = function(*args, **kwargs)
    return _guarded(result) if isinstance(result, Coroutine) else result


async def _guarded(result: Coroutine[Any, Any, T]) -> T:
    with ForkGuard():
        return await result


CALLERS = frozenset({call_in_this_process.__code__, _guarded.__code__})
"""Our last frames before the application's code: a recorded traceback begins after them."""


def _end(error: BaseException | None) -> None:
    status = 1
    try:
        status = _status(error)
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        os._exit(status)


def _status(error: BaseException | None) -> int:
    """Return the exit status of a process that ends with an error, and print the error where Python would."""
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    # Not through Python's buffer, whose lock may be held by a thread that this process does not have.
    os.write(2, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
    return 1
