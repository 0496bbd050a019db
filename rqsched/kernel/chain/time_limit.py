"""End application code that takes too long: raise an error in the code. If the code goes on, kill its process.

RQ's timeout of a job is not enough. It also covers the time to write the end of the attempt. It does not stop code that
catches every error, or that no signal reaches.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

from rq import get_current_job
from rq.timeouts import get_default_death_penalty_class

from rqsched.kernel.chain.heartbeats import Heartbeats

_log = logging.getLogger(__name__)

KILL_AFTER = 12.0
"""How many seconds after its timeout code is killed. The watcher looks once a second, so code is killed within the
promised 15 s."""
OVERRUN = "it took far longer than its timeout and was killed"
"""The error of an attempt that was killed after its timeout."""
_HELD_SECONDS = 2.0
"""The process ends this many seconds after it should have been killed, even if C code holds the interpreter lock or SQL
does not answer."""
_STDERR = 2

Lose: TypeAlias = Callable[[], object]
"""Records that the attempt is lost with its process."""
Watch: TypeAlias = Callable[[float, Lose], AbstractContextManager[None]]
"""Returns a context manager. If its block takes longer than this number of seconds, the process is killed."""


def watch_horse(seconds: float, lose: Lose) -> AbstractContextManager[None]:
    """In a work horse of RQ's own worker, end the horse after this time. In any other process, do nothing."""
    job = get_current_job()
    is_horse = job is not None and os.environ.get("RQ_JOB_ID") == job.id and str(job.func_name).startswith("rqsched.")
    return end_by_itself(seconds, lose) if is_horse else nullcontext()


class OutOfTimeError(BaseException):
    """The code took too long. This is no Exception, because state machines and loops may catch Exception and go on."""


@contextmanager
def time_limit(watch: Watch, seconds: int, lose: Lose, error: type[BaseException] = OutOfTimeError) -> Iterator[None]:
    """Raise an error in the block after this number of seconds; if the block goes on, its process is killed."""
    with watch(seconds + KILL_AFTER, lose), get_default_death_penalty_class()(seconds, error):
        yield


@contextmanager
def end_by_itself(seconds: float, lose: Lose) -> Iterator[None]:
    """If the block takes longer, record the attempt as lost, then end this process and its children.

    If C code holds the interpreter lock, the process still ends a little later, and reconcile finds that its heartbeats
    have stopped.
    """
    pid, lock, is_over = os.getpid(), threading.Lock(), False

    def end() -> bool:
        with lock:  # the block cannot end meanwhile, so no later code is killed
            if not is_over:
                _end(lose)
        return False

    faulthandler.dump_traceback_later(seconds + _HELD_SECONDS, exit=True, file=_STDERR)
    try:
        with Heartbeats(seconds, end):
            yield
    finally:
        if os.getpid() == pid:
            with lock:
                is_over = True
            faulthandler.cancel_dump_traceback_later()


def _end(lose: Lose) -> None:
    try:
        _log.error("this process ends: %s", OVERRUN, extra={"action": "killed_overrun"})
        faulthandler.dump_traceback(_STDERR)
        lose()
    except Exception:  # noqa: BLE001 - reconcile finds the lost attempt
        _log.exception("the attempt was not recorded as lost; reconcile does it", extra={"action": "lose_failed"})
    finally:
        if os.getpgrp() == os.getpid():
            with contextlib.suppress(OSError):
                os.killpg(0, signal.SIGKILL)
        os._exit(1)  # process 1 of a container does not die of its own signal
