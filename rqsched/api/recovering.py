"""Passes of reconcile in turn, in a thread of a web process: they repair what plain `rq worker`s beside it cannot."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from rqsched.chain.runtime import Runtime
from rqsched.errors import RqschedError

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
"""How often a process asks whether the next pass is its own; a flush of Redis is noticed as soon."""
_AFTER_FAILURE = 5.0
"""Seconds more before the next try of a process whose pass failed: another one has its turn meanwhile."""
_LONGEST_END = 5.0
"""Seconds that an end waits for a pass which has not ended."""


def find_worker_command() -> Any:
    """Return the context of RQ's command when it starts a worker or several in this process; else None."""
    click = sys.modules.get("click")
    command = None if click is None else click.get_current_context(silent=True)
    return command if command is not None and command.command.name in {"worker", "worker-pool"} else None


class Recovering:
    """A thread that makes passes of reconcile in turn with every other process of the control queue.

    It has connections of its own and holds none to SQL between two passes. What a pass raises is logged once, until
    one succeeds. A process that is forked gets a thread of its own.
    """

    def __init__(self, runtime_of: Callable[[], Runtime]) -> None:
        """`runtime_of` is called in the thread, until it returns: it may open servers and may raise."""
        self._runtime_of = runtime_of
        self._reset()

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._turn = threading.Lock()

    def begin(self, *, after: float = 0.0) -> None:
        """Make passes from so many seconds on; idempotent, and cheap enough for each request."""
        if self._thread is not None:
            return
        with self._turn:
            if self._thread is None:
                self._ending = threading.Event()
                given = (self._ending, after)
                self._thread = threading.Thread(target=self._run, args=given, name="rqsched-recover", daemon=True)
                _begun.add(self)
                self._thread.start()

    def begin_anew(self) -> None:
        """Begin in a process that was forked: it has neither the thread nor, for sure, the lock as it was."""
        self._reset()
        self.begin(after=_LOOK_SECONDS)  # most that are forked, and not to serve, have become another program by then

    def end(self) -> None:
        """Make no further pass; waits at most 5 s for one that goes on, which ends with the process."""
        with self._turn:
            thread, self._thread = self._thread, None
            _begun.discard(self)
            self._ending.set()
        if thread is not None:
            thread.join(_LONGEST_END)

    def _run(self, ending: threading.Event, after: float) -> None:
        ending.wait(after)
        runtime: Runtime | None = None
        is_failing = False
        while not ending.is_set():
            try:
                runtime = runtime or self._runtime_of().apart()
                if _make_pass(runtime):
                    is_failing = False
            except Exception as error:  # noqa: BLE001 - a thread's boundary
                if not is_failing:
                    _tell(error)
                is_failing = True
                ending.wait(_AFTER_FAILURE)
            ending.wait(_LOOK_SECONDS)
        if runtime is not None:
            runtime.close()


def _make_pass(runtime: Runtime) -> bool:
    """Make a pass if it is this process's turn; False when it is not. It leaves no connection to SQL.

    Beside a database that takes no writes it never is, and what fails here leaves the turn to another process.
    """
    from rqsched.chain.reconcile import recover  # noqa: PLC0415 - most commands need none of its thirty modules

    if not runtime.write_gate.is_open() or not runtime.transport.acquire_interval(runtime.settings.reconcile_interval):
        return False
    try:
        recover(runtime)
    except Exception:
        with suppress(RedisError):
            runtime.transport.ask_for_pass()
        raise
    finally:
        runtime.database.close()
    return True


def _tell(error: Exception) -> None:
    is_known = isinstance(error, RqschedError | RedisError)
    _log.warning(
        "no pass of reconcile until this is over: %s", error,
        exc_info=None if is_known else error, extra={"action": "recover_failed"},
    )  # fmt: skip


_begun: weakref.WeakSet[Recovering] = weakref.WeakSet()


def _begin_anew() -> None:
    for recovering in list(_begun):
        recovering.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
