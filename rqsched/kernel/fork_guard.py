"""Ends processes that an application's code forked and did not end. This file knows nothing of runs or jobs.

Without this file, if a workflow calls `os.fork()` and the child returns from the workflow, or raises because its exec
failed, the child would continue as a second worker that nobody supervises.
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
    """Ends each process that was forked inside the `with` block, when that process returns or raises out of the block.

    The guard prints the error's traceback. The process then runs no `finally` and no `atexit`. Its exit status is 0
    after a return, the status of a SystemExit, or else 1. Inside the block the forked process is unrestricted.
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
    """Return the exit status of a process that ends with this error. Print the error if Python would print it."""
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    # Do not write through Python's buffer: a thread that this process does not have may hold the buffer's lock.
    os.write(2, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
    return 1
