"""Make passes of reconcile in a thread of a web process, for installations whose `rq worker`s make no passes."""

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

from rqsched.errors import RqschedError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.queries.reconcile import count_to_compare as count_to_compare

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
"""Seconds between two attempts of a process to make the next pass. A flush of Redis is noticed within this time."""
_AFTER_FAILURE = 5.0
"""Extra seconds before a process tries again after a failed pass, so that another process takes the pass."""
_LONGEST_END = 5.0
"""How many seconds `end` waits for a pass at most."""


def find_worker_command() -> Any:
    """Return the context of RQ's command if this process runs a worker or a worker pool, else None."""
    click = sys.modules.get("click")
    command = None if click is None else click.get_current_context(silent=True)
    return command if command is not None and command.command.name in {"worker", "worker-pool"} else None


class Recovering:
    """A thread that makes passes of reconcile. It takes turns with the other processes of the control queue.

    It has its own connections, and keeps no connection to SQL open between two passes. After a failed pass, further
    errors are not logged until a pass succeeds. A forked process gets its own thread.
    """

    def __init__(self, runtime_of: Callable[[], Runtime]) -> None:
        """`runtime_of` is called in the thread, and again after an error. It may connect to servers and may raise."""
        self._runtime_of = runtime_of
        self._is_begun = False
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._turn = threading.Lock()

    def begin(self, *, after: float = 0.0) -> None:
        """Begin to make passes, `after` seconds from now; idempotent, and cheap enough for each request."""
        if self._thread is not None:
            return
        with self._turn:
            if self._thread is None:
                self._ending = threading.Event()
                given = (self._ending, after)
                self._thread = threading.Thread(target=self._run, args=given, name="rqsched-recover", daemon=True)
                self._is_begun = True
                self._thread.start()

    def begin_anew(self) -> None:
        """Forget the thread and the lock of the parent in a forked process; begin again if the parent had begun."""
        self._reset()
        if self._is_begun:
            self.begin(after=_LOOK_SECONDS)  # by then, most forks that are no servers have become another program

    def end(self) -> None:
        """Make no more passes. Wait at most 5 s for the current pass; a longer one ends with the process."""
        with self._turn:
            thread, self._thread = self._thread, None
            self._is_begun = False
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
    """Make a pass if it is this process's turn, else return False. No connection to SQL stays open.

    While the database takes no writes, no process takes a turn. After a failed pass, another process may take the turn.
    """
    from rqsched.kernel.chain.reconcile.passes import recover  # noqa: PLC0415 - most commands need none of its thirty modules

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


_instances: weakref.WeakSet[Recovering] = weakref.WeakSet()


def _begin_anew() -> None:
    for recovering in list(_instances):
        recovering.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
