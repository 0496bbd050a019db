"""Keep a dispatcher beside an RQ worker. A child process of the worker, the `keeper`, keeps the dispatcher alive.

Keeper and dispatcher end with the worker. An RQ worker cannot watch a child itself: while a job executes, the loop of
the worker turns only every half minute, and the loop of a SimpleWorker does not turn at all. A thread of the worker
cannot watch it either, because threads do not survive RQ's forks. Two dispatchers are enough for a machine, so the
keepers of other workers wait for a place (`waiting_keeper`). docs/adr/0010 has the whole tree.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rqsched.config import Settings, export
from rqsched.run import waiting_keeper
from rqsched.run.keeper import KEEPER, Post, is_at_end, keep
from rqsched.run.supervisor import part_from_parent
from rqsched.run.vital_signs import hold, let_go, require_own, run_folder

_log = logging.getLogger(__name__)

_PLACES = 2
"""The maximum number of dispatchers on a machine for one user, database, Redis and control queue. If one dies, the
other goes on."""
_END_SECONDS = 5.0
"""How long a worker that ends waits for its keeper and dispatcher. Meanwhile the dispatcher finishes its batch."""


class KeptDispatcher:
    """Keeps a dispatcher for this process, until `stop` or the end of this process."""

    def __init__(self, settings: Settings, *, spawns: bool, log_level: str | int) -> None:
        """With `spawns`, children start in a new Python and not as forks. They log to this process's standard error."""
        self._settings = settings
        self._spawns = spawns
        self._log_level = log_level
        self._life: socket.socket | None = None
        self._waiting: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a keeper.

        If the keeper gets a place, it starts a dispatcher. The dispatcher begins with a pass of reconcile.
        """
        own, life = socket.socketpair()
        places = _open_places(self._settings)
        run_dir = self._settings.run_dir
        post = Post(life.fileno(), os.getpid(), self._log_level, None if run_dir is None else str(run_dir))
        hold(own)
        try:
            place = None if self._spawns else waiting_keeper.take(places)
            if self._spawns or (places and place is None):
                self._waiting = _spawn(post, places)
            else:
                _fork(post, -1 if place is None else place)
        except OSError:
            let_go(own)
            raise
        finally:
            life.close()
            for one in places:
                os.close(one)
        self._life = own

    def keep(self) -> None:
        """Start another keeper if the keeper and its dispatcher have both died. Call this between other work."""
        if self._life is not None:
            if not is_at_end(self._life.fileno()):
                return
            let_go(self._life)
        _log.warning("the dispatcher and its keeper have died; restarting", extra={"action": "keeper_restarted"})
        self._life = None
        self._spawns = True  # by now RQ has started threads in this process
        try:
            self.start()
        except OSError:
            _log.exception("no keeper can be started now", extra={"action": "keeper_failed"})

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """Return the descriptors to watch while a horse works, each with the function to call when it is readable."""
        return {} if self._life is None else {self._life.fileno(): self.keep}

    def stop(self) -> None:
        """End keeper and dispatcher. Both have ended when this returns, unless SQL or Redis delays them."""
        if self._life is None:
            return
        with contextlib.suppress(OSError):
            self._life.shutdown(socket.SHUT_WR)
        is_at_end(self._life.fileno(), _END_SECONDS)
        let_go(self._life)
        self._life = None


def _open_places(settings: Settings) -> list[int]:
    """Open the files whose locks are the places of this machine; empty if the run folder cannot hold them."""
    what = "\n".join(map(str, (os.getuid(), settings.database_url, settings.redis_url, settings.control_queue)))
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    folder = run_folder(settings.run_dir)
    try:
        require_own(folder)
        files = [folder / f"dispatcher-{name}-{number}.lock" for number in range(1, _PLACES + 1)]
        return [os.open(file, os.O_RDWR | os.O_CREAT, 0o600) for file in files]
    except OSError as error:
        _log.warning("each worker has a dispatcher of its own: %s", error, extra={"action": "no_places"})
        return []


def _fork(post: Post, place: int) -> None:
    if os.fork() == 0:
        try:
            part_from_parent(KEEPER)
            keep(post, place)
        except BaseException:  # noqa: BLE001
            _log.exception("the dispatcher's keeper has failed", extra={"action": "keeper_failed"})
        finally:
            os._exit(0)  # nothing of the worker may continue here


def _spawn(post: Post, places: list[int]) -> subprocess.Popen[bytes]:
    export()
    words = [str(post.life), ",".join(map(str, places)), *post.command]
    lean = [sys.executable, "-I", "-S", str(Path(waiting_keeper.__file__))]
    return subprocess.Popen([*lean, *words], pass_fds=[post.life, *places], start_new_session=True)  # noqa: S603
