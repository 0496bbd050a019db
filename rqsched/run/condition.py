"""Check whether a process that has executed the application's code can execute further jobs.

A run that closes all files, changes the user or lowers a limit leaves a process that fails with every later job. This
module knows nothing of runs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

from redis.exceptions import RedisError

from rqsched.config import Settings
from rqsched.errors import RqschedError
from rqsched.features.list import make_runtime
from rqsched.kernel.store.database import DatabaseError, Patience

_DEPTH = 250
"""More nested calls than our own code and its libraries ever make within RQ's loop."""
_MEMORY = 16 << 20
_AT_ONCE = Patience(total=timedelta(0))


class Condition:
    """The state of a process (an open descriptor, its user) before it executes the application's code.

    Afterwards `find_damage` compares the process with this state.
    """

    def __init__(self) -> None:
        """Record the state, and open a descriptor.

        If this descriptor is closed later, the application's code has closed descriptors that it did not open.
        """
        self._canary, other = os.pipe()
        os.close(other)
        self._noted = self._look()
        try:
            self._folder: Path | None = Path.cwd()
        except FileNotFoundError:
            self._folder = None

    def find_damage(self, *, is_thorough: bool = False) -> str | None:
        """Return the damage of this process in words, or None.

        This takes some microseconds. With `is_thorough` it also starts a thread and nests calls deeply. A deleted
        working directory is no damage, because the process then returns to its first working directory.
        """
        try:
            Path.cwd()
        except FileNotFoundError:
            if self._folder is not None:
                with contextlib.suppress(OSError):  # a deployment may have removed this folder too
                    os.chdir(self._folder)
        was, now = self._noted, self._look()
        if was[0] != now[0]:
            return "its files were closed"
        if was[1] != now[1]:
            return "its user or group was changed"
        if sys.getrecursionlimit() < 2 * _DEPTH:
            return "it can call no deeper"
        what = "it can open no file"
        try:
            os.close(os.dup(self._canary))
            what = "it gets no memory"
            mmap.mmap(-1, _MEMORY).close()
            what = "it can start no thread, or call no deeper"
            if is_thorough:
                thread = threading.Thread(target=_go_deep)
                thread.start()
                thread.join()
                _go_deep()
        except Exception as error:  # noqa: BLE001 - without memory Python may raise any exception
            return f"{what} ({type(error).__name__})"
        return None

    def _look(self) -> tuple[object, object]:
        try:
            found = os.fstat(self._canary)
        except OSError:
            return None, None
        if sys.platform == "darwin":  # it cannot return saved ids
            return (found.st_dev, found.st_ino), (os.getuid(), os.geteuid(), os.getgid(), os.getegid())
        return (found.st_dev, found.st_ino), (*os.getresuid(), *os.getresgid())


def find_silent_server() -> str | None:
    """Return which server does not answer over a new connection, and why; None if SQL and Redis answer.

    The settings are read again, as a new process would read them.
    """
    try:
        runtime = make_runtime(Settings())
        try:
            runtime.database.ping(patience=_AT_ONCE)
            runtime.transport.redis.ping()
        finally:
            runtime.close()
    except (RqschedError, DatabaseError, RedisError, OSError, ValueError) as error:
        return f"a server does not answer it ({type(error).__name__}: {error})"
    return None


def _go_deep(left: int = _DEPTH) -> None:
    if left:
        _go_deep(left - 1)
