"""A dispatcher beside an RQ worker: a child process, the keeper, that keeps a dispatcher as its own child.

An RQ worker cannot watch a child itself: its loop turns every half minute while a job executes, a SimpleWorker's not
at all, and a thread has no place where RQ forks. So the keeper watches, and the worker starts the keeper. Keeper and
dispatcher end with the worker; the dispatcher lives on without its keeper. docs/adr/0010 has the whole tree.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkProcess

from rqsched.config import Settings
from rqsched.processes.horse_watch import open_end_of
from rqsched.processes.supervisor import FORK, Role, Supervisor, part_from_parent, show_name, start_undisturbed
from rqsched.processes.vital_signs import run_for
from rqsched.processes.worker import DISPATCHER_SILENCE, be_dispatcher, dispatch_once

_log = logging.getLogger(__name__)

_KEEPER = "rqsched-keeper"
_END_SECONDS = 15.0
"""How long keeper and dispatcher may take to end before they are killed: a batch is finished."""
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_held: set[int] = set()
"""The ends of pipes by which keepers know that this process lives. A fork gives them up at once: a horse that outlives
its worker must not look like it."""


def _give_up_held() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_give_up_held)


def _let_go(writing: int) -> None:
    """Tell the processes at the other end of a pipe to end."""
    if writing in _held:
        _held.discard(writing)
        os.close(writing)


class KeptDispatcher:
    """Keeps a keeper, and with it a dispatcher, until `stop` or the end of this process, however it ends."""

    def __init__(self, *, spawns: bool, log_level: str | int) -> None:
        """`spawns` starts Python anew instead of forking this process; both log to its standard error."""
        self._spawns = spawns
        self._log_level = log_level
        self._keeper: ForkProcess | subprocess.Popen[bytes] | None = None
        self._life = -1
        self._ended: int | None = None
        """Readable when the keeper has ended, where the kernel can tell."""

    def start(self) -> None:
        """Start the keeper; its dispatcher's first act is a pass of reconcile."""
        reading, writing = os.pipe()
        _held.add(writing)
        try:
            self._keeper = self._spawn(reading) if self._spawns else self._fork(reading)
        except OSError:
            _let_go(writing)
            raise
        finally:
            os.close(reading)
        self._life = writing
        self._watch(self._keeper)

    def keep(self) -> None:
        """Start the keeper again when it has died; called whenever this process has a moment."""
        if self._keeper is None or _is_running(self._keeper):
            return
        _log.warning("the dispatcher's keeper has died; restarting", extra={"action": "keeper_restarted"})
        before = self._life
        self._watch(None)
        try:
            self.start()
        except OSError:
            _log.exception("no keeper can be started now", extra={"action": "keeper_failed"})
        else:
            _let_go(before)  # the dispatcher of the dead one, which lived on, ends

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """What to call when which descriptor is readable, so that the keeper is kept while a horse is waited for."""
        return {} if self._ended is None else {self._ended: self.keep}

    def _watch(self, keeper: ForkProcess | subprocess.Popen[bytes] | None) -> None:
        """Watch for the end of this keeper, and of no other."""
        if self._ended is not None:
            os.close(self._ended)
        self._ended = None if keeper is None or keeper.pid is None else open_end_of(keeper.pid)

    def stop(self) -> None:
        """End keeper and dispatcher; they have ended when this returns."""
        keeper, self._keeper = self._keeper, None
        self._watch(None)
        _let_go(self._life)
        if keeper is None or _has_ended(keeper, _END_SECONDS):
            return
        keeper.kill()
        _has_ended(keeper, _END_SECONDS)

    def _fork(self, life: int) -> ForkProcess:
        process = FORK.Process(target=_be_keeper, args=(life, self._log_level))
        start_undisturbed(process)
        return process

    def _spawn(self, life: int) -> subprocess.Popen[bytes]:
        code = f"keep_dispatcher({life}, {self._log_level!r})"
        return subprocess.Popen(_python(code), pass_fds=[life], start_new_session=True)  # noqa: S603


def _is_running(keeper: ForkProcess | subprocess.Popen[bytes]) -> bool:
    return keeper.is_alive() if isinstance(keeper, ForkProcess) else keeper.poll() is None


def _has_ended(keeper: ForkProcess | subprocess.Popen[bytes], seconds: float) -> bool:
    if isinstance(keeper, ForkProcess):
        keeper.join(seconds)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(seconds)
    return not _is_running(keeper)


def _python(code: str) -> list[str]:
    begin = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import keep_dispatcher, make_one_pass"
    return [sys.executable, "-c", f"{begin}; {code}"]


def _be_keeper(life: int, log_level: str | int) -> None:
    part_from_parent(_KEEPER)
    keep_dispatcher(life, log_level)


def keep_dispatcher(life: int, log_level: str | int) -> None:
    """Be the keeper until SIGTERM or the end of the pipe `life`: keep a dispatcher that ends there, too.

    It answers pings for its worker, which has no moment for them while a job executes.
    """
    worker = os.getppid()
    show_name(_KEEPER)
    if not logging.getLogger().handlers:
        logging.basicConfig(level=log_level, format=_LOG_FORMAT)
        logging.getLogger("alembic").setLevel(logging.WARNING)
    dispatcher = Role("dispatcher", partial(be_dispatcher, recover=True), DISPATCHER_SILENCE)
    run_for(worker, Supervisor([dispatcher], life=life), "rq", Settings())


def make_one_pass() -> None:
    """Reconcile once and fire what is due."""
    dispatch_once()


def make_one_pass_apart(*, spawns: bool) -> None:
    """Reconcile once and fire what is due, in a process of its own; returns when that has ended, well or not."""
    if spawns:
        status = subprocess.run(_python("make_one_pass()"), check=False).returncode  # noqa: S603
    else:
        process = FORK.Process(target=make_one_pass)
        process.start()
        process.join()
        status = process.exitcode or 0
    if status != 0:
        _log.error("no pass was made: what is due does not fire (%d)", status, extra={"action": "pass_failed"})
